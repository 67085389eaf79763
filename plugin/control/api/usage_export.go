package api

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"net/http"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/control/answers"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/database/rows"
)

// registerUsageExport adds the operations that read the usage of a month, and notices of quotas.
func (s *Server) registerUsageExport() {
	at := &place{s, "/v1/ratelimit/usage", usageTag, readAccess, writeAccess}
	serve(s, at.operation("export-usage", http.MethodGet, "/export",
		"List what every org used in a month, by endpoint and day\n"+
			"An item for each org, endpoint and day of UTC, ordered by day, org, endpoint and policy. A day is "+
			"closed an hour or more after its end, when all nodes have reported it, and then its items do not change. "+
			"Without policy or by an item counts each request once, and has no cost. Days are kept for 3 years."),
		"export usage", s.exportUsage)
	serve(s, at.operation("list-quota-notices", http.MethodGet, "/notices",
		"List the orgs that have used 50, 80 or 100 % of a quota, newest first\n"+
			"A quota is a limit of an org with a window of an hour or more. A notice is written when a threshold "+
			"is reached, once in a window."), "read notices of quotas", s.quotaNotices)
}

// UsageExportQuery has the parameters of an export.
type UsageExportQuery struct {
	Month  string `query:"month"  required:"true" doc:"The month of UTC, such as 2026-11."                                       pattern:"^[0-9]{4}-[0-9]{2}$" example:"2026-11"`
	Open   bool   `query:"open"                   doc:"Also write days that are not closed, whose rows may still change."`
	Policy string `query:"policy" maxLength:"64"  doc:"Write what this policy did, instead of the requests."                     example:"daily"`
	By     string `query:"by"     enum:"policy"   doc:"Also write a row for each group."                                         value:"group"`
	Limit  int    `query:"limit"  default:"1000"  doc:"The maximum number of items."                                             minimum:"1" maximum:"10000"`
	Cursor string `query:"cursor"                 doc:"The next_cursor of the previous page."                                    maxLength:"16384"`
}

// Resolve implements [huma.Resolver].
func (in *UsageExportQuery) Resolve(huma.Context) (faults []error) {
	if _, err := in.month(); err != nil {
		faults = append(faults, fault("query.month", "must be a month such as 2026-11", in.Month))
	}
	if in.By != "" && in.Policy != "" {
		faults = append(faults, fault("query.by", "takes the place of policy: give only one of them", in.By))
	}
	if _, err := readExportCursor(in.Cursor); err != nil {
		faults = append(faults, fault("query.cursor", "must be a next_cursor returned by this list", in.Cursor))
	}
	return faults
}

// month returns the begin of the month.
func (in *UsageExportQuery) month() (time.Time, error) { return time.Parse("2006-01", in.Month) }

// exportCursor is the place of the last item of a page.
type exportCursor struct {
	Until time.Time // the end of the days that the first page selected: later pages have no others
	Day   time.Time
	After []string
}

// readExportCursor returns the place in a cursor; "" has the zero place.
func readExportCursor(text string) (place exportCursor, err error) {
	if text == "" {
		return place, nil
	}
	raw, err := base64.RawURLEncoding.DecodeString(text)
	if err == nil {
		err = json.Unmarshal(raw, &place)
	}
	return place, err
}

// exportUsage returns a page of an export. Resolve has checked the input.
func (s *Server) exportUsage(ctx context.Context, in *UsageExportQuery) (page answers.UsageExport, err error) {
	page.ClosedUntil, err = s.Rows.UsageClosedUntil(ctx)
	if err != nil {
		return page, err
	}
	first, _ := in.month()
	place, _ := readExportCursor(in.Cursor)
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
	page.Items, err = s.Rows.UsageExport(ctx, q)
	if err == nil && len(page.Items) > in.Limit {
		page.Items = page.Items[:in.Limit]
		last := page.Items[in.Limit-1]
		place.Day, err = time.Parse(time.DateOnly, last.Day)
		place.After = []string{last.Tenant, last.Endpoint, last.Ref}
		text, _ := json.Marshal(place) // it has texts and times of 4-digit years only
		page.NextCursor = base64.RawURLEncoding.EncodeToString(text)
	}
	return page, err
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
