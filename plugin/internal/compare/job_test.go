package compare

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/identity"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/policy"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

// quota is how much every limit of a job allows.
type quota struct {
	tokens int64
	window time.Duration // whole seconds
}

// plenty is more than any benchmark takes, so that every request is admitted: that is the longest way. It is a token in
// each nanosecond, so that a limiter which spaces requests evenly admits all of them too, and its window is longer than
// a limiter is measured, because not all refill completely at its end.
var plenty = quota{tokens: 1e12, window: 1000 * time.Second}

// job is what every limiter of a comparison has to do.
type job struct {
	quota
	tenants []string
	// bounds are those of a request of tenants[0]. A request of another tenant has the same but for the group.
	bounds []policy.Bound
	redis  *server // nil: the job needs none
}

// groupOf returns the group whose bucket bound i of a tenant's request spends from: the tenant, or one that all share.
func (j *job) groupOf(i, tenant int) string {
	if j.bounds[i].Key.Group == policy.ByTenant {
		return j.tenants[tenant]
	}
	return j.bounds[i].Key.GroupID
}

// scopes are the limits of a job, in this order. A request has the first one, four or eight.
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
		list[i] = schema.Limit{Name: s.name, Scope: s.scope, Algorithm: s.algorithm, Limit: q.tokens, WindowSize: int64(q.window / time.Second)}
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

// resolve returns the bounds of a request of one tenant and user.
func resolve(tb testing.TB, list []schema.Limit, tenant, user string) []policy.Bound {
	tb.Helper()
	snapshot, err := policy.FromConfig(config(tb, list))
	if err != nil {
		tb.Fatalf("compile the config: %v", err)
	}
	id := identity.Identity{
		Tenant: identity.Name{Kind: identity.Tenant, ID: tenant}, User: identity.Name{Kind: identity.User, ID: user},
		Method: "GET", Path: "/records/7", Route: "records",
	}
	var r policy.Resolution
	snapshot.Resolve(&id, &r)
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
	j.bounds = resolve(tb, limits(n, q), j.tenants[0], "u_42")
	return j
}

// busyTenants are as many as have requests all the time.
const busyTenants = 64

// Popularity of tenants: the busiest of 100,000 has about every seventh request.
const (
	manyTenants = 100_000
	zipfS       = 1.1
	drawn       = 1 << 20 // requests, after which they repeat
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
