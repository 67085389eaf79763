package metrics

import (
	"runtime"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/soak"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/decision"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
)

// manyTenants is the number of tenants in the long form of the tests.
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
