package outage

import (
	"context"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/decision"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
)

// run runs the world's store in a bubble, until the function that it answers is called.
func (w *world) run(t *testing.T) (end func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- w.store.Run(ctx) }()
	return func() {
		cancel()
		assert.NoError(t, <-done, "run")
	}
}

func TestLimitsAreSharedAmongTheNodesThatLastLived(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(Options{}, StoreOptions{Nodes: 2})
		w.servers.live = 4
		share := func() int64 {
			b := bound(t, policy.FailLocal, 1000, "acme")
			w.servers.set("acme", unreachable)
			statuses, _ := w.take(t, b)
			return statuses[0].Remaining + statuses[0].Used
		}
		if got := share(); got != 350 {
			t.Errorf("share %d before any node was counted, want 350 of the floor of 2", got)
		}
		end := w.run(t)
		defer end()
		synctest.Wait()
		if got := share(); got != 175 {
			t.Errorf("share %d among 4 nodes, want 175", got)
		}
		w.servers.set("", unreachable)
		time.Sleep(time.Minute)
		if got := share(); got != 175 {
			t.Errorf("share %d while the count is unavailable, want the last one's 175", got)
		}
		w.servers.set("", up)
		w.servers.mu.Lock()
		w.servers.live = 1
		w.servers.mu.Unlock()
		time.Sleep(2 * beat)
		if got := share(); got != 350 {
			t.Errorf("share %d when the others have gone, want 350 of the floor of 2", got)
		}
		assert.Equal(t, 1, w.store.Stats().Live["default"], "live nodes")
	})
}

func TestANodeVouchesForLeasesOnlyWhileAllOthersKnowIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(Options{}, StoreOptions{})
		w.servers.live = 4
		end := w.run(t)
		defer end()
		awaits := func(when string, pause time.Duration, want int) {
			t.Helper()
			time.Sleep(pause)
			synctest.Wait()
			assert.Equal(t, want, w.store.LeaseNodes("default"), "%s: counted among", when)
		}
		awaits("at the start", 0, 0)
		awaits("before all others know", minCounted-beat/2, 0)
		awaits("when all others know", beat, 4)
		got := w.store.LeaseNodes("elsewhere")
		assert.True(t, got == 0, "counted among %d where this node does not live", got)
		w.servers.set("", unreachable)
		awaits("just after the last beat", maxBeatAge-beat, 4)
		awaits("when that is old", beat, 0)
		w.servers.set("", up)
		awaits("when it is back, and others may have believed it dead", minCounted, 0)
		awaits("later", 2*beat, 4)
		w.servers.mu.Lock()
		w.servers.live = 1 // Redis has lost all nodes, and this one is the first to report again
		w.servers.mu.Unlock()
		awaits("when the others are no longer found", lifetime-beat, 4)
		awaits("when they have not been for five seconds", 2*beat, 1)
	})
}

func TestANodeLivesInTheNamespacesInUse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(Options{}, StoreOptions{Namespace: "a"})
		again := w.store.Store(StoreOptions{Namespace: "a"})
		end := w.run(t)
		synctest.Wait()
		beats := func() string {
			w.servers.mu.Lock()
			defer w.servers.mu.Unlock()
			var names []string
			for _, name := range []string{"a", "b"} {
				if w.servers.beats[name] != "" {
					names = append(names, name)
				}
			}
			return strings.Join(names, " ")
		}
		w.store.Store(StoreOptions{Namespace: "b"})
		synctest.Wait()
		if got := beats(); got != "a b" {
			t.Errorf("lives in %q at once, want both", got)
		}
		w.view.Close()
		w.view.Close()
		time.Sleep(2 * beat)
		if got := beats(); got != "a b" {
			t.Errorf("lives in %q while one view of a is left", got)
		}
		again.Close()
		time.Sleep(2 * beat)
		if got := beats(); got != "b" {
			t.Errorf("lives in %q without views of a", got)
		}
		end()
		if got := beats(); got != "" {
			t.Errorf("lives in %q after the end", got)
		}
	})
}

func TestAnOutageEndsWithoutTrafficAndIsReconciled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(Options{}, StoreOptions{})
		w.servers.gate = w.breakers.New("main", "a", timeout)
		end := w.run(t)
		defer end()
		synctest.Wait()
		b := bound(t, policy.FailLocal, 100, "acme")
		w.servers.set("acme", unreachable)
		w.servers.set("", unreachable)
		for range 5 {
			w.take(t, b)
		}
		if w.servers.takes != failuresInARow || !w.store.Degraded() {
			t.Errorf("%d of 5 requests were sent, degraded %v: want no more than open the breaker",
				w.servers.takes, w.store.Degraded())
		}
		time.Sleep(30 * time.Second)
		w.expect(t, "local", Tally{Unverified: 5}, 5)
		w.servers.set("acme", up)
		w.servers.set("", up)
		time.Sleep(longestPause*12/10 + beat + maxChargeDelay)
		synctest.Wait()
		w.expect(t, "local", Tally{Unverified: 5, Charged: 5}, 0)
		assert.False(t, w.store.Degraded(), "still degraded")
	})
}

func TestFailuresThatOpenNoBreakerAreReconciledToo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(Options{}, StoreOptions{})
		end := w.run(t)
		defer end()
		w.outageOf(t, bound(t, policy.FailOpen, 100, "acme"), 1)
		time.Sleep(2*beat + maxChargeDelay)
		synctest.Wait()
		w.expect(t, "open", Tally{Unverified: 1, Charged: 1}, 0)
	})
}

