package api_test

import (
	"fmt"
	"net/http"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/control/api"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

// budgets is a config with 20 USD a year for each org, of which at most 2 USD are for gpt-4o, and 100,000 tokens.
func budgets() schema.Config {
	byPrices := &schema.Settle{Sources: []schema.SettleSource{{From: schema.SourcePrices}}, Reserve: 20_000}
	money := schema.Limit{
		Name: "llm-year", Scope: "tenant", Unit: schema.UnitUSD, Limit: 20_000_000, WindowSize: 31_536_000,
		Algorithm: "fixed_window", Settle: byPrices,
	}
	large := money
	large.Name, large.Limit, large.Match = "gpt-4o-year", 2_000_000, &schema.Match{Model: "gpt-4o"}
	tokens := schema.Limit{
		Name: "llm-tokens", Scope: "tenant", Limit: 100_000, WindowSize: 31_536_000, Algorithm: "fixed_window",
		Settle: &schema.Settle{Sources: []schema.SettleSource{{From: "shared.llm_tokens"}}, Reserve: 150},
	}
	return schema.Config{
		OnMissingUser: "skip", TenantFrom: []string{"consumer.custom_id"}, DefaultTier: "a",
		LLM: schema.LLM{Prices: []schema.ModelPrice{
			{Model: "gpt-4o", Prompt: 2_500_000, Completion: 10_000_000},
			{Model: "gpt-4o-mini", Prompt: 150_000, Completion: 600_000},
		}},
		Tiers: []schema.Tier{{Name: "a", Limits: []schema.Limit{money, large, tokens}}},
	}.WithDefaults()
}

// budgeted returns a world with these limits.
func budgeted(t *testing.T, config schema.Config) *reserving {
	t.Helper()
	r := &reserving{planned: planning(t, config, policy.Rows{})}
	r.records = r.store.Records("default")
	r.world = r.replica()
	return r
}

// uses settles to a use, and returns what each limit that settles was charged in all, by its name and outcome.
func (r *reserving) uses(id, use string, reserved map[string]int64) map[string]int64 {
	r.Helper()
	a := r.want(r.as("POST", "/v1/ratelimit/settle", fmt.Sprintf(`{"id":%q,%s}`, id, use)), http.StatusOK)
	charged := map[string]int64{}
	for _, l := range read[api.Settled](r.world, a).Limits {
		charged[l.Policy+" "+l.Unit+" "+l.Outcome] = reserved[l.Policy] + l.Charged - l.Refunded
	}
	return charged
}

func TestASettlementThatStatesACallIsChargedByThePricesOfItsModel(t *testing.T) {
	t.Parallel()
	r := budgeted(t, budgets())
	for i, test := range []struct{ check, use, year, ofLarge, tokens string }{
		{"", `"used":{"model":"gpt-4o","prompt_tokens":1000,"completion_tokens":500}`, "7500", "7500", "1500"},
		{"", `"used":{"model":"gpt-4o","prompt_tokens":1,"completion_tokens":0},"actual":70`, "3", "3", "70"},
		{"", `"used":{"model":"gpt-4o-mini","prompt_tokens":1000,"completion_tokens":500}`, "450", "0", "1500"},
		// Another model than the stated one has answered.
		{
			`,"model":"gpt-4o-mini"`, `"used":{"model":"gpt-4o","prompt_tokens":1000,"completion_tokens":500}`,
			"7500", "7500", "1500",
		},
		// A model without a price: the reservation stays.
		{"", `"used":{"model":"gpt-5","prompt_tokens":1000,"completion_tokens":500}`, "20000 unpriced", "0", "1500"},
	} {
		id := fmt.Sprint("chat-", i)
		reserved := map[string]int64{"llm-year": 20_000, "gpt-4o-year": 20_000, "llm-tokens": 1500}
		checked := r.checks(admin, fmt.Sprintf(`{"org_id":"acme","reserve":1500,"reservation_id":%q%s}`, id, test.check))
		require.True(t, checked.Allowed, "%+v", checked)
		for _, s := range checked.Statuses {
			if test.check != "" && s.Policy == "gpt-4o-year" {
				reserved[s.Policy] = 0
			}
			assert.Equal(t, reserved[s.Policy], s.Cost, "%s reserves", s.Policy)
			assert.Equal(t, s.Policy != "llm-tokens", s.Unit == schema.UnitUSD, "the unit of %s", s.Policy)
		}
		want := map[string]int64{}
		for name, charge := range map[string]string{
			"llm-year usd": test.year, "gpt-4o-year usd": test.ofLarge, "llm-tokens ": test.tokens,
		} {
			var n int64
			outcome := "settled"
			_, _ = fmt.Sscan(charge, &n, &outcome)
			want[name+" "+outcome] = n
		}
		for range 2 {
			assert.Equal(t, want, r.uses(id, test.use, reserved), test.use)
		}
		r.wantProblem(r.as("POST", "/v1/ratelimit/settle", fmt.Sprintf(`{"id":%q,"actual":1}`, id)),
			http.StatusConflict, "was settled to")
	}
}

func TestBadUsesAndChecksOfModelsAreDeclined(t *testing.T) {
	t.Parallel()
	r := budgeted(t, budgets())
	checked := r.checks(admin, `{"org_id":"acme","model":"gpt-5"}`)
	assert.True(t, !checked.Allowed && checked.Reason == "model_unpriced", "%+v", checked)
	r.checks(admin, `{"org_id":"acme","reserve":1500,"reservation_id":"chat"}`)
	for body, field := range map[string]string{
		`{"id":"chat"}`:              "body.actual",
		`{"id":"chat","actual":420}`: "body.used",
		`{"id":"chat","used":{"model":"gpt-4o","prompt_tokens":-1,"completion_tokens":1}}`:   "body.used.prompt_tokens",
		`{"id":"chat","used":{"model":"gpt-4o","prompt_tokens":1.5,"completion_tokens":1}}`:  "body.used.prompt_tokens",
		`{"id":"chat","used":{"model":"x","prompt_tokens":1,"completion_tokens":1e13}}`:      "body.used.completion_tokens",
		`{"id":"chat","used":{"model":"","prompt_tokens":1,"completion_tokens":1}}`:          "body.used.model",
		`{"id":"chat","used":{"model":"x","prompt_tokens":1,"completion_tokens":1,"usd":1}}`: "body.used.usd",
	} {
		r.wantFaults(r.as("POST", "/v1/ratelimit/settle", body), field)
	}
	r.checks(ofAcme, `{"org_id":"acme","reserve":1500,"reservation_id":"own"}`)
	const cheap = `{"id":"own","used":{"model":"gpt-4o-mini","prompt_tokens":1,"completion_tokens":1}}`
	r.wantProblem(r.do(call{ofAcme, "POST", "/v1/ratelimit/settle", cheap, nil}), http.StatusForbidden,
		"llm-year must be charged at least 0.02 USD")
}

func TestAnActualOfLimitsInMoneyAloneIsInMicroUSD(t *testing.T) {
	t.Parallel()
	config := budgets()
	config.Tiers[0].Limits = config.Tiers[0].Limits[:1]
	r := budgeted(t, config)
	reserved := r.reserves(admin, "acme", "chat", 5000)
	assert.Equal(t, int64(5000), reserved.Statuses[0].Cost)
	settled := r.settles(admin, "chat", 4200)
	assert.Equal(t, []api.SettledLimit{
		{Policy: "llm-year", Scope: "tenant", Refunded: 800, Unit: schema.UnitUSD, Outcome: "settled"},
	}, settled.Limits)
	denied := r.reserves(admin, "acme", "too-much", 20_000_001)
	assert.Contains(t, denied.Notes[0], "costs 20.000001 USD, and llm-year never has more than 20.00 USD at once")
}

func TestATokenOfAnOrgStatesAModelOnlyInADryRun(t *testing.T) {
	t.Parallel()
	r := budgeted(t, budgets())
	for _, claim := range []string{`"model":"gpt-4o-mini"`, `"provider":"openai"`} {
		body := `{"org_id":"acme","reserve":1500,"reservation_id":"chat",` + claim
		r.wantProblem(r.do(call{ofAcme, "POST", checkPath, body + `}`, nil}), http.StatusForbidden,
			"omit model and provider")
		r.checks(ofAcme, `{"org_id":"acme","dry_run":true,`+claim+`}`)
	}
	assert.True(t, r.checks(ofAcme, `{"org_id":"acme","reserve":1500,"reservation_id":"chat"}`).Allowed)
}
