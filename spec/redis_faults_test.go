package spec

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/await"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/debian"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/redistest"
)

// redisTimeout bounds the wait for Redis. It is long because specs share a busy machine.
const redisTimeout = 2 * time.Minute

// redisCluster is a Redis Cluster with what can befall it.
type redisCluster struct{ *redistest.Nodes }

// redisSentinels are a master and its Sentinels with what can befall them.
type redisSentinels struct{ *redistest.Watched }

// mustDo sends a command that must succeed.
func mustDo(t testing.TB, client *redis.Client, args ...any) {
	t.Helper()
	require.NoErrorf(t, client.Do(context.Background(), args...).Err(), "%v", args)
}

// MasterOf waits until all running nodes agree on the master of a key, and returns it.
func (n *redisCluster) MasterOf(t testing.TB, key string) *redistest.Server {
	t.Helper()
	return n.awaitAgreement(t, key, nil)
}

// AwaitMaster waits until all running nodes agree that s is the master of a key.
func (n *redisCluster) AwaitMaster(t testing.TB, key string, s *redistest.Server) {
	t.Helper()
	n.awaitAgreement(t, key, s)
}

// awaitAgreement waits until all running nodes agree on the master of a key, and that it is wanted, if that is not nil.
func (n *redisCluster) awaitAgreement(t testing.TB, key string, wanted *redistest.Server) *redistest.Server {
	t.Helper()
	running, clients := n.running(t)
	var master *redistest.Server
	await.NoError(t, "the nodes agree on the master of "+key, func() error {
		agreed, err := agreedMaster(running, clients, key)
		if err != nil {
			return err
		}
		for _, s := range running {
			if s.Address() == agreed && (wanted == nil || s == wanted) {
				master = s
				return nil
			}
		}
		return fmt.Errorf("its master is %s", agreed)
	})
	return master
}

// agreedMaster returns the address of the master of a key, or an error if the nodes do not name the same one.
func agreedMaster(nodes []*redistest.Server, clients []*redis.Client, key string) (string, error) {
	agreed := ""
	for i, client := range clients {
		err := redistest.CheckInfo(client.ClusterInfo(context.Background()), "cluster_state:ok", "cluster_slots_ok:16384")
		if err != nil {
			return "", err
		}
		err = client.Exists(context.Background(), key).Err()
		address, moved := redis.IsMovedError(err)
		switch {
		case err == nil:
			address = nodes[i].Address()
		case !moved:
			return "", err
		}
		if agreed != "" && address != agreed {
			return "", fmt.Errorf("%s for one, %s for another", agreed, address)
		}
		agreed = address
	}
	return agreed, nil
}

// running returns the nodes that have not been killed, and a client of each.
func (n *redisCluster) running(t testing.TB) (running []*redistest.Server, clients []*redis.Client) {
	for _, s := range n.All() {
		if !s.HasEnded() {
			running, clients = append(running, s), append(clients, s.Client(t))
		}
	}
	return running, clients
}

// ReplicaOf waits for a replica with the data of a master, and returns it.
func (n *redisCluster) ReplicaOf(t testing.TB, master *redistest.Server) *redistest.Server {
	t.Helper()
	running, clients := n.running(t)
	var replica *redistest.Server
	await.NoError(t, "a replica of "+master.Address(), func() error {
		for i, client := range clients {
			info := client.Info(context.Background(), "replication")
			if redistest.CheckInfo(info, fmt.Sprint("master_port:", master.Port), "master_link_status:up") == nil {
				replica = running[i]
				return nil
			}
		}
		return errors.New("no node follows it")
	})
	return replica
}

// FailOver makes a replica take over from its master: the master pauses writes until the replica has them all. It waits
// until all nodes agree that the replica is the master of key. Redis aborts a failover after five seconds, and FailOver
// starts it again.
func (n *redisCluster) FailOver(t testing.TB, key string, replica *redistest.Server) {
	t.Helper()
	client := replica.Client(t)
	var started time.Time
	await.NoError(t, replica.Address()+" takes over from its master", func() error {
		err := redistest.CheckInfo(client.Info(context.Background(), "replication"), "role:master")
		if err == nil || time.Since(started) < 6*time.Second {
			return err
		}
		started = time.Now()
		return cmp.Or(client.Do(context.Background(), "cluster", "failover").Err(), errors.New("it has begun to"))
	})
	n.AwaitMaster(t, key, replica)
}

