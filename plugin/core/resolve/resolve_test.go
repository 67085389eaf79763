package resolve_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/identity"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/resolve"
)

// bounds are a request's bounds as a store sees them.
func bounds(plan *resolve.Plan, id identity.Identity) ([]policy.Key, []int64) {
	var r resolve.Resolution
	plan.ResolveAt(&id, 0, &r)
	keys, costs := make([]policy.Key, len(r.Bounds)), make([]int64, len(r.Bounds))
	for i, bound := range r.Bounds {
		keys[i], costs[i] = bound.Key, bound.Cost
	}
	return keys, costs
}

// labels are a request's bounds as tier/name, with the endpoint of those that have one.
func labels(plan *resolve.Plan, id identity.Identity) []string {
	var r resolve.Resolution
	plan.ResolveAt(&id, 0, &r)
	var list []string
	for _, bound := range r.Bounds {
		label := bound.Policy.Tier + "/" + bound.Policy.Name
		if bound.Policy.Endpoint != "" {
			label += " of " + bound.Policy.Endpoint
		}
		list = append(list, label)
	}
	return list
}

func tenant(id string) identity.Name { return identity.Name{Kind: identity.Tenant, ID: id} }

func address(id string) identity.Name { return identity.Name{Kind: identity.IP, ID: id} }

func TestTheLimitsOfATenantsTierApply(t *testing.T) {
	plan := example(t)
	tests := []struct {
		name     string
		id       identity.Identity
		tier     string
		endpoint string
		want     []string
	}{
		{
			"known tier",
			identity.Identity{Tenant: tenant("acme"), Tier: "essentials", Method: "GET", Path: "/", Route: "root"},
			"essentials", "root",
			[]string{"essentials/daily", "essentials/burst", "/all"},
		},
		{
			"unknown tier",
			identity.Identity{Tenant: tenant("acme"), Tier: "Enterprise", Method: "GET", Path: "/"},
			"essentials", "",
			[]string{"essentials/daily", "essentials/burst", "/all"},
		},
		{
			"no tier",
			identity.Identity{Tenant: tenant("acme"), Method: "HEAD", Path: "/search/"},
			"essentials", "GET /search",
			[]string{"essentials/daily", "essentials/burst", "essentials/search of GET /search", "/all"},
		},
		{
			"user",
			identity.Identity{
				Tenant: tenant("acme"), Tier: "enterprise", User: identity.Name{Kind: identity.User, ID: "u"}, Method: "GET",
				Path: "/search",
			},
			"enterprise", "GET /search",
			[]string{"enterprise/daily", "enterprise/per-user", "/all"},
		},
		{
			"user skipped",
			identity.Identity{Tenant: tenant("acme"), Tier: "enterprise", Method: "GET", Path: "/"},
			"enterprise", "",
			[]string{"enterprise/daily", "/all"},
		},
		{
			"internal",
			identity.Identity{Tenant: tenant("acme"), Tier: "internal", Method: "GET", Path: "/heavy-compute"},
			"internal", "* /heavy-compute",
			[]string{"/all", "/heavy of * /heavy-compute"},
		},
		{
			"anonymous",
			identity.Identity{
				Tenant: address("192.0.2.1"), IP: "192.0.2.1", Tier: "enterprise", Anonymous: true, Method: "GET", Path: "/",
			},
			"", "",
			[]string{"/per-ip", "/all"},
		},
		{"anonymous, admitted", identity.Identity{Anonymous: true, Method: "GET", Path: "/"}, "", "", []string{"/all"}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			assert.Equal(t, test.want, labels(plan, test.id), "bounds")
			var r resolve.Resolution
			plan.ResolveAt(&test.id, 0, &r)
			if r.Tier != test.tier || r.Endpoint != test.endpoint {
				t.Errorf("tier %q and endpoint %q, want %q and %q", r.Tier, r.Endpoint, test.tier, test.endpoint)
			}
		})
	}
}

func TestTheFirstTierIsTheDefaultWhenNoneIsNamed(t *testing.T) {
	plan := compile(t,
		`tiers: [{name: small, limits: [{name: a, scope: tenant, limit: 1, window_size: 1}]}, {name: large}]`)
	for claimed, want := range map[string]string{"": "small", "tiny": "small", "small": "small", "large": "large"} {
		var r resolve.Resolution
		plan.ResolveAt(&identity.Identity{Tenant: tenant("acme"), Tier: claimed}, 0, &r)
		assert.Equal(t, want, r.Tier, "tier %q means", claimed)
	}
}

