package api

import (
	"cmp"
	"context"
	"errors"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/control/answers"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/decision"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/database/rows"
)

const denialsPath = "/v1/ratelimit/denials"

const aboutDenials = "Nodes report a sample every few seconds: where a tenant is denied often, an item counts several denials. " +
	"Denials are kept for at most 7 days, the last 5000 items of an org."

func (s *Server) registerDenials() {
	at := func(path string, reads access) *place { return &place{s, path, usageTag, reads, writeAccess} }
	serve(s, at(denialsPath, readAccess).operation("list-denials", http.MethodGet, "",
		"List recent denials, newest first\n"+aboutDenials), "list denials",
		func(ctx context.Context, in *listDenialsInput) (answers.DenialList, error) {
			return s.denials(ctx, &in.DenialPage, in.Tenant)
		})
	serve(s, at(orgPath, orgAccess).operation("list-org-denials", http.MethodGet, "/ratelimit/denials",
		"List recent denials of an org, newest first\n"+aboutDenials+" The token of an org reads "+
			"no numbers of limits that orgs share, and those that deny beside a limit of its own not at all."),
		"list denials", func(ctx context.Context, in *listOrgDenialsInput) (answers.DenialList, error) {
			return s.denials(ctx, &in.DenialPage, in.Org)
		})
	const groups = "Group recent denials by org, limit, reason and endpoint\nThe other fields are of the last " +
		"denial. A group has neither a user nor an address, and no advice: it is not the same for all of its requests. "
	serve(s, at("/v1/ratelimit/denial-groups", readAccess).operation("list-denial-groups", http.MethodGet, "",
		groups+aboutDenials), "group denials",
		func(ctx context.Context, in *denialGroupsInput) (answers.DenialGroups, error) {
			return s.denialGroups(ctx, &in.DenialGroupQuery, in.Tenant)
		})
	serve(s, at(orgPath, orgAccess).operation("list-org-denial-groups", http.MethodGet, "/ratelimit/denial-groups",
		groups+aboutDenials+" The token of an org reads what it reads of each denial."), "group denials",
		func(ctx context.Context, in *orgDenialGroupsInput) (answers.DenialGroups, error) {
			return s.denialGroups(ctx, &in.DenialGroupQuery, in.Org)
		})
	serve(s, at(denialsPath, decideAccess).operation("get-denial", http.MethodGet, "/{request_id}",
		"Get what denied a request\nOne item for each limit that denied the request: all of them must admit it. "+
			aboutDenials+" An item names at most 32 requests. The token of an org finds requests of this org only.",
		http.StatusNotFound), "get a denial", s.getDenial)
}

// DenialPage selects a page of recent denials.
type DenialPage struct {
	Policy   string             `query:"policy"                                            doc:"Only by this policy."                                    maxLength:"256"`
	Endpoint string             `query:"endpoint"                                          doc:"Only of this endpoint: a pattern, or a route's name."    maxLength:"1024"`
	Since    sinceText          `query:"since"                                             doc:"Only after this time, or in the last 15m, 24h or 7d."    maxLength:"64" example:"1h"`
	Limit    int                `query:"limit"    minimum:"1" maximum:"1000" default:"100" doc:"The maximum number of items."`
	After    int64              `query:"after"    minimum:"0"                              doc:"Only what was reported after the item of this id."`
	Cursor   cursorTo[[2]int64] `query:"cursor"                                            doc:"The next of the previous page."                          maxLength:"64"`
}

// sinceText is a time, or how long ago.
type sinceText string

func (t *sinceText) Resolve(_ huma.Context, at *huma.PathBuffer) []error {
	if _, err := t.before(time.Time{}); err != nil {
		return []error{fault(at.String(), err.Error(), string(*t))}
	}
	return nil
}

// before returns the time, given the current one; zero: none.
func (t *sinceText) before(now time.Time) (time.Time, error) {
	text := string(*t)
	if text == "" {
		return time.Time{}, nil
	}
	if ago, err := ParseDuration(text); err == nil {
		return now.Add(-ago), nil
	}
	at, err := time.Parse(time.RFC3339, text)
	if err != nil || at.Year() < 1970 || at.Year() > 9999 {
		return time.Time{}, errors.New("must be a time such as 2026-11-22T14:00:00Z, or how long ago, such as 15m or 7d")
	}
	return at, nil
}

