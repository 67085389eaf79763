package api

import (
	"cmp"
	"context"
	"net/http"
	"slices"
	"sort"
	"strings"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/control/answers"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/calendar"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/database/rows"
)

const aboutHistory = "A row has the requests of one step, of all processes that report usage. It lacks the last seconds, " +
	"and what a process could not report yet. Minutes are kept for 2 days, hours for 60 days, days for 3 years."

// Period selects the steps of a usage history. The zero value selects the defaults.
type Period struct {
	From    time.Time `query:"from"     doc:"The begin, cut to a whole step; absent: a day of minutes, 7 days of hours or 30 days before to."`
	To      time.Time `query:"to"       doc:"The end; absent: now."`
	Step    string    `query:"step"     doc:"The length of a step; absent: 1h, by model 1d. There are at most 1500 steps." enum:"1m,1h,1d"`
	GroupBy string    `query:"group_by" doc:"A row for each endpoint, for each policy, or for both. Without policy, a row counts each request once. model: what calls of language models used, by day." enum:"endpoint,policy,endpoint+policy,model"`
}

type usageHistoryInput struct {
	OrgPath
	Period
	Of       string `query:"period"  doc:"What the policy of policy did in its current or previous period of the org, such as a month of the org's time zone, in one row; instead of from, to and step." enum:"current,previous"`
	Endpoint string `query:"endpoint" maxLength:"1024" doc:"Only requests of this endpoint: a policy's pattern, or a route's name."                                           example:"POST /records/{id}"`
	Policy   string `query:"policy"  maxLength:"64" doc:"What the policies of this name did, instead of the requests themselves, each in rows of its own. Not for the token of an org."                            example:"daily"`
}

// defaultSteps has the number of steps of a history without a begin.
var defaultSteps = map[string]time.Duration{"1m": 1440, "1h": 7 * 24, "1d": 30}

// Resolve implements [huma.Resolver].
func (in *usageHistoryInput) Resolve(huma.Context) (faults []error) {
	if in.Of != "" && in.Policy == "" {
		faults = append(faults, fault("query.period", "is that of a policy: name it by policy", in.Of))
	}
	if in.Of != "" && (!in.From.IsZero() || !in.To.IsZero() || in.Step != "") {
		faults = append(faults, fault("query.period", "takes the place of from, to and step: leave them out", in.Of))
	}
	return faults
}

func (in *usageHistoryInput) query(now time.Time) (rows.UsageQuery, error) {
	byModel, name := in.GroupBy == "model", cmp.Or(in.Step, "1h")
	if byModel {
		name = cmp.Or(in.Step, "1d")
	}
	step, err := rows.UsageStepOf(name)
	groups := strings.Split(in.GroupBy, "+")
	q := rows.UsageQuery{
		Tenant: in.Org, From: in.From, To: in.To, Step: step, Policy: in.Policy,
		ByEndpoint: slices.Contains(groups, "endpoint"), ByPolicy: slices.Contains(groups, "policy"),
		ByModel: byModel,
	}
	if in.Endpoint != "" {
		q.Endpoint = &in.Endpoint
	}
	if q.To.IsZero() {
		q.To = now
	}
	if q.From.IsZero() {
		q.From = q.To.Add(-defaultSteps[name] * step.Span)
	}
	return q, err
}

func (s *Server) usageHistory(ctx context.Context, in *usageHistoryInput) (found rows.UsageHistory, err error) {
	q, err := in.query(s.Now())
	if err == nil && s.viewOf(callerOf(ctx)).tenant && (q.ByPolicy || q.Policy != "") {
		// Rows of policies name limits that the org shares with others, and have what is left of them.
		return found, huma.Error403Forbidden("the token of an org reads requests by endpoint, not what each policy did")
	}
	if err != nil {
		return found, err
	}
	if in.Of == "" {
		return s.Rows.Usage(ctx, q)
	}
	calendars, err := s.calendarsOf(ctx, in)
	switch {
	case err != nil:
		return found, err
	case len(calendars) == 0:
		return found, unprocessable(fault("query.policy", "no limit of this name that applies to the org has a period: "+
			"use from and to", in.Policy))
	case len(calendars) > 1:
		return found, unprocessable(fault("query.policy", "limits of this name have different periods: name an endpoint "+
			"too, or use from and to", in.Policy))
	}
	return s.periodHistory(ctx, q, calendars[0], in.Of)
}

