package outage

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/decision"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/limit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
)

// outageOf takes b so many times while its server is unavailable, which is back afterwards.
func (w *world) outageOf(t testing.TB, b policy.Bound, times int) {
	t.Helper()
	w.servers.set(b.Key.GroupID, unreachable)
	for range times {
		w.take(t, b)
	}
	w.servers.set(b.Key.GroupID, up)
}

// sharedUse is what is used of a bucket in the central store.
func (w *world) sharedUse(t testing.TB, b policy.Bound) int64 {
	t.Helper()
	b.Cost = 0
	var statuses [1]decision.Status
	require.NoError(t, w.servers.Take(context.Background(), []policy.Bound{b}, statuses[:]))
	return statuses[0].Used
}

func (w *world) expect(t testing.TB, name string, want Tally, pending int64) {
	t.Helper()
	stats := w.store.Stats()
	if got := stats.Policies[name]; got != want || stats.Pending != pending {
		t.Errorf("%s: %+v with %d pending, want %+v with %d", name, got, stats.Pending, want, pending)
	}
}

func TestWhatWasAdmittedUnverifiedIsChargedOnce(t *testing.T) {
	for _, mode := range []policy.FailMode{policy.FailLocal, policy.FailOpen} {
		w := newWorld(Options{}, StoreOptions{})
		b := bound(t, mode, 10, "acme")
		w.outageOf(t, b, 5)
		for range 3 {
			w.store.reconcile(context.Background())
			w.expect(t, mode.String(), Tally{Unverified: 5, Charged: 5}, 0)
			assert.EqualValues(t, 5, w.sharedUse(t, b), "used of the shared bucket")
		}
	}
}

func TestWhatNoLongerMattersIsWrittenOff(t *testing.T) {
	tests := []struct {
		name    string
		spec    limit.Spec
		after   limit.Micros
		charged int64
	}{
		{"a window that is over", limit.Spec{Algorithm: limit.FixedWindow, Quantity: 10, Window: minute}, minute, 0},
		{
			"a bucket that has refilled by half",
			limit.Spec{Algorithm: limit.TokenBucket, Quantity: 8, Window: 8 * limit.Second},
			2 * limit.Second, 2,
		},
		{"a log that still counts", limit.Spec{Algorithm: limit.SlidingLog, Quantity: 10, Window: minute}, minute - 1, 4},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			w := newWorld(Options{}, StoreOptions{})
			b := bound(t, policy.FailOpen, 1, "acme")
			b.Policy.Limit = compiled(t, test.spec)
			w.outageOf(t, b, 4)
			w.clock.Advance(test.after)
			w.store.reconcile(context.Background())
			w.expect(t, "open", Tally{Unverified: 4, Charged: test.charged, WrittenOff: 4 - test.charged}, 0)
		})
	}
}

func TestAServerThatIsUnavailableAgainIsChargedTheNextTime(t *testing.T) {
	for _, again := range []condition{unreachable, silent} { // silent: the read has no answer
		w := newWorld(Options{}, StoreOptions{})
		b := bound(t, policy.FailLocal, 100, "acme")
		w.outageOf(t, b, 5)
		w.servers.set("acme", again)
		w.store.reconcile(context.Background())
		w.expect(t, "local", Tally{Unverified: 5}, 5)
		w.outageOf(t, b, 2)
		w.store.reconcile(context.Background())
		w.expect(t, "local", Tally{Unverified: 7, Charged: 7}, 0)
	}
}

func TestADebtThatIsKeptJoinsTheOneMadeMeanwhile(t *testing.T) {
	w := newWorld(Options{}, StoreOptions{})
	b := bound(t, policy.FailLocal, 100, "acme")
	w.servers.set("acme", unreachable)
	w.take(t, b)
	requests := 3
	w.servers.hook = func() {
		if requests--; requests >= 0 {
			w.take(t, b)
		}
	}
	w.store.reconcile(context.Background())
	w.servers.hook = nil
	w.expect(t, "local", Tally{Unverified: 4}, 4)
	w.servers.set("acme", up)
	w.store.reconcile(context.Background())
	w.expect(t, "local", Tally{Unverified: 4, Charged: 4}, 0)
}

func TestAChargeWhoseOutcomeIsUnknownIsNeverRepeated(t *testing.T) {
	w := newWorld(Options{}, StoreOptions{})
	b := bound(t, policy.FailLocal, 100, "acme")
	w.outageOf(t, b, 5)
	calls := 0
	w.servers.hook = func() {
		if calls++; calls == 2 { // the first reads
			w.servers.set("acme", deaf)
		}
	}
	w.store.reconcile(context.Background())
	w.servers.hook = nil
	w.servers.set("acme", up)
	w.store.reconcile(context.Background())
	w.expect(t, "local", Tally{Unverified: 5, WrittenOff: 5}, 0)
	used := w.sharedUse(t, b)
	assert.True(t, used == 5, "%d used, want the 5 that the lost call has spent", used)
}

