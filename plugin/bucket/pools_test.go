package bucket_test

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/redistest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/storetest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/bucket"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/bucket/memory"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/bucket/store"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/decision"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

// scattered gives each bound of a request a pool, as bounds of several tenants have.
type scattered struct{ store.Store }

func poolOf(key *policy.Key) uint8 { return uint8(len(key.Policy) % 2) }

func scatter(bounds []policy.Bound) []policy.Bound {
	bounds = slices.Clone(bounds)
	for i := range bounds {
		bounds[i].Pool = poolOf(&bounds[i].Key)
	}
	return bounds
}

func (s scattered) Take(ctx context.Context, bounds []policy.Bound, statuses []decision.Status) error {
	return s.Store.Take(ctx, scatter(bounds), statuses)
}

func (s scattered) Peek(ctx context.Context, bounds []policy.Bound, statuses []decision.Status) error {
	return s.Store.Peek(ctx, scatter(bounds), statuses)
}

func (s scattered) Settle(
	ctx context.Context, bounds []policy.Bound, statuses []decision.Status, actual []int64,
) error {
	return s.Store.Settle(ctx, scatter(bounds), statuses, actual)
}

func TestPoolsKeepTheStoresPromises(t *testing.T) {
	storetest.RunPromises(t, func(*testing.T) (store.Store, storetest.Clock) {
		clock := storetest.NewClock()
		one := func() store.Store { return memory.New(memory.Options{Now: clock.Now}) }
		return scattered{bucket.Route([]store.Store{one(), one()})}, clock
	})
}

func TestEachPoolHasItsOwnBucketsAndOutages(t *testing.T) {
	servers := []*redistest.Server{redistest.Single(t), redistest.Single(t)}
	of, _ := serving(t, time.Minute)
	config := inRedis(servers[0].Port)
	config.RedisPools = []schema.RedisPool{{Name: "own", Redis: inRedis(servers[1].Port).Redis}}
	view := opened(t, of, &config)
	central, release, err := of.OpenOperators(&config)
	require.NoError(t, err)
	defer release()
	both := slices.Concat(ten(t, 6), ten(t, 3))
	both[1].Pool = 1
	takes := func(bounds []policy.Bound) []decision.Status {
		t.Helper()
		statuses := make([]decision.Status, len(bounds))
		require.NoError(t, view.Take(t.Context(), bounds, statuses))
		return statuses
	}
	used := func(want ...int64) {
		t.Helper()
		statuses := make([]decision.Status, 2)
		require.NoError(t, central.Peek(t.Context(), both, statuses))
		assert.Equal(t, want, []int64{statuses[0].Used, statuses[1].Used}, "used in each pool")
	}
	takes(both)
	used(6, 3)
	takes(both) // the first denies
	used(6, 3)
	takes(both[1:])
	used(6, 6)
	n, err := central.Forget(t.Context(), both[1:])
	require.True(t, n == 1 && err == nil, "%d buckets are emptied, %v", n, err)
	used(6, 0)
	require.NoError(t, central.Ping(t.Context()))

	both[0].Cost = 1 // else the denial is remembered
	servers[0].Kill()
	require.Error(t, central.Ping(t.Context()))
	if s := takes(both)[1]; s.Source != decision.Redis || s.Failure != decision.NoFailure || s.Used != 3 {
		t.Errorf("while the other pool is dead: %+v", s)
	}
	stats := of.Stats()
	require.Len(t, stats, 2)
	for _, s := range stats {
		active := s.Outage.Activations
		assert.Equal(t, active[decision.Unavailable]+active[decision.Lost] > 0, s.Outage.Buckets > 0)
	}

	config.RedisPools[0].Redis = config.Redis // one server, and one block: one pool with two names
	_, release, err = of.Open(&config)
	require.NoError(t, err)
	defer release()
	assert.Len(t, of.Stats(), 2, "another Redis was opened for a pool with the settings of the first")
	config.RedisPools[0].SSL, config.RedisPools[0].CACert = true, "/nowhere"
	_, _, err = of.Open(&config)
	assert.ErrorContains(t, err, "redis_pools[0] (own): open redis: read ca_cert")
}
