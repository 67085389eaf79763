package compare

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/identity"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/resolve"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

// quota is the quantity and window of every limit of a job.
type quota struct {
	tokens int64
	window time.Duration // whole seconds
}

// plenty exceeds the tokens of every benchmark, because admitted requests take the longest path. It refills a token
// each nanosecond for limiters that space requests evenly. Its window is longer than a measurement, because some
// limiters do not refill completely at its end.
var plenty = quota{tokens: 1e12, window: 1000 * time.Second}

// job is the work of every limiter of a comparison.
type job struct {
	quota
	tenants []string
	// bounds are those of a request of tenants[0]. Requests of other tenants differ in the group only.
	bounds []policy.Bound
	redis  *server // nil: without Redis
}

// groupOf returns the group whose bucket bound i of a tenant's request spends from: the tenant, or the shared one.
func (j *job) groupOf(i, tenant int) string {
	if j.bounds[i].Key.Group == policy.ByTenant {
		return j.tenants[tenant]
	}
	return j.bounds[i].Key.GroupID
}

// scopes lists the limits of a job. A request has the first one, three, four or eight of them.
var scopes = []struct{ name, scope, algorithm string }{
	{"tenant", schema.ScopeTenant, schema.AlgorithmTokenBucket},
	{"tenant-endpoint", schema.ScopeTenantEndpoint, schema.AlgorithmTokenBucket},
	{"user", schema.ScopeUser, schema.AlgorithmTokenBucket},
	{"global", schema.ScopeGlobal, schema.AlgorithmTokenBucket},
	{"tenant-quota", schema.ScopeTenant, schema.AlgorithmFixedWindow},
	{"endpoint", schema.ScopeEndpoint, schema.AlgorithmTokenBucket},
	{"user-endpoint", schema.ScopeUserEndpoint, schema.AlgorithmTokenBucket},
	{"user-quota", schema.ScopeUser, schema.AlgorithmFixedWindow},
}

// limits returns the first n scopes, each with the same quota.
func limits(n int, q quota) []schema.Limit {
	list := make([]schema.Limit, n)
	for i, s := range scopes[:n] {
		list[i] = schema.Limit{
			Name: s.name, Scope: s.scope, Algorithm: s.algorithm,
			Limit: q.tokens, WindowSize: int64(q.window / time.Second),
		}
	}
	return list
}

// config returns a plugin config with these limits for all.
func config(tb testing.TB, list []schema.Limit) schema.Config {
	tb.Helper()
	c := schema.Config{
		Tiers:    []schema.Tier{{Name: "all", Limits: list}},
		UserFrom: []string{"header.X-User"}, TrustedHeaders: []string{"X-User"},
	}.WithDefaults()
	if err := c.Validate(); err != nil {
		tb.Fatalf("validate the config: %v", err)
	}
	return c
}

// boundsOf returns the bounds of a request of one tenant and user.
func boundsOf(tb testing.TB, list []schema.Limit, tenant, user string) []policy.Bound {
	tb.Helper()
	plan, err := resolve.FromConfig(config(tb, list))
	if err != nil {
		tb.Fatalf("compile the config: %v", err)
	}
	id := identity.Identity{
		Tenant: identity.Name{Kind: identity.Tenant, ID: tenant}, User: identity.Name{Kind: identity.User, ID: user},
		Method: "GET", Path: "/records/7", Route: "records",
	}
	var r resolve.Resolution
	plan.ResolveAt(&id, 0, &r)
	if len(r.Bounds) != len(list) {
		tb.Fatalf("%d bounds of %d limits", len(r.Bounds), len(list))
	}
	return r.Bounds
}

// newJob returns a job of n bounds.
func newJob(tb testing.TB, n, tenants int, q quota, redis *server) *job {
	tb.Helper()
	j := &job{quota: q, redis: redis, tenants: make([]string, tenants)}
	for i := range j.tenants {
		j.tenants[i] = fmt.Sprintf("tenant-%06d", i)
	}
	j.bounds = boundsOf(tb, limits(n, q), j.tenants[0], "u_42")
	return j
}

// Popularity of tenants: the busiest of 100,000 has about every seventh request.
const (
	manyTenants = 100_000
	zipfS       = 1.1
	drawn       = 1 << 20 // requests before they repeat
)

// popular returns the tenants of the requests, in order.
var popular = sync.OnceValue(func() []int32 {
	z := rand.NewZipf(rand.New(rand.NewPCG(1, 2)), zipfS, 1, manyTenants-1)
	draws := make([]int32, drawn)
	for i := range draws {
		draws[i] = int32(z.Uint64())
	}
	return draws
})
