package api

import (
	"context"
	"net/http"
	"strings"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/control/answers"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/database/rows"
)

// registerAbuse adds the operations on what abuse detection remembers.
func (s *Server) registerAbuse() {
	at := &place{s, "/v1", "abuse", readAccess, writeAccess}
	list(s, at.operation("list-abuse", http.MethodGet, "/ratelimit/abuse", "List the orgs on the ladder of abuse "+
		"detection\nThose on the highest step are first. In mode shadow the steps have no effect."), "list abuse",
		asItIs[rows.AbuseState], func(a rows.AbuseState) string { return answers.Cursor(a.Step + " " + a.Tenant) },
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
			return answers.OrgForgiven{Org: f.Tenant, Until: f.Until, Overrides: f.Overrides, Written: w}
		}, s.forgive)
}

type listAbuseInput struct {
	rows.AbuseFilter
	NamePaging
}

// forgiveBody says for how long, and why.
type forgiveBody struct {
	For    string `json:"for,omitempty" maxLength:"32"   doc:"How long to keep the org off the ladder, at most 30d. Default: 1h." example:"2h"`
	Reason reason `json:"reason"        maxLength:"1024" doc:"Why; recorded in the audit."                                          example:"a load test"`
}

// Resolve implements [huma.Resolver].
func (b *forgiveBody) Resolve(huma.Context) []error {
	return checkSpan("body.for", b.For, rows.MaxPardon)
}

type forgiveInput struct {
	OrgPath
	Once
	Waiting
	Body forgiveBody
}

// forgive takes an org off the ladder.
func (s *Server) forgive(ctx context.Context, in *forgiveInput) (done[rows.Forgiven], error) {
	c := changeOnce(ctx, in.Once, in.Body.Reason, in.Body)
	return done[rows.Forgiven]{change: c}.with(s.Rows.ForgiveAbuse(ctx, c, in.Org, spanOr(in.Body.For, time.Hour)))
}
