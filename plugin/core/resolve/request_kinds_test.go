package resolve_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"pgregory.net/rapid"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/identity"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/limit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/resolve"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

func TestEveryRequestOfATenantIsDecidedLikeOneThatIsVisited(t *testing.T) {
	config := compile(t, modelConfig)
	rapid.Check(t, func(t *rapid.T) {
		rows := someRows(t)
		snapshot, _ := policy.NewSnapshot(rows, nil)
		plan := config.With(snapshot)
		id, now := somebody(t), limit.Micros(rapid.Int64Range(0, 6).Draw(t, "now"))
		want := got(plan, &id, now)
		visited := map[string]bool{}
		plan.VisitRequestKinds(id, nil, now, func(id *identity.Identity, _ *resolve.Resolution) {
			visited[fmt.Sprint(got(plan, id, now))] = true
		})
		if !visited[fmt.Sprint(want)] {
			t.Fatalf("%s %s is decided by\n%+v, and nothing like it was visited", id.Method, id.Path, want)
		}
		id.Route = ""
		keys := map[policy.Key]int{}
		for _, b := range plan.TenantBounds(id, []string{"route"}, now) {
			keys[b.Key]++
		}
		var r resolve.Resolution
		plan.ResolveAt(&id, now, &r)
		for _, b := range r.Bounds {
			if wanted := b.Key.Group == policy.ByTenant; wanted != (keys[b.Key] == 1) {
				t.Fatalf("the bucket %+v is listed %d times", b.Key, keys[b.Key])
			}
		}
	})
}

func TestTheBoundsOfATenantAreItsOwnBucketsEachOnce(t *testing.T) {
	plan := compile(t, `
tiers:
- name: gold
  limits:
  - {name: daily, scope: tenant, limit: 1000, window_size: 86400}
  - {name: daily, scope: tenant, endpoint: GET /, limit: 100, window_size: 86400}
  - {name: per-user, scope: user, limit: 100, window_size: 60}
  - {name: per-route, scope: tenant+endpoint, limit: 100, window_size: 60}
  - {name: by-address, scope: ip, limit: 100, window_size: 60}
global: {limits: [{name: all, scope: global, limit: 5000, window_size: 1}]}
`)
	id := identity.Identity{
		Tenant: tenant("acme"), User: identity.Name{Kind: identity.User, ID: "u_42"}, IP: "192.0.2.1", Method: "GET",
		Path: "/",
	}
	var list []string
	for _, b := range plan.TenantBounds(id, []string{"records", "search"}, 0) {
		list = append(list, fmt.Sprint(b.Policy.Name, " ", b.Key.Endpoint, b.Key.Subject))
	}
	slices.Sort(list)
	want := []string{"daily ", "daily GET /", "per-route records", "per-route search", "per-user u_42"}
	assert.Equal(t, want, list, "the buckets are\n%q, want\n%q", list, want)
}

func TestTheBoundsOfATenantIncludeAWildcardBesideNarrowerPatterns(t *testing.T) {
	plan := compile(t, `
tiers:
- name: gold
  limits:
  - {name: writes, scope: tenant, endpoint: 'POST /records/{id}', limit: 1, window_size: 60}
  - {name: writes, scope: tenant, endpoint: 'POST /records/{id}/{part}/*', limit: 2, window_size: 60}
  - {name: writes, scope: tenant, endpoint: 'POST /records/*', limit: 3, window_size: 60}
`)
	id := identity.Identity{Tenant: tenant("acme"), Method: "POST", Path: "/"}
	var list []string
	for _, b := range plan.TenantBounds(id, nil, 0) {
		list = append(list, b.Key.Endpoint)
	}
	slices.Sort(list)
	want := []string{"POST /records/*", "POST /records/{id}", "POST /records/{id}/{part}/*"}
	assert.Equal(t, want, list, "the buckets are at\n%q, want\n%q", list, want)
}