func (p *DenialPage) filter(now time.Time) rows.DenialFilter {
	since, _ := p.Since.before(now) // Resolve has checked it
	f := rows.DenialFilter{Policy: p.Policy, Endpoint: p.Endpoint, Since: since, AfterID: p.After, Max: p.Limit + 1}
	if last := p.Cursor.place(); last[1] > 0 {
		f.Before = rows.DenialCursor{At: time.UnixMicro(max(last[0], 0)), ID: last[1]}
	}
	return f
}

type listDenialsInput struct {
	OfTenant
	DenialPage
}

type listOrgDenialsInput struct {
	OrgPath
	DenialPage
}

// denials returns a page of recent denials as the caller reads them. tenant "" selects all.
func (s *Server) denials(ctx context.Context, page *DenialPage, tenant string) (list answers.DenialList, err error) {
	v := s.viewOf(callerOf(ctx))
	f := page.filter(s.Now())
	f.Tenant, f.AsTenant = tenant, v.tenant
	found, err := s.Rows.Denials(ctx, f)
	if len(found) > page.Limit {
		found = found[:page.Limit]
		last := found[page.Limit-1]
		list.Next = string(newCursor([2]int64{last.At.UnixMicro(), last.ID}))
	}
	v.addDenials(&list, found)
	return list, err
}

// DenialGroupQuery selects groups of recent denials.
type DenialGroupQuery struct {
	Policy   string `query:"policy"   maxLength:"256"  doc:"Only by this policy."`
	Endpoint string `query:"endpoint" maxLength:"1024" doc:"Only of this endpoint: a pattern, or a route's name."`
	Last     string `query:"last"     maxLength:"32"   doc:"Denials of this time until now." default:"24h" example:"7d"`
	Limit    int    `query:"limit"    minimum:"1" maximum:"1000" default:"100" doc:"The maximum number of items."`
}

// Resolve implements [huma.Resolver].
func (in *DenialGroupQuery) Resolve(huma.Context) []error { return checkSpan("query.last", in.Last, 0) }

type denialGroupsInput struct {
	OfTenant
	DenialGroupQuery
}

type orgDenialGroupsInput struct {
	OrgPath
	DenialGroupQuery
}

// trendSteps are the steps that a trend can have: the shortest of at most maxTrend.
var trendSteps = [...]time.Duration{
	time.Minute, 15 * time.Minute, time.Hour, 6 * time.Hour, 24 * time.Hour, 7 * 24 * time.Hour,
}

const maxTrend = 100

// denialGroups returns groups of recent denials as the caller reads them. tenant "" selects all.
func (s *Server) denialGroups(
	ctx context.Context, in *DenialGroupQuery, tenant string,
) (answers.DenialGroups, error) {
	v, now, length := s.viewOf(callerOf(ctx)), s.Now().UTC(), min(spanOr(in.Last, 0), maxTrend*trendSteps[5])
	step := trendSteps[slices.IndexFunc(trendSteps[:], func(d time.Duration) bool { return length <= maxTrend*d })]
	steps := int((length + step - 1) / step)
	from := now.Truncate(step).Add(step - time.Duration(steps)*step)
	list := answers.DenialGroups{From: from, Step: int64(step / time.Second), Items: []answers.DenialGroup{}}
	found, err := s.Rows.DenialGroups(ctx, rows.DenialFilter{
		Tenant: tenant, AsTenant: v.tenant, Policy: in.Policy, Endpoint: in.Endpoint, Since: from, Max: in.Limit,
	}, step)
	for i := range found {
		g := answers.DenialGroup{Denial: v.denial(found[i].RecentDenial), Counts: make([]int64, steps)}
		g.User, g.IPHash, g.RetryAfter, g.RetryAt, g.WouldAdmit = "", "", nil, nil, ""
		for at, count := range found[i].Trend {
			g.Counts[min(max(at, 0), steps-1)] += count // the clock of a node may be ahead
		}
		list.Items = append(list.Items, g)
	}
	return list, err
}

func (v view) addDenials(to *answers.DenialList, found []rows.RecentDenial) {
	to.Denials = []answers.Denial{}
	for i := range found {
		to.Denials = append(to.Denials, v.denial(found[i]))
		to.Sampled = to.Sampled || found[i].Count > 1
	}
}

type getDenialInput struct {
	OfTenant
	RequestID string `path:"request_id" minLength:"1" maxLength:"64" pattern:"^[!-~]+$" patternDescription:"printable ASCII" doc:"The X-Kong-Request-Id of the response." example:"23362be3186b8717e61304664ec43cb1"`
}

