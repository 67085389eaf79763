package resolve_test

import (
	"fmt"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/identity"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/limit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/resolve"
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
	if !slices.Equal(list, want) {
		t.Errorf("the buckets are\n%q, want\n%q", list, want)
	}
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
	if !slices.Equal(list, want) {
		t.Errorf("the buckets are at\n%q, want\n%q", list, want)
	}
}