const everyScope = `
namespace: eu
tiers:
- name: one
  limits:
  - {name: t, scope: tenant, limit: 1, window_size: 1}
  - {name: u, scope: user, limit: 1, window_size: 1}
  - {name: c, scope: credential, limit: 1, window_size: 1}
  - {name: i, scope: ip, limit: 1, window_size: 1}
  - {name: e, scope: endpoint, endpoint: "GET /x/{id}", limit: 1, window_size: 1}
  - {name: e-route, scope: endpoint, limit: 1, window_size: 1}
  - {name: g, scope: global, limit: 1, window_size: 1}
  - {name: te, scope: tenant+endpoint, endpoint: "GET /x/{id}", limit: 1, window_size: 1}
  - {name: te-route, scope: tenant+endpoint, limit: 1, window_size: 1}
  - {name: ue, scope: user+endpoint, endpoint: "* /*", limit: 1, window_size: 1}
  - {name: ue-route, scope: user+endpoint, limit: 1, window_size: 1}
`

func TestEachScopeHasItsOwnKindOfBucket(t *testing.T) {
	got, _ := bounds(compile(t, everyScope), identity.Identity{
		Tenant: tenant("acme"), User: identity.Name{Kind: identity.User, ID: "u_42"}, Credential: "k-1", IP: "192.0.2.1",
		Method: "GET", Path: "/x/7", Route: "records",
	})
	want := []policy.Key{
		{Namespace: "eu", Policy: "t", Group: policy.ByTenant, GroupID: "acme"},
		{Namespace: "eu", Policy: "u", Group: policy.ByTenant, GroupID: "acme", Kind: policy.KindUser, Subject: "u_42"},
		{Namespace: "eu", Policy: "c", Group: policy.ByTenant, GroupID: "acme", Kind: policy.KindCredential, Subject: "k-1"},
		{Namespace: "eu", Policy: "i", Group: policy.ByIP, GroupID: "192.0.2.1"},
		{Namespace: "eu", Policy: "e", Group: policy.ByEndpoint, GroupID: "GET /x/{id}"},
		{Namespace: "eu", Policy: "e-route", Group: policy.ByEndpoint, GroupID: "records"},
		{Namespace: "eu", Policy: "g", Group: policy.ByAll},
		{Namespace: "eu", Policy: "te", Group: policy.ByTenant, GroupID: "acme", Endpoint: "GET /x/{id}"},
		{Namespace: "eu", Policy: "te-route", Group: policy.ByTenant, GroupID: "acme", Endpoint: "records"},
		{
			Namespace: "eu", Policy: "ue", Group: policy.ByTenant, GroupID: "acme", Kind: policy.KindUser, Subject: "u_42",
			Endpoint: "* /*",
		},
		{
			Namespace: "eu", Policy: "ue-route", Group: policy.ByTenant, GroupID: "acme", Kind: policy.KindUser, Subject: "u_42",
			Endpoint: "records",
		},
	}
	compareKeys(t, got, want)
}

func TestWithoutLimitsOfTheirOwnAnonymousRequestsHaveTheDefaultTiersEachAddressApart(t *testing.T) {
	got, _ := bounds(compile(t, everyScope), identity.Identity{
		Tenant: address("192.0.2.1"), User: address("192.0.2.1"), IP: "192.0.2.1", Anonymous: true, Method: "POST", Path: "/",
		Route: "records",
	})
	want := []policy.Key{
		{Namespace: "eu", Policy: "t", Group: policy.ByIP, GroupID: "192.0.2.1"},
		{Namespace: "eu", Policy: "u", Group: policy.ByIP, GroupID: "192.0.2.1", Kind: policy.KindIP, Subject: "192.0.2.1"},
		{Namespace: "eu", Policy: "c", Group: policy.ByIP, GroupID: "192.0.2.1", Kind: policy.KindIP, Subject: "192.0.2.1"},
		{Namespace: "eu", Policy: "i", Group: policy.ByIP, GroupID: "192.0.2.1"},
		{Namespace: "eu", Policy: "e-route", Group: policy.ByEndpoint, GroupID: "records"},
		{Namespace: "eu", Policy: "g", Group: policy.ByAll},
		{Namespace: "eu", Policy: "te-route", Group: policy.ByIP, GroupID: "192.0.2.1", Endpoint: "records"},
		{
			Namespace: "eu", Policy: "ue-route", Group: policy.ByIP, GroupID: "192.0.2.1", Kind: policy.KindIP,
			Subject: "192.0.2.1", Endpoint: "records",
		},
	}
	compareKeys(t, got, want)
}

func compareKeys(t *testing.T, got, want []policy.Key) {
	t.Helper()
	for i := range max(len(got), len(want)) {
		switch {
		case i >= len(got):
			t.Errorf("no key %d, want %+v", i, want[i])
		case i >= len(want):
			t.Errorf("key %d is %+v, want none", i, got[i])
		case got[i] != want[i]:
			t.Errorf("key %d is %+v,\nwant %+v", i, got[i], want[i])
		}
	}
}

