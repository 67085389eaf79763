package redis

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/await"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/redistest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

// among are the settings of a cluster, of which they name one node.
func among(nodes *redistest.Nodes, pipelined bool) schema.Redis {
	first := nodes.Masters[0]
	return schema.Redis{
		ClusterNodes: []schema.RedisClusterNode{{IP: first.Host, Port: int64(first.Port)}},
		Pipeline:     pipelined, ConnectTimeout: 30_000, SendTimeout: 30_000, ReadTimeout: 30_000,
	}
}

func TestAClusterThatStopsWithOneMasterIsWarnedOfAtTheStart(t *testing.T) {
	t.Parallel()
	nodes := redistest.Cluster(t, 3, 0)
	c := open(t, takeScript, among(nodes, true))
	warnings, rejection, err := c.check(t.Context())
	if len(warnings) != 3 || rejection != nil || err != nil ||
		!strings.Contains(warnings[0], "cluster-require-full-coverage") {
		t.Errorf("by default the check says %q, %v, %v: want a warning for each master", warnings, rejection, err)
	}
	nodes.KeepHealthySlots(t)
	if warnings, rejection, err := c.check(t.Context()); len(warnings) != 0 || rejection != nil || err != nil {
		t.Errorf("as it should be the check says %q, %v, %v", warnings, rejection, err)
	}
}

// covering is a cluster of three masters as it should be: one that is unavailable takes no other with it.
func covering(t testing.TB, replicas int) *redistest.Nodes {
	t.Helper()
	nodes := redistest.Cluster(t, 3, replicas)
	nodes.KeepHealthySlots(t)
	return nodes
}

// keysOf are keys of one slot for each master, in their order.
func keysOf(t testing.TB, nodes *redistest.Nodes) []string {
	t.Helper()
	client := nodes.Masters[0].Client(t)
	keys := make([]string, len(nodes.Masters))
	for i := 0; slices.Contains(keys, ""); i++ {
		key := fmt.Sprintf("{t=%d}", i)
		slot, err := client.ClusterKeySlot(t.Context(), key).Result()
		require.NoError(t, err)
		if master := min(int(slot)/(16384/len(keys)), len(keys)-1); keys[master] == "" {
			keys[master] = key
		}
	}
	return keys
}

// Each limit has its messages at the master of their key, and a script touches no other key.
func TestNodesShareLimitsFairlyInACluster(t *testing.T) {
	t.Parallel()
	block := among(covering(t, 0), true)
	var stores []*Store
	for range 2 {
		store, release, err := NewRegistry(slog.New(slog.DiscardHandler), nil).Open(block)
		require.NoError(t, err)
		t.Cleanup(release)
		stores = append(stores, store)
	}
	for i := range 20 { // limits in many slots
		key := &policy.Key{Namespace: "a", Policy: "all", Group: policy.ByEndpoint, GroupID: fmt.Sprint(i)}
		// On a machine that stalls, the first node may lead no more before it publishes.
		await.That(t, fmt.Sprintf("the second node reads the caps of limit %d", i), func() bool {
			leads := false
			first, err := stores[0].ReportDemand(t.Context(), key, "one", []byte("1"))
			if err == nil && first.Leads {
				leads, err = stores[0].PublishCaps(t.Context(), key, "one", []byte("caps"))
			}
			second, secondErr := stores[1].ReportDemand(t.Context(), key, "two", []byte("2"))
			if err = errors.Join(err, secondErr); err != nil {
				t.Fatalf("limit %d: %v", i, err)
			}
			return leads && !second.Leads && string(second.Caps) == "caps"
		})
	}
}

func TestEveryCallOfAClusterIsOneEvalshaAtTheMasterOfItsKey(t *testing.T) {
	t.Parallel()
	nodes := covering(t, 0)
	keys := keysOf(t, nodes)
	eachWay(t, func(t *testing.T, pipelined bool) {
		c := checked(t, newScript(countScript), among(nodes, pipelined))
		assert.True(t, c.Groups(), "a cluster is taken for a single Redis")
		round := func() error { return errors.Join(run(c, keys[0]), run(c, keys[1]), run(c, keys[2])) }
		require.NoError(t, atOnce(16, 1, round))
		for _, master := range nodes.Masters {
			must(t, master.Client(t), "config", "resetstat")
		}
		require.NoError(t, atOnce(16, 10, round))
		for i, master := range nodes.Masters {
			calls := calls(t, master.Client(t))
			if calls["evalsha"] != 160 || calls["incr"] != 160 || calls["eval"] != 0 || calls["script|load"] != 0 {
				t.Errorf("160 calls are these at master %d: %v", i, calls)
			}
		}
	})
}

