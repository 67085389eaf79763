package metrics

import (
	"context"
	"runtime"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/soak"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/bucket/memory"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/admit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/decision"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/identity"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/limit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/resolve"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/response"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

// manyTenants is the number of tenants in the benchmarks, and in the long form of the tests.
const manyTenants = 100_000

// names returns the ids of n tenants.
func names(n int) []string {
	ids := make([]string, n)
	for i := range ids {
		ids[i] = "tenant-" + strconv.Itoa(i)
	}
	return ids
}

// typical returns a decision over four limits, two of them the tenant's own. first is the first status.
func typical(tb testing.TB, first decision.Status) *decision.Decision {
	minute := policy.Policy{Name: "minute", Scope: policy.Tenant}
	each := policy.Policy{Name: "records", Scope: policy.TenantEndpoint}
	user := policy.Policy{Name: "user", Scope: policy.User}
	all := policy.Policy{Name: "shared", Scope: policy.Global}
	first.Used, first.Remaining = 5, 5
	d := decided(tb, "gold",
		answered{minute, first}, answered{each, used(3)}, answered{user, used(9)}, answered{all, used(1)})
	d.Resolution.Endpoint = "GET /records/{id}"
	d.Resolution.Bounds[1].Key.Endpoint = "GET /records/{id}"
	d.Took = 180
	return d
}

// observed returns a decision of each kind, by name.
func observed(tb testing.TB) map[string]*decision.Decision {
	return map[string]*decision.Decision{
		"admitted": typical(tb, admits), "denied": typical(tb, denies), "degraded": busy(tb),
	}
}

func TestSoakCountingAllocatesNothingInSteadyState(t *testing.T) {
	many := soak.Count(10_000, manyTenants)
	ids := names(many)
	for name, d := range observed(t) {
		for _, tenants := range []int{1, many} {
			m := New("1", Sources{})
			for _, id := range ids[:tenants] {
				d.Identity.Tenant.ID = id
				m.Observe(d)
			}
			i := 0
			if allocations := testing.AllocsPerRun(2000, func() {
				i = (i + 7919) % tenants
				d.Identity.Tenant.ID = ids[i]
				m.Observe(d)
			}); allocations != 0 {
				t.Errorf("%s, %d tenants: %v allocations, want 0", name, tenants, allocations)
			}
		}
	}
}

// heapBytes returns the bytes of the heap in use.
func heapBytes() uint64 {
	runtime.GC()
	runtime.GC() // frees the pools
	var stats runtime.MemStats
	runtime.ReadMemStats(&stats)
	return stats.HeapAlloc
}

func TestSoakManyTenantsMakeBoundedSeriesInBoundedMemory(t *testing.T) {
	many := soak.Count(20_000, manyTenants)
	ids, group := names(many), many/20
	synctest.Test(t, func(t *testing.T) {
		d := typical(t, admits)
		m := New("1", Sources{})
		requests := 0
		for minute := range 4 {
			for i := range ids {
				d.Identity.Tenant.ID = ids[(i+minute*1000)%many]
				d.Resolution.Endpoint = "GET /" + strconv.Itoa(i%50)
				for range 1 + i%group/(group-10)*20 { // another two hundred are busy each minute
					m.Observe(d)
					requests++
				}
			}
			time.Sleep(rotateEvery)
			byOrg(t, m)
		}
		counts := byOrg(t, m)
		if most := defaultBusiest + defaultBusiest/4 + 2; len(counts) < defaultBusiest || len(counts) > most {
			t.Errorf("%d values of org_id, want %d to %d", len(counts), defaultBusiest, most)
		}
		series, sum := family(t, m, "requests_total")
		if series > int(m.tenants.ceiling) || sum > float64(requests) {
			t.Errorf("%d series that add up to %v; want at most %d, and %d", series, sum, m.tenants.ceiling, requests)
		}
		with := heapBytes()
		runtime.KeepAlive(m)
		m = nil
		if held := int64(with) - int64(heapBytes()); held < 100<<10 || held > 8<<20 {
			t.Errorf("%d bytes for %d series, want more than 100 KiB and at most 8 MiB", held, series)
		} else {
			t.Logf("%d bytes for %d series of %d tenants", held, series, len(counts))
		}
	})
}

// BenchmarkObserve has a budget of 200 ns for a request that is admitted or denied. Nearly all of
// 100,000 tenants have no label.
func BenchmarkObserve(b *testing.B) {
	ids := names(manyTenants)
	for _, tenants := range []int{1, 500, manyTenants} {
		for name, d := range observed(b) {
			b.Run(name+"/tenants="+strconv.Itoa(tenants), func(b *testing.B) {
				m := New("1", Sources{})
				for _, id := range ids[:tenants] {
					d.Identity.Tenant.ID = id
					m.Observe(d)
				}
				i := 0
				b.ReportAllocs()
				for b.Loop() {
					i = (i + 7919) % tenants
					d.Identity.Tenant.ID = ids[i]
					m.Observe(d)
				}
			})
		}
	}
}

// ready is an admit.FactSource with all answers ready.
type ready struct{ tenant string }

func (r ready) Read(_ context.Context, facts identity.Facts, _ *identity.Rules, req *identity.Request) error {
	req.Known |= facts
	req.Consumer.CustomID, req.Method, req.Path = r.tenant, "GET", "/records/7"
	return nil
}

// BenchmarkAdmit is the whole path of a request with four limits in memory, with metrics and without.
func BenchmarkAdmit(b *testing.B) {
	tier := schema.Tier{Name: "gold"}
	scopes := []string{schema.ScopeTenant, schema.ScopeTenant, schema.ScopeTenantEndpoint, schema.ScopeGlobal}
	for i, scope := range scopes {
		tier.Limits = append(tier.Limits, schema.Limit{
			Name: "l" + strconv.Itoa(i), Scope: scope, Limit: limit.MaxQuantity / 1000, WindowSize: 1,
		})
	}
	config := schema.Config{Tiers: []schema.Tier{tier}}.WithDefaults()
	snapshot, err := resolve.FromConfig(config)
	require.NoError(b, err)
	start := time.Now()
	now := func() limit.Micros { return limit.Micros(start.Add(time.Since(start)).UnixMicro()) }
	for name, observers := range map[string][]admit.Observer{"without": nil, "with": {New("1", Sources{})}} {
		b.Run(name, func(b *testing.B) {
			decider := &admit.Decider{
				Now: now, Elapsed: now, Buckets: memory.New(memory.Options{Now: now}),
				Renderer: response.New(config, nil), Observers: observers,
			}
			decider.Policies.Store(snapshot)
			var facts admit.FactSource = ready{"acme"}
			var x admit.Exchange
			b.ReportAllocs()
			for b.Loop() {
				if err := decider.Admit(b.Context(), facts, &x); err != nil || x.Response.Denied {
					b.Fatal("denied", err)
				}
			}
		})
	}
}
