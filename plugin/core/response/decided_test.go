package response_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/decision"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/identity"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/limit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/resolve"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/response"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

const (
	now    = 1_700_000_000 * limit.Second
	second = limit.Second
)

// limits are what the tests' decisions are about: a burst, a quota, and one that is only watched.
var limits = []schema.Limit{
	{Name: "burst", Scope: "tenant", Limit: 50, WindowSize: 1, Burst: 100},
	{Name: "daily", Scope: "tenant", Limit: 15000, WindowSize: 86400, Algorithm: "fixed_window"},
	{Name: "candidate", Scope: "tenant", Limit: 10, WindowSize: 60, Mode: "shadow"},
}

// answers are what a store answers for the limits, in their order: how many remain, when all are there again, how long
// to wait.
type answers []decision.Status

func status(remaining int64, resetIn, wait limit.Micros) decision.Status {
	return decision.Status{
		Status: limit.Status{Remaining: remaining, Reset: now + resetIn}, Wait: wait, Now: now, Source: decision.Memory,
	}
}

func soft(resetIn limit.Micros) decision.Status {
	s := status(0, resetIn, 0)
	s.Soft = true
	return s
}

var (
	roomy  = answers{status(98, 1_500_000, 0), status(14_990, 6400*second, 0), status(9, 6*second, 0)}
	denies = answers{status(0, 2*second, 20_000), status(14_990, 6400*second, 0), status(0, 60*second, 6*second)}
)

// decide is the decision of a request of tenant acme for which the store gave these answers.
func decide(t testing.TB, given answers, list ...schema.Limit) *decision.Decision {
	t.Helper()
	config := schema.Config{
		Tiers: []schema.Tier{{Name: "one", Limits: append(append([]schema.Limit{}, limits...), list...)}},
	}.WithDefaults()
	snapshot, err := resolve.FromConfig(config)
	require.NoError(t, err)
	d := new(decision.Decision)
	d.Reset()
	d.Identity.Tenant = identity.Name{Kind: identity.Tenant, ID: "acme"}
	snapshot.ResolveAt(&d.Identity, 0, &d.Resolution)
	d.Resolution.Bounds = d.Resolution.Bounds[:len(given)]
	d.Grow()
	copy(d.Statuses, given)
	d.Combine()
	return d
}

// without is a decision that no bound took part in.
func without(reason decision.Reason, denied bool) *decision.Decision {
	d := new(decision.Decision)
	d.Reset()
	if d.Reason = reason; denied {
		d.Deny(reason)
	}
	return d
}

// failing is an answer that did not come; wait is how long Redis is expected to be away.
func failing(wait limit.Micros) decision.Status {
	return decision.Status{Wait: wait, Failure: decision.Unavailable}
}

// shared is this node's answer in place of Redis's.
func shared(s decision.Status) decision.Status {
	s.Source, s.Failure = decision.Local, decision.TimedOut
	return s
}

func after(d *decision.Decision, wait limit.Micros) *decision.Decision {
	d.RetryAfter = wait
	return d
}

func costing(d *decision.Decision, cost int64) *decision.Decision {
	for i := range d.Resolution.Bounds {
		d.Resolution.Bounds[i].Cost = cost
	}
	return d
}

// holding are answers of which the first is of a bucket that holds less than its limit.
func holding(capacity int64, given answers) answers {
	given = append(answers{}, given...)
	given[0].Capacity = capacity
	return given
}

func renderer(config schema.Config) *response.Renderer {
	return response.New(config.WithDefaults(), func(n int64) int64 { return n - 1 })
}

func render(config schema.Config, d *decision.Decision, grpc bool) *response.Response {
	r := new(response.Response)
	renderer(config).Render(d, grpc, r)
	return r
}
