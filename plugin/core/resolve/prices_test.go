package resolve_test

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/policytest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/identity"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/limit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/resolve"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

const money = `{trusted_headers: [X-Model], llm: {request_model: header.X-Model, request_provider: shared.provider, prices: [
	{model: "gpt-4o*", prompt: "2.50", completion: "10"}, {model: "gpt-4o-mini", prompt: "0.15", completion: "0.60"}]},
	tiers: [{name: a, limits: [
	{name: all, scope: tenant, unit: usd, limit: 20000000, window_size: 60,
	 settle: {sources: [{from: prices}], reserve: 20000}},
	{name: of-4o, scope: tenant, unit: usd, limit: 2000000, window_size: 60, match: {model: "gpt-4o*"},
	 settle: {sources: [{from: prices}], reserve: 20000}},
	{name: of-azure, scope: tenant, limit: 1000, window_size: 60, match: {provider: azure},
	 settle: {sources: [{from: log.ai.*.usage.total_tokens}], reserve: 30}},
	{name: plain, scope: tenant, limit: 1000, window_size: 1}]}]}`

func TestARequestReservesOfTheLimitsThatItsModelMayMatch(t *testing.T) {
	plan := compile(t, money)
	for _, test := range []struct {
		model, provider string
		want            map[string]int64 // what it reserves; absent: the limit is for another model
		unpriced        bool
	}{
		{"", "", map[string]int64{"all": 20_000, "of-4o": 20_000, "of-azure": 30, "plain": 1}, false},
		{"gpt-4o-2024", "", map[string]int64{"all": 20_000, "of-4o": 20_000, "of-azure": 30, "plain": 1}, false},
		{"gpt-4o-2024", "openai", map[string]int64{"all": 20_000, "of-4o": 20_000, "plain": 1}, false},
		{"claude", "azure", map[string]int64{"all": 20_000, "of-azure": 30, "plain": 1}, true},
		{"gpt-4", "", map[string]int64{"all": 20_000, "of-azure": 30, "plain": 1}, true},
	} {
		id := identity.Identity{Tenant: tenant("acme"), Model: test.model, Provider: test.provider}
		var r resolve.Resolution
		plan.ResolveAt(&id, 0, &r)
		got := map[string]int64{}
		for _, b := range r.Bounds {
			if b.Unmatched {
				assert.Zero(t, b.Cost, "%s of %+v", b.Policy.Name, test)
				continue
			}
			got[b.Policy.Name] = b.Cost
		}
		assert.Equal(t, test.want, got, "%s of %s", test.model, test.provider)
		assert.Equal(t, test.unpriced, r.Unpriced, "%s has no price", test.model)
		assert.True(t, r.Settles && r.Calls != nil, "it is settled by prices")
	}
}

func TestTheModelOfARequestIsReadWhereALimitNeedsItAlone(t *testing.T) {
	plan := compile(t, money)
	assert.Equal(t, []string{"X-Model", "shared.provider"}, plan.Rules.Headers)
	read := func(plan *resolve.Plan, headers []string, caller identity.Caller) (id identity.Identity) {
		request := identity.Request{Known: ^identity.Facts(0), Headers: headers, Caller: caller}
		request.Consumer.CustomID, request.Caller.Tenant = "acme", "acme"
		require.Zero(t, plan.Rules.Identify(&request, &id))
		return id
	}
	id := read(plan, []string{"gpt-4o", "openai"}, identity.Caller{})
	assert.Equal(t, [2]string{"gpt-4o", "openai"}, [2]string{id.Model, id.Provider})
	usage := compile(t, strings.Replace(money, "{trusted_headers", "{usage_only: true, trusted_headers", 1))
	assert.Empty(t, usage.Rules.Headers, "a route for usage alone charges no model")
	long := string(make([]byte, 129))
	assert.Empty(t, read(plan, []string{long, ""}, identity.Caller{}).Model, "a longer name than a pattern has is unknown")

	callers, err := resolve.ForCallers(policytest.Config(t, money))
	require.NoError(t, err)
	id = read(callers, nil, identity.Caller{Model: "gpt-4o", Provider: "openai"})
	assert.Equal(t, [2]string{"gpt-4o", "openai"}, [2]string{id.Model, id.Provider}, "as the caller states")

	without := compile(t, `{trusted_headers: [X-Model], llm: {request_model: header.X-Model}, tiers: [{name: a, limits: [
		{name: tokens, scope: tenant, limit: 1000, window_size: 1, settle: {sources: [{from: shared.n}], reserve: 5}}]}]}`)
	assert.Empty(t, without.Rules.Headers)
	var r resolve.Resolution
	without.ResolveAt(&identity.Identity{Tenant: tenant("acme")}, 0, &r)
	assert.NotNil(t, r.Calls, "a config with llm has its calls reported")
	plain := compile(t, `{tiers: [{name: a, limits: [
		{name: tokens, scope: tenant, limit: 1000, window_size: 1, settle: {sources: [{from: shared.n}], reserve: 5}}]}]}`)
	plain.ResolveAt(&identity.Identity{Tenant: tenant("acme")}, 0, &r)
	assert.Nil(t, r.Calls, "a config without it does not")
}