// periodHistory returns what q selects in the current or previous period of a calendar.
func (s *Server) periodHistory(
	ctx context.Context, q rows.UsageQuery, of *calendar.Calendar, which string,
) (rows.UsageHistory, error) {
	start, end := of.Window(s.Now().UnixMicro())
	if which == "previous" {
		start, end = of.Bounds(start).Before, start
	}
	q.From, q.To, q.Step = time.UnixMicro(start), time.UnixMicro(end), rows.UsagePeriod
	found, err := s.Rows.Usage(ctx, q)
	found.Period, found.TimeZone = of.Period().String(), of.Zone()
	return found, err
}

// calendarsOf returns the calendars of the policies of a name that apply to an org, to the endpoint if one is given.
// The error is an answer.
func (s *Server) calendarsOf(ctx context.Context, in *usageHistoryInput) (found []*calendar.Calendar, err error) {
	policies, err := s.loadedPlan()
	if err != nil {
		return nil, err
	}
	policies = policies.ForTenant(in.Org)
	requests := Requests{Endpoint: in.Endpoint, User: otherUser, Credential: otherUser}
	ids, err := requests.orgIdentities(ctx, policies, s.Tiers, in.Org)
	if err != nil {
		return nil, err
	}
	for _, id := range ids {
		for _, b := range requests.bounds(policies, id, s.now()) {
			if c := b.Policy.Limit.Calendar(); b.Policy.Name == in.Policy && c != nil && !slices.Contains(found, c) {
				found = append(found, c)
			}
		}
	}
	return found, nil
}

// UsageTopQuery selects the orgs that used most.
type UsageTopQuery struct {
	By     string    `query:"by"     default:"admitted" doc:"What to rank by. The cost without policy is a sum of tokens and of millionths of a US dollar: name a policy." enum:"admitted,denied,cost"`
	From   time.Time `query:"from"                      doc:"The begin; absent: last before to."`
	To     time.Time `query:"to"                        doc:"The end; absent: now."`
	Last   string    `query:"last"   maxLength:"32"     doc:"Instead of from: how long before to (30m, 24h, 7d). Default: 24h."     example:"7d"`
	Limit  int       `query:"limit"  default:"20"       doc:"The maximum number of orgs."                                           minimum:"1" maximum:"1000"`
	Policy string    `query:"policy" maxLength:"64"     doc:"What this policy did, instead of the requests themselves."             example:"daily"`
}

// defaultTop is the time that a ranking without a begin covers.
const defaultTop = 24 * time.Hour

// Resolve implements [huma.Resolver].
func (in *UsageTopQuery) Resolve(huma.Context) []error { return checkLast(in.Last, in.From) }

// checkLast returns the fault of a parameter last, which takes the place of from.
func checkLast(last string, from time.Time) []error {
	if last != "" && !from.IsZero() {
		return []error{fault("query.last", "takes the place of from: give only one of them", last)}
	}
	return checkSpan("query.last", last, 0)
}

// checkSpan returns the fault of a length of time at a path; most 0: any length is valid. An empty text is valid.
func checkSpan(path, text string, most time.Duration) []error {
	switch length, err := ParseDuration(text); {
	case text == "":
	case err != nil:
		return []error{fault(path, err.Error(), text)}
	case length <= 0 || length > longest || most > 0 && length > most:
		problem := "must be above 0"
		if most > 0 {
			problem += ", and at most " + most.String()
		}
		return []error{fault(path, problem, text)}
	}
	return nil
}

// spanOr returns the length of time in a text that checkSpan has checked, or the other one for an empty text.
func spanOr(text string, otherwise time.Duration) time.Duration {
	if length, err := ParseDuration(text); err == nil {
		return length
	}
	return otherwise
}

func (s *Server) usageTop(ctx context.Context, in *UsageTopQuery) (rows.UsageTop, error) {
	now := s.Now()
	q := rows.UsageTopQuery{By: in.By, From: in.From, To: in.To, Policy: in.Policy, Max: in.Limit}
	if q.To.IsZero() {
		q.To = now
	}
	if q.From.IsZero() {
		q.From = q.To.Add(-spanOr(in.Last, defaultTop))
	}
	return s.Rows.UsageTop(ctx, q, now)
}

