package redistest

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

// KeepHealthySlots has the masters serve their slots while those of another have no master. By default a Redis Cluster
// serves no client then.
func (n *Nodes) KeepHealthySlots(t testing.TB) {
	t.Helper()
	for _, s := range n.All() {
		do(t, s.Client(t), "config", "set", "cluster-require-full-coverage", "no")
	}
}

// Owner is the master that key lives on now. All nodes that run must agree; until then Owner waits.
func (n *Nodes) Owner(t testing.TB, key string) *Server {
	t.Helper()
	return n.agree(t, key, nil)
}

// AwaitOwner waits until all nodes that run agree that s owns key.
func (n *Nodes) AwaitOwner(t testing.TB, key string, s *Server) {
	t.Helper()
	n.agree(t, key, s)
}

// agree waits until all nodes that run agree on the owner of a key, and that it is the one wanted; nil: any.
func (n *Nodes) agree(t testing.TB, key string, wanted *Server) *Server {
	t.Helper()
	running := n.running()
	clients := make([]*redis.Client, len(running))
	for i, s := range running {
		clients[i] = s.Client(t)
	}
	var owner *Server
	until(t, "the nodes agree on the owner of "+key, func() error {
		agreed, err := agreedOwner(clients, key)
		if err != nil {
			return err
		}
		for _, s := range running {
			if s.Address() == agreed && (wanted == nil || s == wanted) {
				owner = s
				return nil
			}
		}
		return fmt.Errorf("they say %s", agreed)
	})
	return owner
}

// agreedOwner returns the address of the master of a key, or an error if the nodes do not name the same one.
func agreedOwner(clients []*redis.Client, key string) (string, error) {
	agreed := ""
	for _, client := range clients {
		info, err := client.ClusterInfo(context.Background()).Result()
		if err != nil {
			return "", err
		}
		served := fmt.Sprintf("cluster_slots_ok:%d\r\n", slots)
		if !strings.Contains(info, "cluster_state:ok\r\n") || !strings.Contains(info, served) {
			return "", errors.New("a node does not call its cluster whole")
		}
		address, err := ownerBy(client, key)
		if err != nil {
			return "", err
		}
		if agreed != "" && address != agreed {
			return "", fmt.Errorf("%s for one, %s for another", agreed, address)
		}
		agreed = address
	}
	return agreed, nil
}

// ownerBy returns the address of the master of a key, as one node sees it.
func ownerBy(client *redis.Client, key string) (string, error) {
	slot, err := client.ClusterKeySlot(context.Background(), key).Result()
	if err != nil {
		return "", err
	}
	ranges, err := client.ClusterSlots(context.Background()).Result() //nolint:staticcheck // Redis 6.2 has no SHARDS
	if err != nil {
		return "", err
	}
	for _, r := range ranges {
		if r.Start <= int(slot) && int(slot) <= r.End && len(r.Nodes) > 0 {
			return r.Nodes[0].Addr, nil
		}
	}
	return "", errors.New("its slot has no owner")
}

// running returns the nodes that have not been killed.
func (n *Nodes) running() []*Server {
	var running []*Server
	for _, s := range n.All() {
		select {
		case <-s.ended:
		default:
			running = append(running, s)
		}
	}
	return running
}

// ReplicaOf is a node that follows master and is in step with it. Until there is one it waits.
func (n *Nodes) ReplicaOf(t testing.TB, master *Server) *Server {
	t.Helper()
	running := n.running()
	clients := make([]*redis.Client, len(running))
	for i, s := range running {
		clients[i] = s.Client(t)
	}
	var replica *Server
	until(t, "a replica of "+master.Address(), func() error {
		for i, client := range clients {
			info, err := client.Info(context.Background(), "replication").Result()
			if err != nil {
				return err
			}
			if strings.Contains(info, fmt.Sprintf("master_port:%d\r\n", master.Port)) && inStep(client) == nil {
				replica = running[i]
				return nil
			}
		}
		return errors.New("there is none")
	})
	return replica
}

