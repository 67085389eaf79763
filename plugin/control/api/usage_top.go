package api

import (
	"context"
	"errors"
	"net/http"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/database/rows"
)

// registerUsageTop adds the operation that ranks orgs by what they used.
func (s *Server) registerUsageTop() {
	serve(s, operation(huma.Operation{
		OperationID: "get-usage-top", Method: http.MethodGet, Path: "/v1/ratelimit/usage/top",
		Tags: []string{usageTag}, Summary: "List the orgs that used most",
		Description: "The requests of all processes that report usage, without the last seconds. They are summed up from " +
			"minutes for at most 2 hours, from hours for at most 2 days, else from days. A time of which shorter steps may " +
			"have been dropped is summed up from longer ones.",
	}, readAccess), "rank the usage", s.usageTop)
}

type usageTopInput struct {
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
func (in *usageTopInput) Resolve(huma.Context) []error {
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

func (s *Server) usageTop(ctx context.Context, in *usageTopInput) (rows.UsageTop, error) {
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