func TestAPriceOfARowIsInForceFromItsInstantInPlaceOfTheConfigs(t *testing.T) {
	row := func(id, starts int64, namespace, model string, price schema.Price) policy.PriceRow {
		return policy.PriceRow{ID: id, DatedPrice: schema.DatedPrice{
			Namespace: namespace, StartsAt: time.Unix(starts, 0),
			ModelPrice: schema.ModelPrice{Model: model, Prompt: price, Completion: price},
		}}
	}
	snapshot := build(t, policy.Rows{Prices: []policy.PriceRow{
		row(1, 100, "", "gpt-4o*", 3_000_000), row(2, 200, "", "gpt-4o*", 4_000_000), row(3, 200, "", "*", 9_000_000),
		row(4, 1, "other", "gpt-4o*", 7_000_000),
	}})
	warm := compile(t, money).With(snapshot)
	plan := warm
	priceAt := func(micros limit.Micros, model string) schema.Price {
		var r resolve.Resolution
		plan.ResolveAt(&identity.Identity{Tenant: tenant("acme")}, micros, &r)
		if price := r.Calls.PriceOf(model); price != nil {
			return price.Prompt
		}
		return -1
	}
	for _, micros := range []limit.Micros{0, 1, 2} { // in any order: each takes the prices of its instant
		for _, test := range []struct {
			at                limit.Micros
			four, mini, other schema.Price
		}{
			{200*limit.Second + micros, 4_000_000, 150_000, 9_000_000},
			{99 * limit.Second, 2_500_000, 150_000, -1},
			{100*limit.Second - 1, 2_500_000, 150_000, -1},
			{100*limit.Second + micros, 3_000_000, 150_000, -1},
			{200*limit.Second - 1, 3_000_000, 150_000, -1},
			{300 * limit.Second, 4_000_000, 150_000, 9_000_000},
		} {
			got := [...]schema.Price{priceAt(test.at, "gpt-4o"), priceAt(test.at, "gpt-4o-mini"), priceAt(test.at, "x")}
			assert.Equal(t, [...]schema.Price{test.four, test.mini, test.other}, got, "at %d", test.at)
			plan = compile(t, money).With(snapshot) // and without what was compiled for another instant
			assert.Equal(t, test.four, priceAt(test.at, "gpt-4o"), "first at %d", test.at)
			plan = warm
		}
	}
	id := &identity.Identity{Tenant: tenant("acme"), Model: "gpt-4o"}
	var r resolve.Resolution
	plan.ResolveAt(id, 250*limit.Second, &r)
	assert.Zero(t, testing.AllocsPerRun(100, func() { plan.ResolveAt(id, 250*limit.Second, &r) }), "allocations")

	compiled := r.Calls
	later, _ := snapshot.Apply(policy.Changes{Rows: policy.Rows{Version: 2, Tenants: []schema.Tenant{{ID: "beta"}}}})
	plan.With(later).ResolveAt(id, 250*limit.Second, &r)
	assert.Same(t, compiled, r.Calls, "a change of other rows compiles no price again")
	plan = plan.With(nil)
	assert.Equal(t, schema.Price(2_500_000), priceAt(300*limit.Second, "gpt-4o"), "without rows the config's is in force")
}

func TestAModelWithoutAPriceIsDeniedByALimitThatMatchesForCertainAndIsEnforced(t *testing.T) {
	for _, test := range []struct {
		limit, provider string
		want            bool
	}{
		{``, "", true},
		{`mode: shadow,`, "", false},
		{`match: {provider: azure},`, "", false}, // it may be another one's
		{`match: {provider: azure},`, "azure", true},
		{`match: {provider: azure},`, "openai", false},
	} {
		plan := compile(t, `{tiers: [{name: a, limits: [{name: all, scope: tenant, unit: usd, limit: 100, `+
			test.limit+` window_size: 60, settle: {sources: [{from: prices}], reserve: 5}}]}]}`)
		var r resolve.Resolution
		plan.ResolveAt(&identity.Identity{Tenant: tenant("acme"), Model: "gpt-5", Provider: test.provider}, 0, &r)
		assert.Equal(t, test.want, r.Unpriced, "%+v", test)
	}
}