// getDenial returns what denied a request. To the token of an org the requests of others are unknown.
func (s *Server) getDenial(ctx context.Context, in *getDenialInput) (list answers.DenialList, err error) {
	caller := callerOf(ctx)
	v := s.viewOf(caller)
	found, err := s.Rows.DenialsOf(ctx, rows.DenialFilter{
		RequestID: in.RequestID, Tenant: cmp.Or(caller.Org, in.Tenant), AsTenant: v.tenant,
	})
	v.addDenials(&list, found)
	return list, err
}

// denial returns a denial as the caller reads it, without the numbers of limits that it may not read.
func (v view) denial(d rows.RecentDenial) answers.Denial {
	if v.tenant {
		// The id shows how many others there are, and the rest may be those of an address, which are internal.
		d.ID, d.Override, d.Penalty = 0, nil, nil
	}
	if scope, ok := policy.ScopeOf(d.Scope); d.Scope != "" && !(ok && v.readsScope(scope)) {
		d.Limit, d.WindowSize, d.RetryAfter, d.Denier = nil, nil, nil, decision.Denier{Tier: d.Tier}
	}
	out := answers.Denial{
		ID: d.ID, At: d.At, Org: d.Tenant, Endpoint: d.Endpoint, Policy: d.Policy, Limit: d.Limit, Scope: d.Scope,
		Reason: d.Reason, Result: "denied", Shadow: d.Shadow, Count: d.Count, User: d.User, IPHash: d.IP,
		RetryAfter: d.RetryAfter, Denier: d.Denier, RetryAt: d.RetryAt(), WouldAdmit: d.WouldAdmit(),
	}
	if d.Shadow {
		out.Result = "shadow_denied"
	}
	if d.WindowSize != nil {
		out.Window = windowText(*d.WindowSize)
	}
	return out
}

// windowText returns a window in its largest unit, such as 1m or 90s.
func windowText(seconds int64) string {
	for _, unit := range [...]struct {
		seconds int64
		name    string
	}{{86400, "d"}, {3600, "h"}, {60, "m"}} {
		if seconds > 0 && seconds%unit.seconds == 0 {
			return strconv.FormatInt(seconds/unit.seconds, 10) + unit.name
		}
	}
	return strconv.FormatInt(seconds, 10) + "s"
}

func (s *Server) registerAbuse() {
	at := &place{s, "/v1", "abuse", readAccess, writeAccess}
	list(s, at.operation("list-abuse", http.MethodGet, "/ratelimit/abuse", "List the orgs on the ladder of abuse "+
		"detection\nThose on the highest step are first. In mode shadow the steps have no effect."), "list abuse",
		asItIs[rows.AbuseState], func(a rows.AbuseState) string { return a.Step + " " + a.Tenant },
		func(ctx context.Context, in *listAbuseInput) ([]rows.AbuseState, error) {
			last, most := in.page()
			in.After.Step, in.After.Tenant, _ = strings.Cut(last, " ")
			in.Max = most
			return s.Rows.Abuse(ctx, in.AbuseFilter)
		})
	serve(s, at.operation("get-org-abuse", http.MethodGet, "/orgs/{org}/ratelimit/abuse",
		"Show why an org is on its step, and its last moves"), "read the abuse of an org",
		func(ctx context.Context, in *OrgPath) (rows.AbuseHistory, error) { return s.Rows.AbuseOf(ctx, in.Org) })
	change(s, at.operation("forgive-org", http.MethodPost, "/orgs/{org}/ratelimit/abuse/forgive",
		"Take an org off the ladder of abuse detection, and end its penalty", http.StatusNotFound), "forgive an org",
		func(f rows.Forgiven, w answers.Written) answers.OrgForgiven {
			return answers.OrgForgiven{Forgiven: f, Written: w}
		}, s.forgive)
}

type listAbuseInput struct {
	rows.AbuseFilter
	Paging[string]
}

type forgiveBody struct {
	For    string `json:"for,omitempty" maxLength:"32"   doc:"How long to keep the org off the ladder, at most 30d. Default: 1h." example:"2h"`
	Reason reason `json:"reason"        maxLength:"1024" doc:"Why; recorded in the audit."                                          example:"a load test"`
}

func (b *forgiveBody) Resolve(huma.Context) []error {
	return checkSpan("body.for", b.For, rows.MaxPardon)
}

type forgiveInput struct {
	OrgPath
	Once
	Writing
	Body forgiveBody
}

func (s *Server) forgive(ctx context.Context, in *forgiveInput) (done[rows.Forgiven], error) {
	c := changeOnce(ctx, in.Once, in.Body.Reason, in.Body)
	return done[rows.Forgiven]{change: c}.with(s.Rows.ForgiveAbuse(ctx, c, in.Org, spanOr(in.Body.For, time.Hour)))
}