func TestManyBucketsAreChargedInBatches(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(Options{}, StoreOptions{})
		for _, b := range someBounds(t, 5*batch) {
			w.outageOf(t, b, 1)
		}
		w.store.wantCharge()
		first := w.store.stepCharge(t.Context(), time.Now())
		batches := 0
		for next := first; !next.IsZero(); next = w.store.stepCharge(t.Context(), time.Now()) {
			if pause := next.Sub(first); pause != time.Duration(batches)*batchPause {
				t.Errorf("batch %d is due %v after the first, want %v", batches, pause, time.Duration(batches)*batchPause)
			}
			time.Sleep(time.Until(next))
			batches++
		}
		assert.Equal(t, 5, batches, "charged in %d batches, want 5", batches)
		w.expect(t, "local", Tally{Unverified: 5 * batch, Charged: 5 * batch}, 0)
	})
}

func TestWhatIsNotChargedAtTheEndIsReportedAndWrittenOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log strings.Builder
		w := newWorld(Options{Log: slog.New(slog.NewTextHandler(&log, nil))}, StoreOptions{})
		w.servers.set("acme", unreachable)
		end := w.run(t)
		statuses, _ := w.take(t, bound(t, policy.FailOpen, 100, "acme"))
		end()
		w.expect(t, "open", Tally{Unverified: 1, WrittenOff: 1}, 0)
		if statuses[0].Failure != decision.Unavailable || !strings.Contains(log.String(), "level=WARN") ||
			!strings.Contains(log.String(), "written_off=1") {
			t.Errorf("logged\n%s", log.String())
		}
	})
}

func TestOneUnavailableServerDoesNotKeepWhatIsOwedToOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(Options{}, StoreOptions{})
		end := w.run(t)
		defer end()
		synctest.Wait()
		dead := opened(t, w.breakers)
		w.outageOf(t, bound(t, policy.FailOpen, 100, "acme"), 1)
		time.Sleep((chargeEvery+1)*beat + maxChargeDelay)
		synctest.Wait()
		w.expect(t, "open", Tally{Unverified: 1, Charged: 1}, 0)
		if last := w.store.Stats().Last; !last.End.IsZero() {
			t.Errorf("%+v is reported before the outage has ended", last)
		}
		dead.Close()
		time.Sleep(beat + maxChargeDelay)
		synctest.Wait()
		if last := w.store.Stats().Last; last.Policies["open"].Charged != 1 {
			t.Errorf("reported %+v", last)
		}
	})
}

func TestAnEndMidwayWritesOffWhatIsLeft(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(Options{}, StoreOptions{})
		for _, b := range someBounds(t, 2*batch) {
			w.outageOf(t, b, 1)
		}
		w.store.wantCharge()
		first := w.store.stepCharge(t.Context(), time.Now())
		w.store.stepCharge(t.Context(), first)
		w.store.writeOff()
		w.expect(t, "local", Tally{Unverified: 2 * batch, Charged: batch, WrittenOff: batch}, 0)
	})
}

// A simulator drives a store by Step alone, on a clock of its own.
func TestAStoreIsDrivenOnAVirtualClock(t *testing.T) {
	now := time.Unix(1_800_000_000, 0)
	w := newWorldAt(func() time.Time { return now }, Options{}, StoreOptions{})
	for range 10 {
		now = w.store.step(t.Context(), now)
	}
	got := w.store.LeaseNodes("default")
	assert.True(t, got == 1, "after ten beats leases are shared among %d nodes, want 1", got)
	w.outageOf(t, bound(t, policy.FailOpen, 100, "acme"), 1)
	for range 5 {
		now = w.store.step(t.Context(), now)
	}
	w.expect(t, "open", Tally{Unverified: 1, Charged: 1}, 0)
}

func TestAProcessThatServesNoKongIsNoLiveNode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var superseded atomic.Bool
		w := newWorld(Options{Superseded: superseded.Load}, StoreOptions{})
		end := w.run(t)
		defer end()
		beats := func(when string, want bool) {
			t.Helper()
			w.servers.mu.Lock()
			delete(w.servers.beats, "default")
			w.servers.mu.Unlock()
			time.Sleep(2 * beat)
			synctest.Wait()
			w.servers.mu.Lock()
			_, got := w.servers.beats["default"]
			w.servers.mu.Unlock()
			assert.Equal(t, want, got, "%s: it reports that it lives", when)
		}
		beats("while it serves", true)
		superseded.Store(true)
		beats("when another process has its socket and there is no connection", false)
		if got := w.store.LeaseNodes("default"); got != 0 {
			t.Errorf("it leases among %d nodes, which do not count it", got)
		}
		superseded.Store(false)
		beats("when there is a connection again", true)
	})
}

// step does what is due at now, and returns the instant of the next step.
func (s *Guard) step(ctx context.Context, now time.Time) (next time.Time) {
	next = s.stepBeat(ctx, now)
	if charge := s.stepCharge(ctx, now); !charge.IsZero() && charge.Before(next) {
		return charge
	}
	return next
}

func TestAChargeBeginsWhenOneServerIsBackThoughAnotherIsNot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(Options{}, StoreOptions{})
		defer w.run(t)()
		time.Sleep(beat / 2)
		dead, back := opened(t, w.breakers), opened(t, w.breakers)
		defer dead.Close()
		w.outageOf(t, bound(t, policy.FailOpen, 100, "acme"), 1)
		back.Close() // that server is removed
		time.Sleep(2 * beat)
		synctest.Wait()
		assert.False(t, w.store.debts.hasDebts())
	})
}
