package reservation_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/await"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/redistest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/decision"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/identity"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/limit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/resolve"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/settle"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

const dollarsReserved = 2000 // millionths

// modelPlan has a budget of all models, and one of gpt-4o alone. The price of gpt-4o changes at second 100 and at 200.
func modelPlan(t *testing.T, namespace string) *resolve.Plan {
	t.Helper()
	budget := func(name string, match *schema.Match) schema.Limit {
		return schema.Limit{
			Name: name, Scope: schema.ScopeTenant, Unit: schema.UnitUSD, Limit: 1_000_000_000_000, WindowSize: 31_536_000,
			Algorithm: schema.AlgorithmFixedWindow, Match: match, Settle: &schema.Settle{
				Sources: []schema.SettleSource{{From: schema.SourcePrices}}, Reserve: dollarsReserved,
			},
		}
	}
	config := schema.Config{Namespace: namespace}
	config.LLM.Prices = []schema.ModelPrice{
		{Model: "gpt-4o*", Prompt: 2_500_000, Completion: 10_000_000}, {Model: "claude", Prompt: 1, Completion: 75_000_001},
	}
	config.Tiers = []schema.Tier{{Name: "a", Limits: []schema.Limit{
		budget("all", nil), budget("of-4o", &schema.Match{Model: "gpt-4o*"}),
	}}}
	plan, err := resolve.FromConfig(config.WithDefaults())
	require.NoError(t, err)
	var rows policy.Rows
	for i, starts := range []int64{100, 200} {
		price := schema.ModelPrice{Model: "gpt-4o*", Prompt: schema.Price(3_333_333 * starts), Completion: 7}
		rows.Prices = append(rows.Prices, policy.PriceRow{ID: int64(i + 1), DatedPrice: schema.DatedPrice{
			Namespace: namespace, ModelPrice: price, StartsAt: time.Unix(starts, 0),
		}})
	}
	snapshot, faults := policy.NewSnapshot(rows, nil)
	require.Empty(t, faults)
	return plan.With(snapshot)
}

// call is a request for a model, and how it ended.
type call struct {
	second             int64
	claims, model      string // "": unknown
	prompt, completion int64
	end                string
}

func someCall(t *rapid.T) call {
	models := rapid.SampledFrom([]string{"gpt-4o", "gpt-4o-mini", "claude", "foreign"})
	return call{
		second: rapid.Int64Range(98, 202).Draw(t, "second"), model: models.Draw(t, "model"),
		claims: rapid.SampledFrom([]string{"", "", "gpt-4o", "claude"}).Draw(t, "claim"),
		prompt: rapid.Int64Range(0, 5000).Draw(t, "prompt"), completion: rapid.Int64Range(0, 5000).Draw(t, "completion"),
		end: rapid.SampledFrom([]string{"used", "used", "used", "streamed", "without usage", "failed"}).Draw(t, "end"),
	}
}

// Read implements reservation.Source.
func (c call) Read(_ context.Context, needs settle.Needs, a *settle.Answer) error {
	*a = settle.Answer{Status: 200, Source: settle.SourceService, Tried: true}
	kind, usage := "application/json", fmt.Sprintf(`{"prompt_tokens":%d,"completion_tokens":%d}`, c.prompt, c.completion)
	switch c.end {
	case "failed":
		a.Source = settle.SourceError
	case "streamed":
		kind = "text/event-stream"
	case "without usage":
		usage = "{}"
	}
	if needs.Log {
		a.Log = settle.ParseLog(fmt.Appendf(nil, `{"response":{"headers":{"content-type":%q}},
			"ai":{"proxy":{"meta":{"response_model":%q,"provider_name":"p"},"usage":%s}}}`, kind, c.model, usage))
	}
	return nil
}

// costs returns what the call costs of both budgets: by the prices at its second, or its reservation where its cost is
// unknown.
func (c call) costs() (all, of4o int64) {
	is4o := c.model == "gpt-4o" || c.model == "gpt-4o-mini"
	prompt, completion := int64(1), int64(75_000_001)
	switch {
	case is4o && c.second >= 200:
		prompt, completion = 666_666_600, 7
	case is4o && c.second >= 100:
		prompt, completion = 333_333_300, 7
	case is4o:
		prompt, completion = 2_500_000, 10_000_000
	}
	cost := (c.prompt*prompt + c.completion*completion + 999_999) / 1_000_000
	switch {
	case c.end == "failed":
		return 0, 0
	case c.end != "used" || c.model == "foreign":
		cost = dollarsReserved
	}
	if !is4o {
		return cost, 0
	}
	return cost, cost // of gpt-4o also if the call has claimed another model, and so has reserved nothing
}

// reserveCall admits a call, which came at its second.
func (p *process) reserveCall(t require.TestingT, plan *resolve.Plan, c call) (token string, bounds []policy.Bound) {
	var d decision.Decision
	d.Reset()
	d.Identity = identity.Identity{Tenant: identity.Name{Kind: identity.Tenant, ID: "acme"}, Model: c.claims}
	plan.ResolveAt(&d.Identity, limit.Micros(c.second)*limit.Second, &d.Resolution)
	d.Grow()
	require.NoError(t, p.store.Take(p.t.Context(), d.Resolution.Bounds, d.Statuses))
	d.Combine()
	require.False(t, d.Denied() || d.Resolution.Unpriced)
	return p.keeper.Keep(&d), d.Resolution.Bounds
}

func TestTheChargeOfAllCallsIsTheSumOfTheirPricesOverChangesAndKills(t *testing.T) {
	server := redistest.Single(t)
	config := inRedis(server)
	killed, next := newProcess(t, config), newProcess(t, config)
	runs := 0
	rapid.Check(t, func(rt *rapid.T) {
		runs++
		plan := modelPlan(t, fmt.Sprintf("n%d", runs))
		var all, of4o int64
		calls := rapid.SliceOfN(rapid.Custom(someCall), 1, 8).Draw(rt, "calls")
		tokens, bounds := make([]string, len(calls)), []policy.Bound(nil)
		for i, c := range calls {
			tokens[i], bounds = killed.reserveCall(rt, plan, c)
			cost, cost4o := c.costs()
			all, of4o = all+cost, of4o+cost4o
		}
		await.That(t, "the records", func() bool { return len(recordsIn(t, server, false)) == len(calls) })
		for i, c := range calls {
			processes := rapid.SampledFrom([][]*process{{killed}, {next}, {next}, {next, killed}}).Draw(rt, "log phases in")
			for _, p := range processes {
				require.NoError(rt, p.table.Settle(t.Context(), tokens[i], c))
			}
		}
		assert.Equal(rt, [2]int64{all, of4o}, [2]int64{next.used(bounds[0]), next.used(bounds[1])}, "%+v", calls)
	})
}
