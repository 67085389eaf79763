package memory_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/storetest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/bucket/memory"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/decision"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/limit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
)

func TestARefundGivesBackWhatWasSpentOnce(t *testing.T) {
	for _, algorithm := range []limit.Algorithm{
		limit.TokenBucket, limit.FixedWindow, limit.SlidingWindow, limit.SlidingLog,
	} {
		clock := storetest.NewClock()
		s := memory.New(memory.Options{Now: clock.Now})
		b := boundOf(policyOf(t, "p", limit.Spec{Algorithm: algorithm, Quantity: 10, Window: minute}), policy.ByTenant,
			"acme")
		b.Cost = 4
		take(t, s, b)
		b.Cost = 3
		bounds, statuses := []policy.Bound{b}, make([]decision.Status, 1)
		require.NoError(t, s.Take(context.Background(), bounds, statuses))
		for range 2 {
			require.NoError(t, s.Refund(t.Context(), bounds, statuses))
		}
		if got := statuses[0]; got.Charged || got.Returned != 3 || got.Used != 4 {
			t.Errorf("%v: after a refund of 3 the status is %+v, want 4 used", algorithm, got)
		}
		b.Cost = 0
		if got := take(t, s, b)[0].Used; got != 4 {
			t.Errorf("%v: %d used after 4 and 3 of which 3 were given back", algorithm, got)
		}
	}
}