// FailOver has a replica take over from its master in the planned way: the master pauses writes until the replica has
// them all. It waits until all nodes agree that the replica owns key. Redis gives a failover up that takes longer than
// five seconds, and then it is asked for again.
func (n *Nodes) FailOver(t testing.TB, key string, replica *Server) {
	t.Helper()
	client := replica.Client(t)
	var asked time.Time
	until(t, replica.Address()+" takes over from its master", func() error {
		info, err := client.Info(context.Background(), "replication").Result()
		switch {
		case err != nil:
			return err
		case strings.Contains(info, "role:master\r\n"):
			return nil
		case time.Since(asked) < 6*time.Second:
			return errors.New("it is still a replica")
		}
		asked = time.Now()
		return client.Do(context.Background(), "cluster", "failover").Err()
	})
	n.AwaitOwner(t, key, replica)
}

// Migrate moves the slot of key to another master as redis-cli --cluster reshard does. It calls moving when the slot is
// open on both sides and nothing has moved, and again when all its keys have but the slot still belongs to the old
// owner.
func (n *Nodes) Migrate(t testing.TB, key string, to *Server, moving func()) {
	t.Helper()
	from := n.Owner(t, key)
	source, target := from.Client(t), to.Client(t)
	slot, err := source.ClusterKeySlot(context.Background(), key).Result()
	if err != nil {
		t.Fatal(err)
	}
	do(t, target, "cluster", "setslot", slot, "importing", id(t, source))
	do(t, source, "cluster", "setslot", slot, "migrating", id(t, target))
	moving()
	for {
		keys, err := source.ClusterGetKeysInSlot(context.Background(), int(slot), 100).Result()
		if err != nil {
			t.Fatalf("list the keys of slot %d: %v", slot, err)
		}
		if len(keys) == 0 {
			break
		}
		command := []any{"migrate", to.Host, to.Port, "", 0, 5000, "keys"}
		for _, k := range keys {
			command = append(command, k)
		}
		do(t, source, command...)
	}
	moving()
	do(t, target, "cluster", "setslot", slot, "node", id(t, target))
	do(t, source, "cluster", "setslot", slot, "node", id(t, target))
	n.AwaitOwner(t, key, to)
}

func id(t testing.TB, client *redis.Client) string {
	t.Helper()
	id, err := client.ClusterMyID(context.Background()).Result()
	if err != nil {
		t.Fatalf("ask a node for its id: %v", err)
	}
	return id
}

// Replicate returns once a replica has all that the server was written before the call. key is written for that: WAIT
// waits for what its own connection has written, and so for all before it.
func (s *Server) Replicate(t testing.TB, key string) {
	t.Helper()
	ctx := context.Background()
	connection := s.Client(t).Conn()
	defer connection.Close()
	if err := connection.Set(ctx, key, "", time.Minute).Err(); err != nil {
		t.Fatalf("write to %s: %v", s.Address(), err)
	}
	if replicas, err := connection.Wait(ctx, 1, patience).Result(); err != nil || replicas < 1 {
		t.Fatalf("%s waits for a replica: %d have it, %v", s.Address(), replicas, err)
	}
}

// Promoted waits until all Sentinels name s as the master, and s is one.
func (w *Watched) Promoted(t testing.TB, s *Server) {
	t.Helper()
	master := s.Client(t)
	for _, one := range w.Sentinels {
		sentinel := redis.NewSentinelClient(&redis.Options{Addr: one.Address()})
		until(t, one.Address()+" names the successor", func() error {
			info, err := master.Info(context.Background(), "replication").Result()
			if err == nil && !strings.Contains(info, "role:master\r\n") {
				err = errors.New("the successor is a replica")
			}
			if err != nil {
				return err
			}
			named, err := sentinel.GetMasterAddrByName(context.Background(), MasterName).Result()
			if err == nil && (len(named) != 2 || named[1] != fmt.Sprint(s.Port)) {
				err = fmt.Errorf("it names %v", named)
			}
			return err
		})
		if err := sentinel.Close(); err != nil {
			t.Fatalf("close the connection to a Sentinel: %v", err)
		}
	}
}
