package memory_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/storetest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/bucket/memory"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/decision"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/limit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
)

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
