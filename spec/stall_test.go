package spec

import (
	"net/http"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/await"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/soak"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/kong/gateway"
)

// underLoad runs act while many clients send requests.
func underLoad(t *testing.T, n *node, act func(answered *atomic.Int64)) {
	t.Helper()
	var clients sync.WaitGroup
	var answered atomic.Int64
	done := make(chan struct{})
	for range 16 {
		clients.Go(func() {
			pace := time.NewTicker(10 * time.Millisecond)
			defer pace.Stop()
			for {
				select {
				case <-done:
					return
				case <-pace.C:
				}
				a, err := n.send(http.MethodGet, "/records", "apikey", "alice")
				if err != nil {
					t.Error(err)
					return
				}
				if a.Status == http.StatusOK {
					answered.Add(1)
				}
			}
		})
	}
	act(&answered)
	close(done)
	clients.Wait()
}

// awaitCount waits until count has grown by a number.
func awaitCount(t *testing.T, what string, count func() int64, by int64) {
	t.Helper()
	start := count()
	await.That(t, what, func() bool { return count() >= start+by })
}

// busyKong is an option of start: a busy Kong, which notices late that idle connections were closed.
func busyKong(o *gateway.Options) { o.NoticeAfter = 50 * time.Millisecond }

func TestSoakRestartsOfThePluginUnderLoadStallNoRoute(t *testing.T) {
	t.Parallel()
	awaitTurn(t)
	n := start(t, deck(plentiful), busyKong)
	underLoad(t, n, func(answered *atomic.Int64) {
		for range soak.Count(4, 10) {
			awaitCount(t, "requests before the restart", answered.Load, 100)
			require.NoError(t, syscall.Kill(n.runningPID(), syscall.SIGTERM))
			awaitCount(t, "a new process", n.Counters().Spawns, 1)
		}
		awaitCount(t, "requests after the restarts", answered.Load, 100)
	})
	if got := n.Counters().Stalls(); got != 0 {
		t.Errorf("%d requests waited for an instance until they gave up, want 0", got)
	}
}