func TestAChargeThatLosesARaceTakesWhatIsLeft(t *testing.T) {
	for races, want := range map[int]int64{1: 2, 2: 0} {
		w := newWorld(Options{}, StoreOptions{})
		b := bound(t, policy.FailOpen, 10, "acme")
		w.outageOf(t, b, 10)
		calls, racing := 0, false
		w.servers.hook = func() {
			if racing {
				return
			}
			if calls++; calls >= 2 && calls < 2+races {
				racing = true
				other := b
				if other.Cost = 8; calls == 3 {
					other.Cost = 1
				}
				var statuses [1]decision.Status
				if err := w.servers.Take(context.Background(), []policy.Bound{other}, statuses[:]); err != nil ||
					!statuses[0].Charged {
					t.Errorf("the other node's take: %v, %+v", err, statuses[0])
				}
				racing = false
			}
		}
		w.store.reconcile(context.Background())
		w.expect(t, "open", Tally{Unverified: 10, Charged: want, WrittenOff: 10 - want}, 0)
	}
}

func TestDebtsAreBounded(t *testing.T) {
	w := newWorld(Options{}, StoreOptions{})
	w.store.debts.room.most = 2
	for i := range 5 {
		w.outageOf(t, bound(t, policy.FailOpen, 10, fmt.Sprint(i)), 1)
	}
	w.expect(t, "open", Tally{Unverified: 5, WrittenOff: 3}, 2)
	for i := range 2 * maxNames {
		b := bound(t, policy.FailOpen, 10, "acme")
		b.Policy.Name = fmt.Sprint("policy-", i)
		w.outageOf(t, b, 1)
	}
	if stats := w.store.Stats(); len(stats.Policies) != maxNames+1 || stats.Policies[otherNames].Unverified != maxNames+1 {
		t.Errorf("%d names are counted apart, and %+v others", len(stats.Policies), stats.Policies[otherNames])
	}
}

func TestRequestsAndChargesAtOnceAddUp(t *testing.T) {
	w := newWorld(Options{}, StoreOptions{})
	const callers, requests = 8, 200
	var taken, unverified atomic.Int64
	var all, charges sync.WaitGroup
	for i := range callers {
		b := bound(t, policy.FailLocal, 1_000_000, tenants[i%len(tenants)])
		all.Go(func() {
			for n := 0; n < requests || unverified.Load() == 0; n++ { // on a busy machine all of them may find it up
				statuses, _ := w.take(t, b)
				taken.Add(1)
				if statuses[0].Source == decision.Local {
					unverified.Add(1)
				}
			}
		})
	}
	done := make(chan struct{})
	charges.Go(func() {
		for i := 0; ; i++ {
			select {
			case <-done:
				return
			default:
			}
			w.servers.set(tenants[i%len(tenants)], condition(i/3%2)) // up and unreachable
			w.store.reconcile(context.Background())
			w.store.Stats()
		}
	})
	all.Wait()
	close(done)
	charges.Wait()
	for _, tenant := range tenants {
		w.servers.set(tenant, up)
	}
	w.store.reconcile(context.Background())
	w.expect(t, "local", Tally{Unverified: unverified.Load(), Charged: unverified.Load()}, 0)
	if spent := w.servers.spent["local"]; int64(spent) != taken.Load() || unverified.Load() == 0 {
		t.Errorf("%d charged for %d requests, %d of them local", spent, taken.Load(), unverified.Load())
	}
}

func TestOneReportTellsWhatHappened(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log strings.Builder
		w := newWorld(Options{Log: slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelInfo}))},
			StoreOptions{SharePct: 30})
		w.take(t, bound(t, policy.FailLocal, 10, "acme"))
		w.store.reconcile(context.Background())
		start := time.Now()
		w.outageOf(t, bound(t, policy.FailLocal, 10, "acme"), 5)
		w.outageOf(t, bound(t, policy.FailClosed, 10, "acme"), 2)
		time.Sleep(time.Minute)
		w.store.recovered.Store(true)
		w.store.reconcile(context.Background())
		w.store.reconcile(context.Background())

		want := Tally{Unverified: 3, Charged: 3, DeniedLocally: 2}
		last := w.store.Stats().Last
		if last.Policies["local"] != want || last.Policies["closed"] != (Tally{DeniedClosed: 2}) || last.Pending != 0 ||
			!last.Start.Equal(start) || last.End.Sub(start) != time.Minute {
			t.Errorf("reported %+v, want %+v from %v for a minute", last, want, start)
		}
		if got := log.String(); strings.Count(got, "\n") != 1 ||
			!strings.Contains(got, "unverified=3 charged=3 written_off=0 unknown=0 denied_locally=2 denied_closed=2") {
			t.Errorf("logged\n%s", got)
		}
		w.outageOf(t, bound(t, policy.FailClosed, 10, "acme"), 1)
		w.store.reconcile(context.Background())
		if last := w.store.Stats().Last; len(last.Policies) != 1 || last.Policies["closed"].DeniedClosed != 1 {
			t.Errorf("the next report is %+v, want the next outage alone", last)
		}
	})
}
