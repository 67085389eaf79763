package spec

import (
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/redistest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/soak"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/kong/gateway"
)

// store is where the buckets of a spec are: the first part of its plugin configs.
type store string

// start starts a node as the function start does, with its buckets in the store.
func (s store) start(t testing.TB, deck string, change ...func(*gateway.Options)) *node {
	t.Helper()
	const entry = "tenant-rate-limiting, config: {"
	return start(t, strings.ReplaceAll(deck, entry, entry+string(s)), change...)
}

// inEachStore runs a spec with the buckets in memory, and in Redis.
func inEachStore(t *testing.T, spec func(t *testing.T, in store)) {
	t.Parallel()
	t.Run("memory", func(t *testing.T) {
		t.Parallel()
		spec(t, "")
	})
	t.Run("redis", func(t *testing.T) {
		t.Parallel()
		server := redistest.Single(t)
		spec(t, store(fmt.Sprintf("strategy: redis, redis: {socket: %s, %s}, ", server.Socket, patience)))
		if size, err := server.Client(t).DBSize(t.Context()).Result(); err != nil || size == 0 {
			t.Errorf("%d keys in Redis (%v): the promise was not kept there", size, err)
		}
	})
}

func TestTwoNodesWithOneRedisShareALimitExactly(t *testing.T) {
	t.Parallel()
	server := redistest.Single(t)
	config := deck(fmt.Sprintf(`{strategy: redis, accuracy: exact,
		redis: {host: 127.0.0.1, port: %d, %s}, tiers: [{name: a, limits: [
		{name: day, scope: tenant, limit: 500, window_size: 86400},
			{name: all, scope: global, limit: 100000, window_size: 60, algorithm: fixed_window}]}]}`, server.Port, patience))
	nodes := []*node{start(t, config), start(t, config)}
	var admitted, denied, other atomic.Int64
	var group sync.WaitGroup
	for i := range 8 {
		group.Go(func() {
			for range 100 {
				switch a, err := nodes[i%2].send("GET", "/records", "apikey", "alice"); {
				case err == nil && a.Status == 200:
					admitted.Add(1)
				case err == nil && a.Status == 429:
					denied.Add(1)
				default:
					other.Add(1)
				}
			}
		})
	}
	if group.Wait(); admitted.Load() != 500 || denied.Load() != 300 || other.Load() != 0 {
		t.Errorf("admitted %d, denied %d, otherwise %d; want 500, 300, 0", admitted.Load(), denied.Load(), other.Load())
	}
}

func TestSoakFourProcessesOnOneRedisNeverExceedAnyAlgorithmsBound(t *testing.T) {
	t.Parallel()
	awaitTurn(t)
	server := redistest.Single(t)
	exact(t, load{
		processes: 4, connections: 64, lasts: soak.For(t, 2*time.Second),
		config: fmt.Sprintf(`"strategy":"redis","redis":{"socket":%q,%s},`, server.Socket, patience),
	})
}
