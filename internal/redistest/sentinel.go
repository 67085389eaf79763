package redistest

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/await"
)

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
	plain := []string{"--save", "", "--appendonly", "no", "--repl-diskless-sync-delay", "0"}
	w := &Watched{Master: start(t, launch{args: plain})}
	w.Replica = start(t, launch{args: append(plain, "--replicaof", fmt.Sprintf("%s %d", w.Master.Host, w.Master.Port))})
	replica := w.Replica.Client(t)
	await.NoError(t, "the replica has the data of its master", func() error { return checkSynced(replica) })
	for range 3 {
		w.Sentinels = append(w.Sentinels, w.startSentinel(t))
	}
	for _, s := range w.Sentinels {
		sentinel := redis.NewSentinelClient(&redis.Options{Addr: s.Address()})
		await.NoError(t, s.Address()+" finds the other Sentinels and the replica", func() error {
			return checkFound(sentinel)
		})
		require.NoError(t, sentinel.Close(), "close the connection to a Sentinel")
	}
	return w
}

// checkFound returns an error unless a Sentinel has found the replica and the other Sentinels.
func checkFound(sentinel *redis.SentinelClient) error {
	info, err := sentinel.Master(context.Background(), MasterName).Result()
	if err == nil && (info["num-slaves"] != "1" || info["num-other-sentinels"] != "2") {
		err = fmt.Errorf("found %s replicas and %s other Sentinels", info["num-slaves"], info["num-other-sentinels"])
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

// startSentinel starts a Sentinel with a file of its own, because it rewrites its configuration.
func (w *Watched) startSentinel(t testing.TB) *Server {
	t.Helper()
	file := filepath.Join(folder(t), "sentinel.conf")
	text := fmt.Sprintf("sentinel monitor %[1]s %[2]s %[3]d 2\nsentinel down-after-milliseconds %[1]s 500\n"+
		"sentinel failover-timeout %[1]s 5000\n", MasterName, w.Master.Host, w.Master.Port)
	require.NoError(t, os.WriteFile(file, []byte(text), 0o600))
	return start(t, launch{args: []string{file, "--sentinel"}, noSocket: true})
}
