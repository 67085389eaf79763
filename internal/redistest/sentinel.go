package redistest

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/redis/go-redis/v9"
)

// MasterName is the name by which the Sentinels of [Sentinel] know the master.
const MasterName = "buckets"

// Watched is a running master with a replica, and three Sentinels that watch them.
type Watched struct {
	Master    *Server
	Replica   *Server
	Sentinels []*Server
}

// Sentinel starts a master, a replica and three Sentinels that notice a dead master after half a second, and waits
// until each knows the others and the replica.
func Sentinel(t testing.TB) *Watched {
	t.Helper()
	plain := []string{"--save", "", "--appendonly", "no", "--repl-diskless-sync-delay", "0"}
	w := &Watched{Master: start(t, launch{args: plain})}
	w.Replica = start(t, launch{args: append(plain, "--replicaof", fmt.Sprintf("%s %d", w.Master.Host, w.Master.Port))})
	replica := w.Replica.Client(t)
	until(t, "the replica is in step with its master", func() error { return inStep(replica) })
	for range 3 {
		w.Sentinels = append(w.Sentinels, w.sentinel(t))
	}
	for _, s := range w.Sentinels {
		sentinel := redis.NewSentinelClient(&redis.Options{Addr: s.Address()})
		until(t, s.Address()+" knows the other Sentinels and the replica", func() error { return acquainted(sentinel) })
		if err := sentinel.Close(); err != nil {
			t.Fatalf("close the connection to a Sentinel: %v", err)
		}
	}
	return w
}

// acquainted returns which servers a Sentinel has not found yet, or nil.
func acquainted(sentinel *redis.SentinelClient) error {
	facts, err := sentinel.Master(context.Background(), MasterName).Result()
	if err == nil && (facts["num-slaves"] != "1" || facts["num-other-sentinels"] != "2") {
		err = fmt.Errorf("it knows %s replicas and %s other Sentinels", facts["num-slaves"], facts["num-other-sentinels"])
	}
	return err
}

// Addresses returns host:port of the Sentinels.
func (w *Watched) Addresses() []string {
	var all []string
	for _, s := range w.Sentinels {
		all = append(all, s.Address())
	}
	return all
}

// sentinel starts a Sentinel. It rewrites its configuration, so it has a file of its own.
func (w *Watched) sentinel(t testing.TB) *Server {
	t.Helper()
	file := filepath.Join(folder(t), "sentinel.conf")
	text := fmt.Sprintf("sentinel monitor %[1]s %[2]s %[3]d 2\nsentinel down-after-milliseconds %[1]s 500\n"+
		"sentinel failover-timeout %[1]s 5000\n", MasterName, w.Master.Host, w.Master.Port)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return start(t, launch{args: []string{file, "--sentinel"}, noSocket: true})
}
