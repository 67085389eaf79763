package resolve_test

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/policytest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/identity"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/resolve"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

// What is read of every request is compiled once per config: each fact costs the gateway's worker time.
func TestNoFactIsReadThatNoLimitNeeds(t *testing.T) {
	const (
		consumer = identity.ConsumerFact
		target   = identity.TargetFact
		route    = identity.RouteFact
		ip       = identity.IPFact
	)
	tests := []struct {
		name    string
		config  string
		want    identity.Facts
		headers []string
	}{
		{"no limits", `tiers: []`, 0, nil},
		{"no limits, but anonymous requests are denied", `{on_missing_tenant: deny}`, consumer, nil},
		{
			"a tenant's quota", `tiers: [{name: a, limits: [{name: daily, scope: tenant, limit: 1, window_size: 1}]}]`, consumer,
			nil,
		},
		{"unused sources", `{tenant_from: [consumer.id], user_from: [jwt.sub], tier_from: [header.X-Tier],
			trusted_headers: [X-Tier],
			tiers: [{name: a, limits: [{name: daily, scope: tenant, limit: 1, window_size: 1}]}]}`, consumer, nil},
		{
			"two tiers, named by a header", `{tier_from: [header.X-Tier], trusted_headers: [X-Tier],
			tiers: [{name: a, limits: [{name: daily, scope: tenant, limit: 1, window_size: 1}]}, {name: b}]}`,
			consumer | identity.HeaderFacts,
			[]string{"X-Tier"},
		},
		{
			"a tenant from the token",
			`{tenant_from: [jwt.org], tiers: [{name: a, limits: [{name: daily, scope: tenant, limit: 1, window_size: 1}]}]}`,
			identity.TokenFact, nil,
		},
		{
			"a limit per user", `{user_from: [jwt.sub, header.X-User-Id], trusted_headers: [x-user-id],
			tiers: [{name: a, limits: [{name: u, scope: user, limit: 1, window_size: 1}]}]}`,
			consumer | identity.TokenFact | identity.HeaderFacts,
			[]string{"X-User-Id"},
		},
		{
			"a limit per credential", `tiers: [{name: a, limits: [{name: c, scope: credential, limit: 1, window_size: 1}]}]`,
			consumer | identity.CredentialFact, nil,
		},
		{
			"a tier's limit per address", `tiers: [{name: a, limits: [{name: i, scope: ip, limit: 1, window_size: 1}]}]`,
			consumer | ip, nil,
		},
		{
			"a limit per address for anonymous requests only",
			`anonymous: {limits: [{name: i, scope: ip, limit: 1, window_size: 1}]}`, consumer, nil,
		},
		{
			"a limit per route", `tiers: [{name: a, limits: [{name: e, scope: tenant+endpoint, limit: 1, window_size: 1}]}]`,
			consumer | route, nil,
		},
		{
			"a limit per user and route",
			`tiers: [{name: a, limits: [{name: e, scope: user+endpoint, limit: 1, window_size: 1}]}]`, consumer | route, nil,
		},
		{
			"a limit per pattern",
			`tiers: [{name: a, limits: [{name: e, scope: tenant+endpoint, endpoint: GET /x, limit: 1, window_size: 1}]}]`,
			consumer | target, nil,
		},
		{
			"a pattern of the cost table",
			`{costs: {GET /x: 2}, tiers: [{name: a, limits: [{name: d, scope: tenant, limit: 1, window_size: 1}]}]}`,
			consumer | target, nil,
		},
		{
			"a cost header",
			`{cost_header: X-Cost, trusted_headers: [X-Cost],
			global: {limits: [{name: g, scope: global, limit: 1, window_size: 1}]}}`,
			identity.HeaderFacts,
			[]string{"X-Cost"},
		},
		{"a cost header that no limit charges", `{cost_header: X-Cost, trusted_headers: [X-Cost]}`, 0, nil},
		{
			"a header that is tenant and cost", `{cost_header: x-org, tenant_from: [header.X-Org], trusted_headers: [X-Org],
			tiers: [{name: a, limits: [{name: d, scope: tenant, limit: 1, window_size: 1}]}]}`,
			identity.HeaderFacts,
			[]string{"X-Org"},
		},
		{"a global limit", `global: {limits: [{name: g, scope: global, limit: 1, window_size: 1}]}`, 0, nil},
		{"a global limit per route", `global: {limits: [{name: g, scope: endpoint, limit: 1, window_size: 1}]}`, route, nil},
		{
			"a global limit per pattern",
			`global: {limits: [{name: g, scope: endpoint, endpoint: "* /x", limit: 1, window_size: 1}]}`, target, nil,
		},
		{"a global limit per address", `global: {limits: [{name: g, scope: ip, limit: 1, window_size: 1}]}`, ip, nil},
	}
	for _, test := range tests {
		config := policytest.Config(t, test.config)
		for _, config.ObserveEndpoint = range []bool{false, true} {
			want := test.want
			if config.ObserveEndpoint {
				want |= route
			}
			plan, err := resolve.FromConfig(config)
			require.NoError(t, err, "%s", test.name)
			if rules := plan.Rules; rules.Required != want || !slices.Equal(rules.Headers, test.headers) {
				t.Errorf("%s: reads facts %010b with headers %q, want %010b with %q",
					test.name, rules.Required, rules.Headers, want, test.headers)
			}
		}
	}
}