func TestAHungMasterDelaysNoOtherMastersCalls(t *testing.T) {
	nodes := covering(t, 0)
	keys := keysOf(t, nodes)
	eachWay(t, func(t *testing.T, pipelined bool) {
		// A busy machine may stall a call for longer than its deadline, but not for a sixth of the timeouts.
		block, late := among(nodes, pipelined), 10*time.Second
		block.ConnectTimeout, block.SendTimeout, block.ReadTimeout = 60_000, 60_000, 60_000
		c := checked(t, newScript(countScript), block)
		took := func(key string, deadline time.Duration) (time.Duration, error) {
			ctx, cancel := context.WithTimeout(context.Background(), deadline)
			defer cancel()
			started := time.Now()
			_, err := evaluate(ctx, c, c.script, []string{key})
			return time.Since(started), err
		}
		round := func() error { return errors.Join(run(c, keys[0]), run(c, keys[1]), run(c, keys[2])) }
		require.NoError(t, atOnce(16, 1, round))
		nodes.Masters[1].Hang(t)
		defer nodes.Masters[1].Resume(t)

		const deadline = time.Second / 2 // of the calls of the hung master
		var stopped sync.WaitGroup
		for range 16 {
			stopped.Go(func() {
				for range 4 {
					if d, err := took(keys[1], deadline); err == nil || d > late {
						t.Errorf("a call of the hung master, with %v: %v after %v", deadline, err, d)
					}
				}
			})
		}
		var mu sync.Mutex
		var healthy []time.Duration
		err := atOnce(16, 50, func() error {
			for _, key := range []string{keys[0], keys[2]} {
				d, err := took(key, 6*late)
				if err != nil {
					return fmt.Errorf("a call of a healthy master: %w", err)
				}
				mu.Lock()
				healthy = append(healthy, d)
				mu.Unlock()
			}
			return nil
		})
		require.NoError(t, err)
		stopped.Wait()
		slices.Sort(healthy)
		if median := healthy[len(healthy)/2]; median > deadline/2 {
			t.Errorf("calls of the healthy masters take %v (median), as if they waited for the hung one", median)
		}
	})
}

// move gives the slot of a key to another master, as resharding does, up to the given step.
func move(t *testing.T, from, to *redis.Client, key string, finish bool) {
	t.Helper()
	ctx := t.Context()
	slot := from.ClusterKeySlot(ctx, key).Val()
	source, target := from.ClusterMyID(ctx).Val(), to.ClusterMyID(ctx).Val()
	if !finish {
		must(t, to, "cluster", "setslot", slot, "importing", source)
		must(t, from, "cluster", "setslot", slot, "migrating", target)
		return
	}
	must(t, to, "cluster", "setslot", slot, "node", target)
	must(t, from, "cluster", "setslot", slot, "node", target)
}

func TestARedirectionIsFollowedAndTheScriptRunsOnce(t *testing.T) {
	t.Parallel()
	nodes := covering(t, 0)
	key := keysOf(t, nodes)[0]
	from, to := nodes.Masters[0].Client(t), nodes.Masters[2].Client(t)
	eachWay(t, func(t *testing.T, pipelined bool) {
		c := open(t, newScript(countScript), among(nodes, pipelined))
		must(t, from, "del", key)
		call := func() error { return run(c, key) }
		visit := func(context.Context, *redis.Client) error { return nil }
		if err := c.backend.(*cluster).client.ForEachMaster(t.Context(), visit); err != nil {
			t.Fatal(err) // the cluster as it is now has been seen
		}
		move(t, from, to, key, false)
		assert.NoError(t, atOnce(16, 1, call), "ASK")
		move(t, from, to, key, true)
		assert.NoError(t, atOnce(16, 1, call), "MOVED")
		if count, err := to.Get(t.Context(), key).Int(); err != nil || count != 32 {
			t.Errorf("32 calls counted %d (%v)", count, err)
		}
		must(t, to, "del", key)
		move(t, to, from, key, false)
		move(t, to, from, key, true)
	})
}

func TestAReplicaThatNeverSawTheScriptTakesOver(t *testing.T) {
	t.Parallel()
	nodes := covering(t, 1)
	key := keysOf(t, nodes)[0]
	c := checked(t, newScript(countScript), among(nodes, true))
	require.NoError(t, atOnce(8, 1, func() error { return run(c, key) }))
	replica := nodes.Replicas[0].Client(t)
	await.That(t, "the replica has the count", func() bool {
		return replica.Info(t.Context(), "replication").Val() != "" && replica.Do(t.Context(), "dbsize").Val() == int64(1)
	})
	if loaded := replica.ScriptExists(t.Context(), c.script.sha).Val(); len(loaded) != 1 || loaded[0] {
		t.Fatalf("the replica has the script already: %v", loaded)
	}
	nodes.SetNodeTimeout(t, 500*time.Millisecond)
	nodes.Masters[0].Kill()
	await.That(t, "calls succeed after the failover", func() bool {
		return atOnce(8, 1, func() error { return run(c, key) }) == nil
	})
	left := redistest.Nodes{Masters: nodes.Masters[1:], Replicas: nodes.Replicas}
	left.SetNodeTimeout(t, time.Minute)
	must(t, replica, "config", "resetstat")
	if err := atOnce(8, 5, func() error { return run(c, key) }); err != nil {
		t.Error(err)
	}
	if calls := calls(t, replica); calls["evalsha"] != 40 || calls["script|load"] != 0 {
		t.Errorf("40 calls are these at the new master: %v", calls)
	}
}

func TestTheHostThatARedirectionLeavesOutIsTheOneThatAnswered(t *testing.T) {
	t.Parallel()
	server := covering(t, 0)
	for _, kind := range []string{"", "unknown-endpoint"} {
		t.Run(kind, func(t *testing.T) {
			if kind != "" {
				for _, master := range server.Masters {
					must(t, master.Client(t), "config", "set", "cluster-preferred-endpoint-type", kind)
				}
			}
			wrong := server.Masters[0].Client(t)
			err := wrong.Do(t.Context(), "get", keysOf(t, server)[2]).Err()
			target, asking := redirection(err, server.Masters[0].Address())
			assert.True(t, target == server.Masters[2].Address() && !asking, "%v leads to %q (asking: %t)", err, target, asking)
		})
	}
	if target, _ := redirection(errors.New("ERR something else"), "127.0.0.1:1"); target != "" {
		t.Errorf("an error that is no redirection leads to %q", target)
	}
}
