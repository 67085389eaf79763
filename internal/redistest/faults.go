package redistest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/await"
)

// KeepHealthySlots makes the masters serve their slots while other slots have no master. By default a Redis Cluster
// serves no client then.
func (n *Nodes) KeepHealthySlots(t testing.TB) {
	t.Helper()
	for _, s := range n.All() {
		do(t, s.Client(t), "config", "set", "cluster-require-full-coverage", "no")
	}
}

// SetNodeTimeout makes the nodes take another for dead only after a longer time than in [Cluster]: on a busy machine a
// process may not run for a while.
func (n *Nodes) SetNodeTimeout(t testing.TB, d time.Duration) {
	t.Helper()
	for _, s := range n.All() {
		do(t, s.Client(t), "config", "set", "cluster-node-timeout", d.Milliseconds())
	}
}

// MasterOf waits until all running nodes agree on the master of a key, and returns it.
func (n *Nodes) MasterOf(t testing.TB, key string) *Server {
	t.Helper()
	return n.awaitAgreement(t, key, nil)
}

// AwaitMaster waits until all running nodes agree that s is the master of a key.
func (n *Nodes) AwaitMaster(t testing.TB, key string, s *Server) {
	t.Helper()
	n.awaitAgreement(t, key, s)
}

// awaitAgreement waits until all running nodes agree on the master of a key, and that it is wanted, if that is not nil.
func (n *Nodes) awaitAgreement(t testing.TB, key string, wanted *Server) *Server {
	t.Helper()
	running, clients := n.running(t)
	var master *Server
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
func agreedMaster(nodes []*Server, clients []*redis.Client, key string) (string, error) {
	agreed := ""
	for i, client := range clients {
		err := checkInfo(client.ClusterInfo(context.Background()), "cluster_state:ok", allSlots)
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
func (n *Nodes) running(t testing.TB) (running []*Server, clients []*redis.Client) {
	for _, s := range n.All() {
		if !s.process.HasEnded() {
			running, clients = append(running, s), append(clients, s.Client(t))
		}
	}
	return running, clients
}

// ReplicaOf waits for a replica with the data of a master, and returns it.
func (n *Nodes) ReplicaOf(t testing.TB, master *Server) *Server {
	t.Helper()
	running, clients := n.running(t)
	var replica *Server
	await.NoError(t, "a replica of "+master.Address(), func() error {
		for i, client := range clients {
			info := client.Info(context.Background(), "replication")
			if checkInfo(info, fmt.Sprint("master_port:", master.Port), synced) == nil {
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
func (n *Nodes) FailOver(t testing.TB, key string, replica *Server) {
	t.Helper()
	client := replica.Client(t)
	var started time.Time
	await.NoError(t, replica.Address()+" takes over from its master", func() error {
		err := checkReplication(client, "role:master")
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
func (n *Nodes) Migrate(t testing.TB, key string, to *Server, moving func()) {
	t.Helper()
	from := n.MasterOf(t, key)
	source, target := from.Client(t), to.Client(t)
	slot, err := source.ClusterKeySlot(context.Background(), key).Result()
	require.NoError(t, err)
	do(t, target, "cluster", "setslot", slot, "importing", id(t, source))
	do(t, source, "cluster", "setslot", slot, "migrating", id(t, target))
	moving()
	for {
		keys, err := source.ClusterGetKeysInSlot(context.Background(), int(slot), 100).Result()
		require.NoErrorf(t, err, "list the keys of slot %d", slot)
		if len(keys) == 0 {
			break
		}
		command := []any{"migrate", to.Host, to.Port, "", 0, serverTimeout.Milliseconds(), "keys"}
		for _, k := range keys {
			command = append(command, k)
		}
		do(t, source, command...)
	}
	moving()
	do(t, target, "cluster", "setslot", slot, "node", id(t, target))
	do(t, source, "cluster", "setslot", slot, "node", id(t, target))
	n.AwaitMaster(t, key, to)
}

func id(t testing.TB, client *redis.Client) string {
	t.Helper()
	id, err := client.ClusterMyID(context.Background()).Result()
	require.NoError(t, err, "read the id of a node")
	return id
}

// Replicate waits until a replica has all earlier writes to the server. It writes key, because WAIT waits for the
// writes of its own connection.
func (s *Server) Replicate(t testing.TB, key string) {
	t.Helper()
	ctx := context.Background()
	connection := s.Client(t).Conn()
	defer connection.Close()
	require.NoErrorf(t, connection.Set(ctx, key, "", time.Minute).Err(), "write to %s", s.Address())
	if replicas, err := connection.Wait(ctx, 1, serverTimeout).Result(); err != nil || replicas < 1 {
		t.Fatalf("await a replica of %s: %d replicas, %v", s.Address(), replicas, err)
	}
}

// SetDownAfter makes the Sentinels take the master for dead only after a longer time than in [Sentinel].
func (w *Watched) SetDownAfter(t testing.TB, d time.Duration) {
	t.Helper()
	for _, s := range w.Sentinels {
		do(t, s.Client(t), "sentinel", "set", MasterName, "down-after-milliseconds", d.Milliseconds())
	}
}

// AwaitMaster waits until s is a master and all Sentinels name it.
func (w *Watched) AwaitMaster(t testing.TB, s *Server) {
	t.Helper()
	master := s.Client(t)
	for _, one := range w.Sentinels {
		sentinel := one.sentinel(t)
		await.NoError(t, one.Address()+" names the successor", func() error {
			if err := checkReplication(master, "role:master"); err != nil {
				return err
			}
			named, err := sentinel.GetMasterAddrByName(context.Background(), MasterName).Result()
			if err == nil && (len(named) != 2 || named[1] != fmt.Sprint(s.Port)) {
				err = fmt.Errorf("it names %v", named)
			}
			return err
		})
	}
}