func TestForCallersTheConfigsSourcesAreNotRead(t *testing.T) {
	const caller, route = identity.CallerFacts, identity.RouteFact
	sources := `tenant_from: [header.X-Org], user_from: [jwt.sub], tier_from: [header.X-Tier], cost_header: X-Cost,
		trusted_headers: [X-Org, X-Tier, X-Cost], observe_endpoint: false`
	for limits, want := range map[string]identity.Rules{
		``: {Required: route},
		`global: {limits: [{name: g, scope: global, limit: 1, window_size: 1}]}`: {
			Required: caller | route, CallerCost: true,
		},
		`on_missing_tenant: deny`: {
			Required: caller | route, NeedTenant: true, Tenant: []identity.Source{identity.CallerTenant},
		},
		`tiers: [{name: a, limits: [{name: u, scope: user, limit: 1, window_size: 1}]}, {name: b}]`: {
			Required: caller | route, NeedTenant: true, NeedUser: true, CallerCost: true,
			Tenant: []identity.Source{identity.CallerTenant}, Tier: []identity.Source{identity.CallerTier},
			User: []identity.Source{identity.CallerUser},
		},
	} {
		plan, err := resolve.ForCallers(policytest.Config(t, `{`+sources+`, `+limits+`}`))
		require.NoError(t, err, "%s", limits)
		want.CostHeader = -1
		rules := plan.Rules
		rules.Anonymous, rules.IPv6Prefix, rules.CostHeaderMax = nil, 0, 0 // what no source has a part in
		rules.OnMissingTenant, rules.OnMissingUser = 0, 0
		assert.Equal(t, want, rules, "%s: rules are\n%+v, want\n%+v", limits, rules, want)
	}
}

func TestRowsBesideAPlanForCallersReadTheCallerToo(t *testing.T) {
	plan, err := resolve.ForCallers(policytest.Config(t, `{}`))
	require.NoError(t, err)
	rows := policy.Rows{Overrides: numbered(schema.Override{Kind: schema.KindBan, Tenant: "acme", User: "u"})}
	snapshot, faults := policy.NewSnapshot(rows, nil)
	if len(faults) > 0 {
		t.Fatal(faults)
	}
	rules := plan.With(snapshot).Rules
	if want := identity.CallerFacts | identity.RouteFact; rules.Required != want || len(rules.Headers) != 0 {
		t.Errorf("reads facts %010b with headers %q, want %010b with none", rules.Required, rules.Headers, want)
	}
}

func TestTheRulesAreThoseOfTheConfig(t *testing.T) {
	rules := example(t).Rules
	if rules.OnMissingTenant != identity.ByIP || rules.OnMissingUser != identity.ByCredential || !rules.AnonymousLimits ||
		!rules.NeedTenant || !rules.NeedUser || rules.NeedCredential || rules.IPv6Prefix != 64 || rules.CostHeader != -1 {
		t.Errorf("rules are %+v", rules)
	}
	assert.False(t, rules.DecodePath, "paths are decoded without decode_path")
	rules = compile(t, `{decode_path: true, on_missing_tenant: skip, on_missing_user: deny, ipv6_prefix_length: 48,
		cost_header: X-Cost, cost_header_max: 9, trusted_headers: [X-Cost],
		tiers: [{name: a, limits: [{name: c, scope: credential, limit: 1, window_size: 1}]}]}`).Rules
	if rules.OnMissingTenant != identity.Skip || rules.OnMissingUser != identity.Deny || rules.AnonymousLimits ||
		!rules.NeedTenant || rules.NeedUser || !rules.NeedCredential || !rules.DecodePath || rules.IPv6Prefix != 48 ||
		rules.CostHeader != 0 || rules.CostHeaderMax != 9 {
		t.Errorf("rules are %+v", rules)
	}
}
