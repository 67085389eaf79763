package spec

import (
	"context"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/await"
)

// usageTraffic is load on a governed node, with the instant of each answer of the plugin.
type usageTraffic struct {
	n     *node
	begun time.Time
	stop  func()

	mu      sync.Mutex
	answers []time.Time
	failed  int64 // requests without an answer of the plugin, which may have counted
}

// usageLoad starts load, which ends when stop is called.
func usageLoad(t *testing.T, n *node) *usageTraffic {
	ctx, cancel := context.WithCancel(context.Background())
	tr, group := &usageTraffic{n: n, begun: time.Now()}, sync.WaitGroup{}
	for range 4 {
		group.Go(func() {
			pace := time.NewTicker(10 * time.Millisecond)
			defer pace.Stop()
			for ctx.Err() == nil {
				<-pace.C
				a, err := n.send("GET", "/records", "apikey", "alice")
				tr.note(err == nil && (a.Status == 200 || a.Status == 429))
			}
		})
	}
	tr.stop = sync.OnceFunc(func() {
		cancel()
		group.Wait()
	})
	t.Cleanup(tr.stop)
	return tr
}

func (tr *usageTraffic) note(answered bool) {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	if answered {
		tr.answers = append(tr.answers, time.Now())
	} else {
		tr.failed++
	}
}

// count returns the number of answers so far.
func (tr *usageTraffic) count() int64 {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	return int64(len(tr.answers))
}

// terminate ends the plugin process with SIGTERM, and waits for its successor and for answers of it.
func (tr *usageTraffic) terminate(t *testing.T) {
	t.Helper()
	victim := tr.n.runningPID()
	require.NoError(t, syscall.Kill(victim, syscall.SIGTERM))
	await.That(t, "another plugin process", func() bool { pid := tr.n.PluginPID(); return pid != victim && pid != 0 })
	awaitCount(t, "traffic after the signal", tr.count, 100)
}

// unpack runs ratelimit tidy, until no batch waits, and returns the requests that the minutes count. Batches that were
// set aside do not wait.
func (g *governed) unpack() (requests int64) {
	g.t.Helper()
	await.That(g.t, "all batches are unpacked", func() bool {
		out, err := exec.Command(filepath.Join(binaries, "ratelimit"), "tidy", "--database", g.dsn).CombinedOutput()
		if err != nil {
			g.t.Fatalf("%v: %s", err, out)
		}
		return g.one(`SELECT count(*) FROM rate_limiter.usage_batches WHERE fault = ''`) == 0
	})
	return g.one(`SELECT coalesce(sum(m.admitted + m.denied), 0)::bigint FROM rate_limiter.usage_minutes m
		JOIN rate_limiter.usage_names policy ON policy.id = m.policy AND policy.name = ''`)
}

// one returns a number from the database.
func (g *governed) one(query string) (n int64) {
	g.t.Helper()
	if err := g.rows.QueryRow(g.t.Context(), query).Scan(&n); err != nil {
		g.t.Fatalf("%s: %v", query, err)
	}
	return n
}

func TestUsageIsWhatWasAnsweredAlsoOverRestartsWithoutPostgres(t *testing.T) {
	t.Parallel()
	g := govern(t)
	tr := usageLoad(t, g.node)
	awaitCount(t, "traffic", tr.count, 100)
	tr.terminate(t)
	g.server.Stop(t)
	tr.terminate(t)
	tr.terminate(t)
	g.server.Start(t)
	awaitCount(t, "traffic", tr.count, 100)
	tr.stop()
	answered, replays := tr.count(), g.Counters().Replays.Load()
	if err := g.Close(); err != nil { // ends the process with SIGTERM
		t.Fatal(err)
	}
	g.restart() // sends what the ended ones have left, after what is its own
	await.That(t, "all batches are sent", func() bool {
		waiting, err := filepath.Glob(filepath.Join(g.saved, "usage", "*.batch"))
		require.NoError(t, err)
		return g.number("rate_limiter_usage_batches_total") > 0 && len(waiting) == 0
	})
	counted := g.unpack()
	t.Logf("%d requests counted, %d answered, %d replayed; Kong answered %d without the plugin",
		counted, answered, replays, tr.failed)
	if counted < answered || counted > answered+replays {
		t.Errorf("%d requests are counted, want the %d that were answered, and at most %d more", counted, answered, replays)
	}
}