func (s *Server) registerUsageExport() {
	at := &place{s, "/v1/ratelimit/usage", usageTag, readAccess, writeAccess}
	serve(s, at.operation("export-usage", http.MethodGet, "/export",
		"List what every org used in a month, by endpoint and day\n"+
			"An item for each org, endpoint and day of UTC, ordered by day, org, endpoint and policy. A day is "+
			"closed an hour or more after its end, when all nodes have reported it, and then its items do not change. "+
			"Without policy or by an item counts each request once, and has no cost. Days are kept for 3 years.\n\n"+
			"With period and policy instead of month: an item for each org and endpoint, of what the policy did in its "+
			"current or previous period of that org, such as a month of the org's time zone.\n\n"+
			"With by=model: what calls of language models used, by day, org and model, in models."),
		"export usage", s.exportUsage)
	serve(s, at.operation("list-quota-notices", http.MethodGet, "/notices",
		"List the orgs that have used 50, 80 or 100 % of a quota, newest first\n"+
			"A quota is a limit of an org with a window of an hour or more. A notice is written when a threshold "+
			"is reached, once in a window."), "read notices of quotas", s.quotaNotices)
}

// UsageExportQuery has the parameters of an export.
type UsageExportQuery struct {
	Month  string                 `query:"month"                  doc:"The month of UTC, such as 2026-11; required unless period is given."      pattern:"^[0-9]{4}-[0-9]{2}$" example:"2026-11"`
	Period string                 `query:"period"                 doc:"Write what the policy did in this period of each org: current or previous." enum:"current,previous"`
	Open   bool                   `query:"open"                   doc:"Also write days that are not closed, whose rows may still change."`
	Policy string                 `query:"policy" maxLength:"64"  doc:"Write what this policy did, instead of the requests."                     example:"daily"`
	By     string                 `query:"by"     enum:"policy,model" doc:"Also write a row for each policy, or write what calls of models used instead." value:"group"`
	Limit  int                    `query:"limit"  default:"1000"  doc:"The maximum number of items."                                             minimum:"1" maximum:"10000"`
	Cursor cursorTo[exportCursor] `query:"cursor" doc:"The next_cursor of the previous page." maxLength:"16384"`
}

// Resolve implements [huma.Resolver].
func (in *UsageExportQuery) Resolve(huma.Context) (faults []error) {
	if in.Period != "" {
		if in.Policy == "" || in.Month != "" || in.Open || in.By != "" {
			faults = append(faults, fault("query.period", "needs policy, and takes the place of month, open and by", in.Period))
		}
		return faults
	}
	first, err := in.month()
	if err != nil {
		faults = append(faults, fault("query.month", "must be a month such as 2026-11", in.Month))
	}
	if in.By != "" && in.Policy != "" {
		faults = append(faults, fault("query.by", "takes the place of policy: give only one of them", in.By))
	}
	place := in.Cursor.place()
	if in.Cursor != "" && (place.Day.Before(first) || place.Until.After(first.AddDate(0, 1, 0))) {
		faults = append(faults, fault("query.cursor", "must be a next_cursor returned by this list", in.Cursor))
	}
	return faults
}

func (in *UsageExportQuery) month() (time.Time, error) { return time.Parse("2006-01", in.Month) }

// exportCursor is the place of the last item of a page.
type exportCursor struct {
	Until time.Time // the end of the days that the first page selected: later pages have no others
	Day   time.Time
	After []string
}

// exportUsage returns a page of an export. Resolve has checked the input.
func (s *Server) exportUsage(ctx context.Context, in *UsageExportQuery) (page answers.UsageExport, err error) {
	page.ClosedUntil, err = s.Rows.UsageClosedUntil(ctx)
	if err != nil {
		return page, err
	}
	if in.Period != "" {
		return page, s.exportPeriods(ctx, in, &page)
	}
	first, _ := in.month()
	place := in.Cursor.place()
	if place.Day.IsZero() {
		place = exportCursor{Until: first.AddDate(0, 1, 0), Day: first}
		if !in.Open && page.ClosedUntil.Before(place.Until) {
			place.Until = page.ClosedUntil
		}
	}
	q := rows.UsageExportQuery{
		From: place.Day, To: place.Until, After: place.After, Open: in.Open, Policy: in.Policy, ByPolicy: in.By != "",
		Max: in.Limit + 1,
	}
	if in.By == "model" {
		page.Items = []rows.UsageExportRow{}
		page.Models, err = s.Rows.UsageExportModels(ctx, q)
		page.Models, page.NextCursor = cutPage(page.Models, in.Limit, place, func(m *rows.UsageModel) (string, []string) {
			return m.Day, []string{m.Tenant, m.Model}
		})
		return page, err
	}
	page.Items, err = s.Rows.UsageExport(ctx, q)
	page.Items, page.NextCursor = cutPage(page.Items, in.Limit, place, func(r *rows.UsageExportRow) (string, []string) {
		return r.Day, []string{r.Tenant, r.Endpoint, r.Ref}
	})
	return page, err
}

