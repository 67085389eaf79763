package bucket_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/redistest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/decision"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

// Whatever decorates the buckets of a config, a settlement reaches them: of a tenant, of an address, in Redis and in
// this process.
func TestASettlementReachesTheBucketsOfEveryStrategy(t *testing.T) {
	redis := inRedis(redistest.Single(t).Port)
	local := schema.Config{Strategy: schema.StrategyLocal}.WithDefaults()
	for _, config := range []*schema.Config{&redis, &local} {
		of, _ := serving(t, time.Minute)
		view, release, err := of.Open(config)
		require.NoError(t, err)
		defer release()
		bounds := append(ten(t, 8), ten(t, 8)...)
		bounds[1].Key.Group, bounds[1].Key.GroupID = policy.ByIP, "192.0.2.1"
		for _, actual := range [][]int64{{1, 2}, {9, 3}} {
			statuses := make([]decision.Status, 2)
			if err := view.Take(t.Context(), bounds, statuses); err != nil || !statuses[0].Admits() || !statuses[1].Admits() {
				t.Fatalf("%s: %+v, %v: want a request admitted", config.Strategy, statuses, err)
			}
			denied := make([]decision.Status, 2)
			if err := view.Take(t.Context(), bounds, denied); err != nil || denied[0].Admits() && denied[1].Admits() {
				t.Fatalf("%s: %+v, %v: want a second request denied", config.Strategy, denied, err)
			}
			require.NoError(t, view.Settle(t.Context(), bounds, statuses, actual))
			if statuses[0].Settled != actual[0]-8 || statuses[1].Settled != actual[1]-8 {
				t.Errorf("%s: settled to %d with %+v", config.Strategy, actual, statuses)
			}
		}
		shown := make([]decision.Status, 2)
		require.NoError(t, view.Peek(t.Context(), append(ten(t, 0), bounds[1]), shown))
		if shown[0].Used != 10 || shown[1].Used != 5 {
			t.Errorf("%s: %d and %d are used, want 10 and 5", config.Strategy, shown[0].Used, shown[1].Used)
		}
	}
}
