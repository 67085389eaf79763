package memory_test

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/storetest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/bucket/memory"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/decision"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/limit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
)

func wallClock() limit.Micros { return limit.Micros(time.Now().UnixMicro()) }

// manyBounds are n bounds of one tenant, of the algorithms with a state of fixed size in turn. Their limits are so
// large that nothing is denied: that is the longest way through Take.
func manyBounds(tb testing.TB, n int, tenant string) []policy.Bound {
	algorithms := []limit.Algorithm{limit.FixedWindow, limit.TokenBucket, limit.SlidingWindow}
	bounds := make([]policy.Bound, n)
	for i := range bounds {
		p := policyOf(tb, fmt.Sprint("policy-", i),
			limit.Spec{Algorithm: algorithms[i%len(algorithms)], Quantity: 10_000_000_000, Window: minute})
		bounds[i] = boundOf(p, policy.ByTenant, tenant)
	}
	return bounds
}

func TestADenialAllocatesNothing(t *testing.T) {
	clock := storetest.NewClock()
	s := memory.New(memory.Options{Now: clock.Now})
	bounds, statuses := []policy.Bound{
		boundOf(daily(t), policy.ByTenant, "acme"), boundOf(perIP(t), policy.ByIP, "fresh"),
	}, make([]decision.Status, 2)
	bounds[0].Cost = 100
	take(t, s, bounds[0])
	allocations := testing.AllocsPerRun(1000, func() {
		if err := s.Take(context.Background(), bounds, statuses); err != nil || statuses[0].Admits() {
			t.Fatalf("take: %v, %+v", err, statuses[0])
		}
	})
	if allocations != 0 {
		t.Errorf("%v allocations", allocations)
	}
}

func BenchmarkTake(b *testing.B) {
	for _, tenants := range []int{1, 100_000} {
		for _, n := range []int{1, 4, 8} {
			b.Run(fmt.Sprintf("tenants=%d/bounds=%d", tenants, n), func(b *testing.B) {
				s := memory.New(memory.Options{Now: wallClock, MaxBuckets: 2_000_000})
				requests := benchRequests(b, s, tenants, n)
				b.ReportAllocs()
				var next atomic.Int64
				b.ResetTimer()
				b.RunParallel(func(pb *testing.PB) {
					statuses := make([]decision.Status, n)
					i := int(next.Add(7919))
					for pb.Next() {
						i++
						if err := s.Take(context.Background(), requests[i%len(requests)], statuses); err != nil {
							b.Error(err)
							return
						}
					}
				})
			})
		}
	}
}

// benchRequests are requests of many tenants, whose buckets exist.
func benchRequests(b *testing.B, s *memory.Store, tenants, n int) [][]policy.Bound {
	template := manyBounds(b, n, "")
	requests := make([][]policy.Bound, tenants)
	for i := range requests {
		bounds := append([]policy.Bound(nil), template...)
		for j := range bounds {
			bounds[j].Key.GroupID = fmt.Sprintf("tenant-%06d", i*7919%tenants)
		}
		requests[i] = bounds
		take(b, s, bounds...)
	}
	return requests
}