func TestANameThatIsMissingTakesOnlyItsLimitsAway(t *testing.T) {
	plan := compile(t, everyScope)
	id := identity.Identity{Tenant: tenant("acme"), Method: "POST", Path: "/", Route: "records", UserMissing: true}
	assert.Equal(t, []string{"one/t", "one/e-route", "one/g", "one/te-route"}, labels(plan, id), "bounds")
	var r resolve.Resolution
	if plan.ResolveAt(&id, 0, &r); !r.UserRequired {
		t.Error("limits per user apply, and no user is named, but UserRequired is false")
	}
	id.User = identity.Name{Kind: identity.User, ID: "u"}
	if plan.ResolveAt(&id, 0, &r); r.UserRequired {
		t.Error("a user is named, but UserRequired is true")
	}
}

func TestAUserIsRequiredOnlyWhereALimitPerUserCanDeny(t *testing.T) {
	plan := compile(t, `{tiers: [
		{name: internal}, {name: trial, limits: [{name: u, scope: user, limit: 1, window_size: 1, mode: shadow}]},
		{name: paid, limits: [{name: u, scope: user, endpoint: GET /x, limit: 1, window_size: 1}]}]}`)
	tests := []struct {
		tier, path string
		want       bool
	}{{"internal", "/x", false}, {"trial", "/x", false}, {"paid", "/y", false}, {"paid", "/x", true}}
	for _, test := range tests {
		var r resolve.Resolution
		id := identity.Identity{Tenant: tenant("acme"), Tier: test.tier, UserMissing: true}
		id.Method, id.Path = "GET", test.path
		plan.ResolveAt(&id, 0, &r)
		if r.UserRequired != test.want || len(r.Bounds) != 0 {
			t.Errorf("tier %s, %s: user required %v with %d bounds, want %v with none",
				test.tier, test.path, r.UserRequired, len(r.Bounds), test.want)
		}
	}
}

func TestOfLimitsWithOneNameTheMostSpecificEndpointApplies(t *testing.T) {
	plan := compile(t, `
tiers:
- name: one
  limits:
  - {name: writes, scope: tenant, endpoint: "* /records/*", limit: 3, window_size: 1}
  - {name: reads, scope: tenant, limit: 9, window_size: 1}
  - {name: writes, scope: tenant, limit: 4, window_size: 1}
  - {name: writes, scope: tenant, endpoint: "POST /records/{id}", limit: 2, window_size: 1}
  - {name: writes, scope: tenant, endpoint: "POST /records/bulk", limit: 1, window_size: 1}
  - {name: other, scope: tenant, endpoint: "POST /records/bulk", limit: 1, window_size: 1}
global:
  limits:
  - {name: all, scope: global, limit: 1, window_size: 1}
  - {name: all-of-x, scope: global, endpoint: "* /*", limit: 1, window_size: 1}
`)
	for request, want := range map[string][]string{
		"POST /records/bulk": {
			"one/writes of POST /records/bulk", "one/reads", "one/other of POST /records/bulk", "/all", "/all-of-x of * /*",
		},
		"POST /records/7":   {"one/writes of POST /records/{id}", "one/reads", "/all", "/all-of-x of * /*"},
		"PUT /records/7":    {"one/writes of * /records/*", "one/reads", "/all", "/all-of-x of * /*"},
		"POST /records/7/a": {"one/writes of * /records/*", "one/reads", "/all", "/all-of-x of * /*"},
		"POST /records":     {"one/writes", "one/reads", "/all", "/all-of-x of * /*"},
		"GET /":             {"one/writes", "one/reads", "/all"},
	} {
		method, path, _ := strings.Cut(request, " ")
		got := labels(plan, identity.Identity{Tenant: tenant("acme"), Method: method, Path: path})
		assert.Equal(t, want, got, "%s: bounds", request)
	}
}

func TestTheCostIsTheLimitsOwnElseTheHeadersElseTheTablesElseOne(t *testing.T) {
	plan := compile(t, `
cost_header: X-Cost
trusted_headers: [X-Cost]
costs: {"POST /search": 5, "* /search": 2, "* /*": 3, "GET /free": 0}
tiers:
- name: one
  limits:
  - {name: bytes, scope: tenant, limit: 100, window_size: 1}
  - {name: calls, scope: tenant, limit: 100, window_size: 1, cost: 1}
  - {name: watch, scope: tenant, limit: 100, window_size: 1, cost: 0}
`)
	tests := []struct {
		method, path string
		header       int64
		want         int64
	}{
		{"POST", "/search", 0, 5},
		{"GET", "/search", 0, 2},
		{"GET", "/other", 0, 3},
		{"GET", "/", 0, 1},
		{"GET", "/free", 0, 0},
		{"HEAD", "/free", 0, 0},
		{"POST", "/search", 7, 7},
		{"POST", "/search", 1, 1},
		{"GET", "/free", 9, 9},
	}
	for _, test := range tests {
		_, costs := bounds(plan,
			identity.Identity{Tenant: tenant("acme"), Method: test.method, Path: test.path, Cost: test.header})
		assert.Equal(t, []int64{test.want, 1, 0}, costs, "%s %s with header %d costs", test.method, test.path, test.header)
	}
}