func TestRowsAskForWhatTheyNeedOnTopOfTheConfig(t *testing.T) {
	const (
		consumer   = identity.ConsumerFact
		target     = identity.TargetFact
		ip         = identity.IPFact
		headers    = identity.HeaderFacts
		credential = identity.CredentialFact
	)
	scoped := func(scope, endpoint string) policy.Rows {
		return policy.Rows{
			Policies: []policy.PolicyRow{
				{
					ID: 1,
					Policy: schema.Policy{
						Tenant: "acme", Limit: schema.Limit{Name: "x", Scope: scope, Endpoint: endpoint, Limit: 1, WindowSize: 1},
					},
				},
			},
		}
	}
	overriding := func(o schema.Override) policy.Rows {
		o.Kind = schema.KindBan
		return policy.Rows{Overrides: numbered(o)}
	}
	ofTin := schema.Policy{Tier: "tin", Limit: schema.Limit{Name: "x", Scope: "tenant", Limit: 1, WindowSize: 1}}
	twoTiers := policy.Rows{
		Tiers: []policy.TierRow{{Name: "gold"}}, Tenants: []schema.Tenant{{ID: "acme"}},
		Policies: []policy.PolicyRow{{ID: 1, Policy: ofTin}},
	}
	tests := []struct {
		name    string
		rows    policy.Rows
		want    identity.Facts
		headers []string
	}{
		{"nothing", policy.Rows{}, 0, nil},
		{"a tier", policy.Rows{Tiers: []policy.TierRow{{Name: "gold"}}}, 0, nil},
		{"a tenant", policy.Rows{Tenants: []schema.Tenant{{ID: "acme"}}}, consumer, nil},
		{"two tiers", twoTiers, consumer | headers, []string{"X-Tier"}},
		{"a policy per tenant", scoped("tenant", ""), consumer, nil},
		{"a policy per user", scoped("user", ""), consumer | headers, []string{"X-User"}},
		{"a policy per credential", scoped("credential", ""), consumer | credential, nil},
		{"a policy per address", scoped("ip", ""), consumer | ip, nil},
		{"a policy per route", scoped("tenant+endpoint", ""), consumer | identity.RouteFact, nil},
		{"a policy of an endpoint", scoped("tenant", "GET /x"), consumer | target, nil},
		{"an override of a user", overriding(user), consumer | headers, []string{"X-User"}},
		{"an override of a credential", overriding(credentialed), consumer | credential, nil},
		{"an override of an address", overriding(origin), consumer | ip, nil},
		{"an override of an endpoint", overriding(endpoint), consumer | target, nil},
	}
	config := compile(t, `{observe_endpoint: false, user_from: [header.X-User], tier_from: [header.X-Tier],
		trusted_headers: [X-User, X-Tier], on_missing_tenant: skip}`)
	for _, test := range tests {
		with := config.With(build(t, test.rows))
		if with.Rules.Required != test.want || !slices.Equal(with.Rules.Headers, test.headers) {
			t.Errorf("%s: reads facts %08b with headers %q, want %08b with %q",
				test.name, with.Rules.Required, with.Rules.Headers, test.want, test.headers)
		}
		back := with.With(build(t, policy.Rows{}))
		if config.Rules.Required != 0 || back.Rules.Required != 0 || with.With(nil).Rules.Required != 0 {
			t.Errorf("%s: without the rows, facts %08b are read, by the config alone %08b",
				test.name, back.Rules.Required, config.Rules.Required)
		}
	}
}

func TestRowsOfAnotherNamespaceNeedNoFacts(t *testing.T) {
	perUser := schema.Limit{Name: "x", Scope: "user", Limit: 1, WindowSize: 1}
	snapshot := build(t, policy.Rows{Policies: []policy.PolicyRow{
		{ID: 1, Policy: schema.Policy{Namespace: "eu", Tenant: "acme", Limit: perUser}},
	}})
	with := compile(t, `{observe_endpoint: false, on_missing_tenant: skip}`).With(snapshot)
	assert.True(t, with.Rules.Required == 0, "facts %08b are read, want none", with.Rules.Required)
	if needs := snapshot.Needs("eu"); !needs.User || !needs.Tenant || !needs.Cost {
		t.Errorf("the namespace of the rows needs %+v, want a tenant, a user and a cost", needs)
	}
}

