package redistest

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/await"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/freeport"
)

// slots is the number of slots of a Redis Cluster.
const slots = 16384

// Nodes is a running Redis Cluster.
type Nodes struct {
	Masters  []*Server // in the order of their slots, each with about as many
	Replicas []*Server // replica i follows master i modulo the number of masters
}

// All returns the masters and then the replicas.
func (n *Nodes) All() []*Server {
	return append(n.Masters[:len(n.Masters):len(n.Masters)], n.Replicas...)
}

// Cluster starts a Redis Cluster, and waits until every node reports it complete. Each master has the given number of
// replicas. Nodes take another for dead only after a minute: on a busy machine a process may not run for a while.
func Cluster(t testing.TB, masters, replicas int) *Nodes {
	t.Helper()
	var n Nodes
	for range masters {
		n.Masters = append(n.Masters, startNode(t))
	}
	for range masters * replicas {
		n.Replicas = append(n.Replicas, startNode(t))
	}
	n.assignSlots(t)
	n.meet(t)
	n.replicate(t)
	n.SetNodeTimeout(t, time.Minute)
	return &n
}

// SetNodeTimeout sets how long a node may be silent before the others take it for dead.
func (n *Nodes) SetNodeTimeout(t testing.TB, d time.Duration) {
	t.Helper()
	for _, s := range n.All() {
		do(t, s.Client(t), "config", "set", "cluster-node-timeout", d.Milliseconds())
	}
}

// startNode starts a server that is in no cluster yet.
func startNode(t testing.TB) *Server {
	t.Helper()
	return Single(t, "--repl-diskless-sync-delay", "0", "--cluster-enabled", "yes", "--cluster-node-timeout", "500",
		"--cluster-replica-validity-factor", "0", "--cluster-port", strconv.Itoa(freeport.Port(t)))
}

// assignSlots gives each master its slots.
func (n *Nodes) assignSlots(t testing.TB) {
	t.Helper()
	share := slots / len(n.Masters)
	for i, master := range n.Masters {
		last := (i+1)*share - 1
		if i == len(n.Masters)-1 {
			last = slots - 1
		}
		client := master.Client(t)
		do(t, client, "cluster", "addslotsrange", i*share, last)
		do(t, client, "cluster", "set-config-epoch", i+1)
	}
}

// meet joins the nodes to one cluster and waits until it is complete.
func (n *Nodes) meet(t testing.TB) {
	t.Helper()
	first, all := n.Masters[0], n.All()
	inviting := first.Client(t)
	invite := func() {
		known := inviting.ClusterNodes(context.Background()).Val()
		for _, s := range all[1:] {
			if !strings.Contains(known, s.Address()+"@") { // or it has stalled for a second, and missed the invitation
				busPort := s.command[slices.Index(s.command, "--cluster-port")+1]
				do(t, inviting, "cluster", "meet", s.Host, s.Port, busPort)
			}
		}
	}
	for _, s := range all {
		client := s.Client(t)
		await.NoError(t, s.Address()+" meets its cluster", func() error {
			invite()
			return CheckInfo(client.ClusterInfo(context.Background()), "cluster_state:ok", allSlots,
				fmt.Sprint("cluster_known_nodes:", len(all)))
		})
	}
}

// allSlots is the line of the info of a cluster whose slots are all served.
var allSlots = fmt.Sprint("cluster_slots_ok:", slots)

// CheckInfo returns an error unless an info has all lines.
func CheckInfo(from *redis.StringCmd, lines ...string) error {
	info, err := from.Result()
	for _, line := range lines {
		if err == nil && !strings.Contains(info, line+"\r\n") {
			err = fmt.Errorf("no %s in its info", line)
		}
	}
	return err
}

// replicate makes the replicas follow their masters and waits until their data is complete.
func (n *Nodes) replicate(t testing.TB) {
	t.Helper()
	for i, replica := range n.Replicas {
		client := replica.Client(t)
		master, err := n.Masters[i%len(n.Masters)].Client(t).ClusterMyID(context.Background()).Result()
		require.NoError(t, err, "read the id of a node")
		await.NoError(t, replica.Address()+" follows its master", func() error {
			return client.ClusterReplicate(context.Background(), master).Err()
		})
		replica.awaitSynced(t)
	}
}

// awaitSynced waits until a replica has the data of its master.
func (s *Server) awaitSynced(t testing.TB) {
	t.Helper()
	client := s.Client(t)
	await.NoError(t, s.Address()+" has the data of its master", func() error {
		return CheckInfo(client.Info(context.Background(), "replication"), "master_link_status:up")
	})
}

// KeepHealthySlots makes the masters serve their slots while other slots have no master. By default a Redis Cluster
// serves no client then.
func (n *Nodes) KeepHealthySlots(t testing.TB) {
	t.Helper()
	for _, s := range n.All() {
		do(t, s.Client(t), "config", "set", "cluster-require-full-coverage", "no")
	}
}

// MasterName is the name of the master in the Sentinels of [Sentinel].
const MasterName = "buckets"

// Watched is a running master with a replica, and three Sentinels that watch them.
type Watched struct {
	Master    *Server
	Replica   *Server
	Sentinels []*Server
}

// Sentinel starts a master, a replica and three Sentinels that detect a dead master after half a second, and waits
// until each has found the others and the replica.
func Sentinel(t testing.TB) *Watched {
	t.Helper()
	w := &Watched{Master: Single(t, "--repl-diskless-sync-delay", "0")}
	w.Replica = Single(t, "--repl-diskless-sync-delay", "0",
		"--replicaof", fmt.Sprintf("%s %d", w.Master.Host, w.Master.Port))
	w.Replica.awaitSynced(t)
	for range 3 {
		w.Sentinels = append(w.Sentinels, w.startSentinel(t))
	}
	for _, s := range w.Sentinels {
		sentinel := s.Sentinel(t)
		await.NoError(t, s.Address()+" finds the other Sentinels and the replica", func() error {
			info, err := sentinel.Master(context.Background(), MasterName).Result()
			if err == nil && (info["num-slaves"] != "1" || info["num-other-sentinels"] != "2") {
				err = fmt.Errorf("found %s replicas and %s other Sentinels",
					info["num-slaves"], info["num-other-sentinels"])
			}
			return err
		})
	}
	return w
}

// startSentinel starts a Sentinel with a file of its own, because it rewrites its configuration.
func (w *Watched) startSentinel(t testing.TB) *Server {
	t.Helper()
	file := filepath.Join(folder(t), "sentinel.conf")
	text := fmt.Sprintf("sentinel monitor %[1]s %[2]s %[3]d 2\nsentinel down-after-milliseconds %[1]s 500\n"+
		"sentinel failover-timeout %[1]s 5000\n", MasterName, w.Master.Host, w.Master.Port)
	require.NoError(t, os.WriteFile(file, []byte(text), 0o600))
	return Single(t, file, "--sentinel")
}
