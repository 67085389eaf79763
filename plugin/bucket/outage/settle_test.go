package outage

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/decision"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/limit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
)

// settle settles a request of one bound.
func (w *world) settle(t *testing.T, b policy.Bound, statuses []decision.Status, actual int64) decision.Status {
	t.Helper()
	require.NoError(t, w.view.Settle(t.Context(), []policy.Bound{b}, statuses, []int64{actual}))
	return statuses[0]
}

// ofFive is a bound that reserves 5 of 100 tokens.
func ofFive(t *testing.T, mode policy.FailMode) policy.Bound {
	b := bound(t, mode, 100, "acme")
	b.Cost = 5
	return b
}

func TestASettlementOfWhatThisProcessAdmittedChangesWhatIsDue(t *testing.T) {
	w := newWorld(Options{}, StoreOptions{SharePct: 100})
	b := ofFive(t, policy.FailLocal)
	w.servers.set("acme", unreachable)
	less, _ := w.take(t, b)
	more, _ := w.take(t, b)
	same, _ := w.take(t, b)
	for range 2 { // the second time nothing is Charged any more
		for statuses, actual := range map[*decision.Status]int64{&less[0]: 2, &more[0]: 9, &same[0]: 5} {
			s := []decision.Status{*statuses}
			*statuses = w.settle(t, b, s, actual)
			if statuses.Charged || statuses.Settled != actual-5 || statuses.Source != decision.Local {
				t.Errorf("settled to %d: %+v", actual, *statuses)
			}
		}
		w.expect(t, "local", Tally{Unverified: 16}, 16)
	}
	if after, _ := w.take(t, b); after[0].Used != 21 {
		t.Errorf("%d used here after 16 and 5", after[0].Used)
	}
	w.servers.set("acme", up)
	w.store.reconcile(t.Context())
	w.expect(t, "local", Tally{Unverified: 21, Charged: 21}, 0)
	if used := w.servers.used(&b); used != 21 {
		t.Errorf("%d used there after the outage, want 21", used)
	}
}

func TestWhatASettlementCouldNotSendIsChargedLaterAndNotReturned(t *testing.T) {
	w := newWorld(Options{}, StoreOptions{SharePct: 100})
	b := ofFive(t, policy.FailLocal)
	less, _ := w.take(t, b)
	more, _ := w.take(t, b)
	w.servers.set("acme", unreachable)
	for statuses, actual := range map[*decision.Status]int64{&less[0]: 2, &more[0]: 9} {
		s := w.settle(t, b, []decision.Status{*statuses}, actual)
		if s.Charged || s.Settled != 0 || s.Failure != decision.Unavailable {
			t.Errorf("settled to %d while the store is unavailable: %+v", actual, s)
		}
	}
	w.expect(t, "local", Tally{Unverified: 4}, 4)
	w.servers.set("acme", up)
	w.store.reconcile(t.Context())
	w.expect(t, "local", Tally{Unverified: 4, Charged: 4}, 0)
	if used := w.servers.used(&b); used != 14 {
		t.Errorf("%d used there, want 14", used)
	}
}

func TestASettlementOfAnUnknownOutcomeIsNeverRepeated(t *testing.T) {
	for _, c := range []condition{silent, deaf} {
		w := newWorld(Options{}, StoreOptions{SharePct: 100})
		b := ofFive(t, policy.FailLocal)
		statuses, _ := w.take(t, b)
		w.servers.set("acme", c)
		if s := w.settle(t, b, statuses, 9); s.Settled != 0 || s.Failure != decision.TimedOut {
			t.Errorf("settled without an answer: %+v", s)
		}
		w.expect(t, "local", Tally{Unknown: 4}, 0)
		w.servers.set("acme", up)
		w.settle(t, b, statuses, 9)
		w.store.reconcile(t.Context())
		if used := w.servers.used(&b); used != map[condition]int64{silent: 5, deaf: 9}[c] || w.servers.settlements != 1 {
			t.Errorf("%d used there after %d settlements", used, w.servers.settlements)
		}
	}
}

// takeOpen takes a bound that no store answers, and marks it as its keeper does.
func (w *world) takeOpen(t *testing.T, b policy.Bound) []decision.Status {
	t.Helper()
	statuses, admitted := w.take(t, b)
	if s := statuses[0]; !admitted || s.Charged || s.Source != decision.Unanswered {
		t.Fatalf("not admitted by fail mode open: %+v", s)
	}
	statuses[0].Charged = true
	return statuses
}

func TestWhatFailModeOpenAdmittedIsDueAtItsActualCost(t *testing.T) {
	w := newWorld(Options{}, StoreOptions{})
	b := ofFive(t, policy.FailOpen)
	w.servers.set("acme", unreachable)
	due := int64(0)
	for _, actual := range []int64{2, 9, 5, 0} {
		s := w.settle(t, b, w.takeOpen(t, b), actual)
		if s.Charged || s.Settled != actual-5 || s.Source != decision.Unanswered {
			t.Errorf("settled to %d: %+v", actual, s)
		}
		due += actual
		w.expect(t, "open", Tally{Unverified: due}, due)
	}
	w.servers.set("acme", up)
	w.store.reconcile(t.Context())
	if used := w.servers.used(&b); used != due {
		t.Errorf("%d used there after the outage, want %d", used, due)
	}
}

func TestASettlementChangesOnlyWhatIsDueSinceItsAdmission(t *testing.T) {
	for _, mode := range []policy.FailMode{policy.FailOpen, policy.FailLocal} {
		w := newWorld(Options{}, StoreOptions{SharePct: 100})
		b := ofFive(t, mode)
		w.servers.set("acme", unreachable)
		first, _ := w.take(t, b)
		first[0].Charged = true
		w.servers.set("acme", up)
		w.store.reconcile(t.Context())
		w.clock.Advance(limit.Second)
		w.servers.set("acme", unreachable)
		w.take(t, b)
		w.settle(t, b, first, 0)
		w.expect(t, mode.String(), Tally{Unverified: 10, Charged: 5}, 5)
	}
}