func TestTheEndpointIsTheMostSpecificPatternOfConfigAndRows(t *testing.T) {
	config := compile(t, `{costs: {"* /records/*": 2, "GET /records/{id}": 3, "GET /files/{file}": 4, "* /a/{x}": 1}}`)
	var rows policy.Rows
	for i, endpoint := range []string{"GET /records/*", "GET /records/new", "GET /files/{f}", "GET /*"} {
		row := perTenant(int64(i+1), "somebody", 1)
		row.Limit.Endpoint = endpoint
		rows.Policies = append(rows.Policies, row)
	}
	plan := config.With(build(t, rows))
	for request, want := range map[string]string{
		"GET /records/new": "GET /records/new", "GET /records/7": "GET /records/{id}", "GET /records/7/a": "GET /records/*",
		"PUT /records/7": "* /records/*",
		"GET /files/7":   "GET /files/{file}", "GET /other": "GET /*", "PUT /other": "route",
		"GET /a/b": "* /a/{x}", // neither is more specific: the config's
	} {
		id := identity.Identity{Tenant: tenant("acme"), Route: "route"}
		id.Method, id.Path = cut(request)
		var r resolve.Resolution
		if plan.ResolveAt(&id, 1, &r); r.Endpoint != want {
			t.Errorf("%s: the endpoint is %s, want %s", request, r.Endpoint, want)
		}
	}
}

func TestResolvingAllocatesNothingInSteadyState(t *testing.T) {
	everything := visitor
	everything.Path = "/x/7"
	record := visitor
	record.Method, record.Path = "POST", "/records/7"
	for name, test := range map[string]struct {
		plan   *resolve.Plan
		id     identity.Identity
		bounds int
	}{
		"limits of every scope":       {compile(t, everyScope), everything, 11},
		"rows and overrides":          {explained(t), record, 3},
		"beside rows of every target": {compile(t, modelConfig).With(build(t, targetRows(targets))), acmeUser(), 3},
	} {
		var r resolve.Resolution
		allocations := testing.AllocsPerRun(100, func() { test.plan.ResolveAt(&test.id, 1, &r) })
		if allocations != 0 || len(r.Bounds) != test.bounds {
			t.Errorf("%s: %d bounds with %v allocations, want %d and 0", name, len(r.Bounds), allocations, test.bounds)
		}
	}
}

func TestAnonymousRequestsMeetTheRowsOfTheDefaultTierOnly(t *testing.T) {
	rows := policy.Rows{
		Policies: []policy.PolicyRow{
			{ID: 1, Policy: schema.Policy{Tier: "bronze", Limit: perTenant(1, "", 7).Limit}},
			{ID: 2, Policy: schema.Policy{Tier: "silver", Limit: perTenant(1, "", 8).Limit}},
		},
	}
	for config, want := range map[string]int64{
		modelConfig: 7, // anonymous requests have the limits of the default tier, each address its own
		modelConfig + "anonymous: {limits: [{name: daily, scope: ip, limit: 3, window_size: 1}]}": 3,
	} {
		var r resolve.Resolution
		anonymous := identity.Identity{Anonymous: true, Tenant: address("192.0.2.1"), IP: "192.0.2.1"}
		compile(t, config).With(build(t, rows)).ResolveAt(&anonymous, 1, &r)
		if len(r.Bounds) != 2 || r.Bounds[0].Policy.Limit.Spec().Quantity != want {
			t.Errorf("bounds are %+v, want %d a day and the limit for all", r.Bounds, want)
		}
	}
}
