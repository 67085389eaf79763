package spec

import (
	"net/http"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/await"
)

// replaceWorker sends SIGHUP, and waits until the next worker has the place of the current one.
func (n *node) replaceWorker() {
	n.t.Helper()
	before := workerOf(n.t, n.runningPID())
	require.NoError(n.t, syscall.Kill(n.runningPID(), syscall.SIGHUP))
	await.That(n.t, "the end of the worker before", func() bool { return syscall.Kill(before, 0) != nil })
}

func TestNoMoreThanALocalLimitIsAdmittedOverThreeSIGHUPsUnderLoad(t *testing.T) {
	t.Parallel()
	const limit = 1500
	n := start(t, deck(`{strategy: local, tiers: [{name: a, limits: [{name: year, scope: tenant, limit: 1500,
		window_size: 31536000, algorithm: fixed_window}]}]}`))
	var admitted, denied atomic.Int64
	l := startLoad(20, 20*time.Millisecond, func() (answer, error) {
		a, err := n.send("GET", "/records", "apikey", "alice")
		switch a.Status {
		case http.StatusOK:
			admitted.Add(1)
		case http.StatusTooManyRequests:
			denied.Add(1)
		}
		return a, err
	})
	answered := func() int64 { return admitted.Load() + denied.Load() } // a slow restart may see the limit used up
	for range 3 {
		awaitCount(t, "requests before the restart", answered, 200)
		n.replaceWorker()
	}
	awaitCount(t, "denials", denied.Load, 20)
	n.replaceWorker()
	awaitCount(t, "denials after a restart", denied.Load, 200)
	l.end()
	assert.EqualValues(t, limit, admitted.Load(), "admitted requests")
	assert.Equal(t, l.failed.Load(), denied.Load(), "failed requests")
	assert.Zero(t, n.Counters().Replays.Load(), "events that Kong has replayed")
}

func TestChatsThatASIGHUPInterruptsAreChargedWhatTheyUse(t *testing.T) {
	t.Parallel()
	inStores(t, func(t *testing.T, store string) {
		const chats = 5
		var arrived atomic.Int64
		answer := make(chan struct{})
		b := budget{node: start(t, settlingDeck(store, `{name: budget, scope: tenant, limit: 100000, window_size: 31536000,
			algorithm: fixed_window, settle: {sources: [{from: header.X-Tokens-Used}], reserve: 1000}}`), settling,
			chatting(func(w http.ResponseWriter, _ *http.Request) {
				arrived.Add(1)
				<-answer
				w.Header().Set("X-Tokens-Used", "200")
			}))}
		var under sync.WaitGroup
		for range chats {
			under.Go(func() {
				a, err := b.send("GET", "/chat", "apikey", "beth")
				assert.NoError(t, err)
				assert.Equal(t, http.StatusOK, a.Status)
			})
		}
		await.That(t, "the chats at their upstream", func() bool { return arrived.Load() == chats })
		for range 2 {
			b.replaceWorker()
			assert.Equal(t, 100_000-chats*1000, b.left(1000), "left while the chats run")
		}
		close(answer)
		under.Wait()
		b.sent += chats
		await.That(t, "their log phases", func() bool { return b.Counters().LogEvents.Load() >= b.sent })
		assert.Equal(t, 100_000-chats*200, b.left(1000), "left after the chats")
	})
}
