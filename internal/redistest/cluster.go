package redistest

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/freeport"
)

// slots is the number of slots of a Redis Cluster.
const slots = 16384

// Nodes is a running Redis Cluster.
type Nodes struct {
	Masters  []*Server // in the order of their slots, which are shared out evenly
	Replicas []*Server // number i is one of master i modulo the number of masters
}

// Addresses returns host:port of all nodes, masters first.
func (n *Nodes) Addresses() []string {
	var all []string
	for _, s := range n.All() {
		all = append(all, s.Address())
	}
	return all
}

// All returns the masters and then the replicas.
func (n *Nodes) All() []*Server {
	return append(n.Masters[:len(n.Masters):len(n.Masters)], n.Replicas...)
}

// Cluster starts a Redis Cluster that notices a dead node after half a second, and waits until every node calls it
// complete. Each master has the given number of replicas.
func Cluster(t testing.TB, masters, replicas int) *Nodes {
	t.Helper()
	var n Nodes
	for range masters {
		n.Masters = append(n.Masters, node(t))
	}
	for range masters * replicas {
		n.Replicas = append(n.Replicas, node(t))
	}
	n.shareSlots(t)
	n.meet(t)
	n.replicate(t)
	return &n
}

func node(t testing.TB) *Server {
	t.Helper()
	return start(t, launch{args: []string{
		"--save",
		"",
		"--appendonly",
		"no",
		"--cluster-enabled",
		"yes",
		"--cluster-node-timeout",
		"500",
		"--cluster-port",
		strconv.Itoa(freeport.Port(t)),
		"--cluster-replica-validity-factor",
		"0",
		"--repl-diskless-sync-delay",
		"0",
	}})
}

func (n *Nodes) shareSlots(t testing.TB) {
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

func (n *Nodes) meet(t testing.TB) {
	t.Helper()
	first, all := n.Masters[0], n.All()
	client := first.Client(t)
	for _, s := range all[1:] {
		do(t, client, "cluster", "meet", s.Host, s.Port, busPort(t, s))
	}
	for _, s := range all {
		client := s.Client(t)
		until(t, s.Address()+" meets its cluster", func() error { return complete(client, len(all)) })
	}
}

// busPort returns the port of a node for other nodes.
func busPort(t testing.TB, s *Server) int {
	t.Helper()
	answer, err := s.Client(t).ConfigGet(context.Background(), "cluster-port").Result()
	if err != nil {
		t.Fatalf("ask %s for its cluster-port: %v", s.Address(), err)
	}
	port, err := strconv.Atoi(answer["cluster-port"])
	if err != nil {
		t.Fatalf("cluster-port of %s: %v", s.Address(), err)
	}
	return port
}

// complete returns why a node does not consider its cluster complete, or nil.
func complete(client *redis.Client, nodes int) error {
	info, err := client.ClusterInfo(context.Background()).Result()
	if err != nil {
		return err
	}
	wanted := []string{
		"cluster_state:ok", fmt.Sprint("cluster_known_nodes:", nodes), fmt.Sprint("cluster_slots_ok:", slots),
	}
	for _, line := range wanted {
		if !strings.Contains(info, line+"\r\n") {
			return fmt.Errorf("it does not say %s", line)
		}
	}
	return nil
}

func (n *Nodes) replicate(t testing.TB) {
	t.Helper()
	for i, replica := range n.Replicas {
		client := replica.Client(t)
		id, err := n.Masters[i%len(n.Masters)].Client(t).ClusterMyID(context.Background()).Result()
		if err != nil {
			t.Fatalf("ask a master for its id: %v", err)
		}
		until(t, replica.Address()+" follows its master", func() error {
			return client.ClusterReplicate(context.Background(), id).Err()
		})
		until(t, replica.Address()+" is in step with its master", func() error { return inStep(client) })
	}
}

// inStep returns why a replica does not have all of its master, or nil.
func inStep(client *redis.Client) error {
	info, err := client.Info(context.Background(), "replication").Result()
	if err == nil && !strings.Contains(info, "master_link_status:up\r\n") {
		err = fmt.Errorf("it does not say master_link_status:up")
	}
	return err
}
