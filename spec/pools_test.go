package spec

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/redistest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/kong/gateway"
)

// What pools keep apart while one of them is away is in the specs of chaos.

// Meanwhile the tier has another pool, and the pools have another order.
func TestRequestsAreSettledInThePoolThatHasTheirReservations(t *testing.T) {
	t.Parallel()
	servers := []*redistest.Server{redistest.Single(t), redistest.Single(t), redistest.Single(t)}
	deckOfPools := func(tierPool string, order ...int) string {
		var pools []string
		for _, i := range order {
			pools = append(pools, patientBlock(servers[i], fmt.Sprintf("p%d", i)))
		}
		store := "strategy: redis, redis: " + patientBlock(servers[0]) + ", redis_pools: [" + strings.Join(pools, ", ") + "]"
		return strings.ReplaceAll(settlingDeck(store, heldLimit), "{name: a, ", "{name: a, redis_pool: "+tierPool+", ")
	}
	for name, change := range map[string]func(*held){
		"by the same process": func(*held) {},
		"by a later process":  func(h *held) { h.crash() },
	} {
		t.Run(name, func(t *testing.T) {
			for _, s := range servers {
				require.NoError(t, s.Client(t).FlushAll(t.Context()).Err())
			}
			h := holdIn(t, servers[1], deckOfPools("p1", 1, 2), settling)
			reload := func(deck string) {
				t.Helper()
				config, err := gateway.ParseConfig([]byte(deck))
				require.NoError(t, err)
				require.NoError(t, h.Reload(config))
			}
			reload(deckOfPools("p2", 2, 1))
			require.Equal(t, 1000, h.left(100), "left in the new pool")
			change(h)
			h.end()
			require.Equal(t, 1000, h.left(100), "left in the new pool, after the settlements")
			reload(deckOfPools("p1", 2, 1))
			h.wantSettled()
			if keys := servers[0].Client(t).Keys(t.Context(), "rl:*:{t=*").Val(); len(keys) > 0 {
				t.Errorf("the pool of no tier has the keys %q", keys)
			}
		})
	}
}
