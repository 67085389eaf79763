package redis

import (
	"context"
	"log/slog"
	"maps"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/redistest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/storetest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/decision"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/limit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
)

// dump returns all keys of a Redis with their values and the instants at which they expire.
func dump(t *testing.T, client *redis.Client) map[string]string {
	t.Helper()
	all := map[string]string{}
	keys, err := client.Keys(t.Context(), "*").Result()
	require.NoError(t, err)
	for _, key := range keys {
		value, err := client.Get(t.Context(), key).Result()
		require.NoError(t, err)
		expires, err := client.ExpireTime(t.Context(), key).Result()
		require.NoError(t, err)
		all[key] = value + " until " + expires.Truncate(time.Second).String()
	}
	return all
}

func TestAPeekWritesNothingToRedis(t *testing.T) {
	client := redistest.Single(t).Client(t)
	f := newStore("test", &direct{client, false}, takeScript, slog.New(slog.DiscardHandler))
	var bounds []policy.Bound
	for _, algorithm := range storetest.Algorithms {
		l, err := limit.New(limit.Spec{Algorithm: algorithm, Quantity: 10, Window: 3600 * limit.Second})
		require.NoError(t, err)
		for _, mode := range []policy.Mode{policy.Enforce, policy.Shadow} {
			p := &policy.Policy{Name: algorithm.String() + mode.String(), Mode: mode, Limit: l, Cost: -1}
			key := policy.Key{Namespace: "default", Policy: p.Name, Group: policy.ByTenant, GroupID: "acme"}
			bounds = append(bounds, policy.Bound{Policy: p, Key: key, Cost: 1})
		}
	}
	statuses := make([]decision.Status, len(bounds))
	for used := range int64(2) { // in an empty Redis, and beside buckets that were spent from
		before := dump(t, client)
		require.NoError(t, f.Peek(context.Background(), bounds, statuses))
		for i := range statuses {
			if statuses[i].Source != decision.Redis || statuses[i].Used != used {
				t.Errorf("%s: %+v, want %d used", bounds[i].Policy.Name, statuses[i], used)
			}
		}
		if after := dump(t, client); !maps.Equal(before, after) || used == 0 && len(after) > 0 {
			t.Errorf("a peek changed Redis from\n%q to\n%q", before, after)
		}
		require.NoError(t, f.Take(context.Background(), bounds, statuses))
	}
}
