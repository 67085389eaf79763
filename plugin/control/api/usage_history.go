package api

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/database/rows"
)

// aboutHistory describes a usage history.
const aboutHistory = "A row has the requests of one step, of all processes that report usage. It lacks the last seconds, " +
	"and what a process could not report yet. Minutes are kept for 2 days, hours for 60 days, days for 3 years."

// Period selects the steps of a usage history. The zero value selects the defaults.
type Period struct {
	From    time.Time `query:"from"     doc:"The begin, cut to a whole step; absent: a day of minutes, 7 days of hours or 30 days before to."`
	To      time.Time `query:"to"       doc:"The end; absent: now."`
	Step    string    `query:"step"     doc:"The length of a step; absent: 1h. There are at most 1500 steps."                                        enum:"1m,1h,1d"`
	GroupBy string    `query:"group_by" doc:"A row for each endpoint, for each policy, or for both. Without policy, a row counts each request once." enum:"endpoint,policy,endpoint+policy"`
}

type usageHistoryInput struct {
	OrgPath
	Period
	Endpoint string `query:"endpoint" maxLength:"1024" doc:"Only requests of this endpoint: a policy's pattern, or a route's name."                                           example:"POST /records/{id}"`
	Policy   string `query:"policy"  maxLength:"64" doc:"What the policies of this name did, instead of the requests themselves, each in rows of its own. Not for the token of an org."                            example:"daily"`
}

// defaultSteps has the number of steps of a history without a begin.
var defaultSteps = map[string]time.Duration{"1m": 1440, "1h": 7 * 24, "1d": 30}

// query returns the query of a request at a time.
func (in *usageHistoryInput) query(now time.Time) (rows.UsageQuery, error) {
	name := cmp.Or(in.Step, "1h")
	step, err := rows.UsageStepOf(name)
	groups := strings.Split(in.GroupBy, "+")
	q := rows.UsageQuery{
		Tenant: in.Org, From: in.From, To: in.To, Step: step, Policy: in.Policy,
		ByEndpoint: slices.Contains(groups, "endpoint"), ByPolicy: slices.Contains(groups, "policy"),
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
	if err == nil {
		found, err = s.Rows.Usage(ctx, q)
	}
	if value := new(rows.InvalidError); errors.As(err, &value) {
		err = unprocessable(fault("query."+value.Field, value.Problem, nil))
	}
	return found, err
}

// UsageTopQuery selects the orgs that used most.
type UsageTopQuery struct {
	By     string    `query:"by"     default:"admitted" doc:"What to rank by."                                                      enum:"admitted,denied,cost"`
	From   time.Time `query:"from"                      doc:"The begin; absent: last before to."`
	To     time.Time `query:"to"                        doc:"The end; absent: now."`
	Last   string    `query:"last"   maxLength:"32"     doc:"Instead of from: how long before to (30m, 24h, 7d). Default: 24h."     example:"7d"`
	Limit  int       `query:"limit"  default:"20"       doc:"The maximum number of orgs."                                           minimum:"1" maximum:"1000"`
	Policy string    `query:"policy" maxLength:"64"     doc:"What this policy did, instead of the requests themselves."             example:"daily"`
}

// defaultTop is the time that a ranking without a begin covers.
const defaultTop = 24 * time.Hour

// Resolve implements [huma.Resolver].
func (in *UsageTopQuery) Resolve(huma.Context) []error {
	if in.Last == "" {
		return nil
	}
	if !in.From.IsZero() {
		return []error{fault("query.last", "takes the place of from: give only one of them", in.Last)}
	}
	return checkSpan("query.last", in.Last, 0)
}

// checkSpan returns the fault of a length of time at a path; most 0: any length is valid.
func checkSpan(path, text string, most time.Duration) []error {
	switch length, err := parseDuration(text); {
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
	if length, err := parseDuration(text); err == nil {
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
	found, err := s.Rows.UsageTop(ctx, q, now)
	if value := new(rows.InvalidError); errors.As(err, &value) {
		err = unprocessable(fault("query."+value.Field, value.Problem, nil))
	}
	return found, err
}