// Migrate moves the slot of key to another master as redis-cli --cluster reshard does. It calls moving when the slot is
// open on both sides and before keys move, and again when all keys have moved but not the slot.
func (n *redisCluster) Migrate(t testing.TB, key string, to *redistest.Server, moving func()) {
	t.Helper()
	from := n.MasterOf(t, key)
	source, target := from.Client(t), to.Client(t)
	slot, err := source.ClusterKeySlot(context.Background(), key).Result()
	require.NoError(t, err)
	mustDo(t, target, "cluster", "setslot", slot, "importing", nodeID(t, source))
	mustDo(t, source, "cluster", "setslot", slot, "migrating", nodeID(t, target))
	moving()
	for {
		keys, err := source.ClusterGetKeysInSlot(context.Background(), int(slot), 100).Result()
		require.NoErrorf(t, err, "list the keys of slot %d", slot)
		if len(keys) == 0 {
			break
		}
		command := []any{"migrate", to.Host, to.Port, "", 0, redisTimeout.Milliseconds(), "keys"}
		for _, k := range keys {
			command = append(command, k)
		}
		mustDo(t, source, command...)
	}
	moving()
	mustDo(t, target, "cluster", "setslot", slot, "node", nodeID(t, target))
	mustDo(t, source, "cluster", "setslot", slot, "node", nodeID(t, target))
	n.AwaitMaster(t, key, to)
}

func nodeID(t testing.TB, client *redis.Client) string {
	t.Helper()
	id, err := client.ClusterMyID(context.Background()).Result()
	require.NoError(t, err, "read the id of a node")
	return id
}

// replicate waits until a replica has all earlier writes to a server. It writes key, because WAIT waits for the writes
// of its own connection.
func replicate(t testing.TB, s *redistest.Server, key string) {
	t.Helper()
	ctx := context.Background()
	connection := s.Client(t).Conn()
	defer connection.Close()
	require.NoErrorf(t, connection.Set(ctx, key, "", time.Minute).Err(), "write to %s", s.Address())
	if replicas, err := connection.Wait(ctx, 1, redisTimeout).Result(); err != nil || replicas < 1 {
		t.Fatalf("await a replica of %s: %d replicas, %v", s.Address(), replicas, err)
	}
}

// SetDownAfter makes the Sentinels take the master for dead only after a longer time than in [redistest.Sentinel].
func (w *redisSentinels) SetDownAfter(t testing.TB, d time.Duration) {
	t.Helper()
	for _, s := range w.Sentinels {
		mustDo(t, s.Client(t), "sentinel", "set", redistest.MasterName, "down-after-milliseconds", d.Milliseconds())
	}
}

// AwaitMaster waits until s is a master and all Sentinels name it.
func (w *redisSentinels) AwaitMaster(t testing.TB, s *redistest.Server) {
	t.Helper()
	master := s.Client(t)
	for _, one := range w.Sentinels {
		sentinel := one.Sentinel(t)
		await.NoError(t, one.Address()+" names the successor", func() error {
			if err := redistest.CheckInfo(master.Info(context.Background(), "replication"), "role:master"); err != nil {
				return err
			}
			named, err := sentinel.GetMasterAddrByName(context.Background(), redistest.MasterName).Result()
			if err == nil && (len(named) != 2 || named[1] != fmt.Sprint(s.Port)) {
				err = fmt.Errorf("it names %v", named)
			}
			return err
		})
	}
}

// faketime returns the path of the library that changes the clock of a process.
func faketime() (string, error) {
	return debian.Find("faketime", func() (string, error) {
		found, _ := filepath.Glob("/usr/lib/*/faketime/libfaketime.so.1") // the pattern is valid
		if len(found) == 0 {
			return "", errors.New("libfaketime.so.1 is not under /usr/lib")
		}
		return found[0], nil
	})
}

// clockedRedis is one Redis without persistence whose clock can be stepped. Step changes the time of day (TIME in a
// script, and the expiry of keys), but not the monotonic clock of its event loop.
type clockedRedis struct {
	*redistest.Server

	file string // Redis reads it with the clock
}

// startClocked starts one Redis with the clock of the machine, until Step changes it. Reading the clock is slower than
// in other servers. args are as for [redistest.Single].
func startClocked(t testing.TB, args ...string) *clockedRedis {
	t.Helper()
	library, err := faketime()
	require.NoError(t, err)
	c := &clockedRedis{file: filepath.Join(t.TempDir(), "clock")}
	c.Step(t, 0)
	// The library allocates memory when the clock is read. Redis's allocator reads the clock when it allocates memory.
	// libc does not, so memory comes from libc.
	c.Server = redistest.Start(t, []string{
		"LD_PRELOAD=" + library + ":libc.so.6",
		"FAKETIME_TIMESTAMP_FILE=" + c.file,
		"FAKETIME_NO_CACHE=1",
		"FAKETIME_DONT_FAKE_MONOTONIC=1",
	}, args...)
	return c
}

// Step sets the clock, at once, to that of the machine plus by, which may be negative.
func (c *clockedRedis) Step(t testing.TB, by time.Duration) {
	t.Helper()
	next := c.file + ".next"
	require.NoError(t, os.WriteFile(next, fmt.Appendf(nil, "%+f\n", by.Seconds()), 0o600), "step the clock")
	require.NoError(t, os.Rename(next, c.file), "step the clock")
}