// cutPage returns a page of at most so many items, and the cursor behind its last one; "": there are no more.
func cutPage[T any](
	list []T, most int, place exportCursor, placeOf func(*T) (day string, after []string),
) ([]T, string) {
	if len(list) <= most {
		return list, ""
	}
	day, after := placeOf(&list[most-1])
	place.Day, _ = time.Parse(time.DateOnly, day) // as Postgres writes it
	place.After = after
	return list[:most], string(newCursor(place))
}

// exportPeriods adds to a page what a policy did in the current or previous period of each org that it applies to, by
// endpoint. A page has all items of an org.
func (s *Server) exportPeriods(ctx context.Context, in *UsageExportQuery, page *answers.UsageExport) error {
	const longest = 2 * 370 * day // two periods
	page.Items = []rows.UsageExportRow{}
	orgs, err := s.Rows.UsageTenants(ctx, s.Now().Add(-longest))
	if err != nil {
		return err
	}
	if after := in.Cursor.place().After; len(after) > 0 {
		orgs = orgs[sort.SearchStrings(orgs, after[0]+"\x00"):]
	}
	for _, org := range orgs {
		if len(page.Items) >= in.Limit {
			last := page.Items[len(page.Items)-1].Tenant
			page.NextCursor = string(newCursor(exportCursor{After: []string{last}}))
			return nil
		}
		calendars, err := s.calendarsOf(ctx, &usageHistoryInput{OrgPath: OrgPath{org}, Policy: in.Policy})
		if err != nil {
			return err
		}
		for _, of := range calendars {
			q := rows.UsageQuery{Tenant: org, Policy: in.Policy, ByEndpoint: true}
			found, err := s.periodHistory(ctx, q, of, in.Period)
			if err != nil {
				return err
			}
			page.Items = append(page.Items, exportItems(&found, found.From.In(of.Location()).Format(time.DateOnly))...)
		}
	}
	return nil
}

// exportItems returns the items of an export that a history of a period has, whose first day is given.
func exportItems(found *rows.UsageHistory, day string) (items []rows.UsageExportRow) {
	for _, r := range found.Items {
		items = append(items, rows.UsageExportRow{
			Day: day, Tenant: found.Tenant, Endpoint: *r.Endpoint, Policy: *r.Policy, PolicyID: r.PolicyID, Tier: r.Tier,
			Admitted: r.Admitted, Soft: r.Soft, Denied: r.Denied, ShadowDenied: r.ShadowDenied, Late: r.Late, Cost: r.Cost,
			CostUSD: r.CostUSD,
			Closed:  !found.ClosedUntil.Before(found.To),
			UsagePeriodOf: rows.UsagePeriodOf{
				Period: found.Period, TimeZone: found.TimeZone, From: found.From, To: found.To, Inexact: found.Inexact,
			},
		})
	}
	return items
}

// QuotaNoticeQuery has the parameters of a list of notices.
type QuotaNoticeQuery struct {
	OfTenant
	Last  string `query:"last"  default:"24h" doc:"List the notices of this duration until now."  maxLength:"32" value:"duration" example:"7d"`
	Limit int    `query:"limit" default:"100" doc:"List at most this number of notices."          minimum:"1"    maximum:"1000"   value:"number"`
}

// Resolve implements [huma.Resolver].
func (in *QuotaNoticeQuery) Resolve(huma.Context) []error { return checkSpan("query.last", in.Last, 0) }

func (s *Server) quotaNotices(ctx context.Context, in *QuotaNoticeQuery) (list answers.QuotaNotices, err error) {
	list.Items, err = s.Rows.QuotaNotices(ctx, in.Tenant, s.Now().Add(-spanOr(in.Last, 0)), in.Limit)
	return list, err
}
