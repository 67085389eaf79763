package outage

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

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
	after, _ := w.take(t, b)
	assert.True(t, after[0].Used == 21, "%d used here after 16 and 5", after[0].Used)
	w.servers.set("acme", up)
	w.store.reconcile(t.Context())
	w.expect(t, "local", Tally{Unverified: 21, Charged: 21}, 0)
	assert.EqualValues(t, 21, w.servers.used(&b), "used there after the outage")
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
	assert.EqualValues(t, 14, w.servers.used(&b), "used there")
}

func TestASettlementOfAnUnknownOutcomeIsNeverRepeated(t *testing.T) {
	for _, c := range []condition{silent, deaf} {
		w := newWorld(Options{}, StoreOptions{SharePct: 100})
		b := ofFive(t, policy.FailLocal)
		statuses, _ := w.take(t, b)
		w.servers.set("acme", c)
		s := w.settle(t, b, statuses, 9)
		assert.True(t, s.Settled == 0 && s.Failure == decision.TimedOut, "settled without an answer: %+v", s)
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
	s := statuses[0]
	require.True(t, admitted && !s.Charged && s.Source == decision.Unanswered, "not admitted by fail mode open: %+v", s)
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
	assert.Equal(t, due, w.servers.used(&b), "used there after the outage")
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

// flight is a request between its admission and its settlement.
type flight struct {
	bound    policy.Bound
	statuses []decision.Status
	due      bool // its reservation is due, and was not charged yet
}

// flights is one node whose requests settle while its server comes and goes. Its clock advances too little for a window
// to end, so nothing that was admitted is forgiven.
type flights struct {
	*world
	test     *testing.T
	mode     policy.FailMode
	is       condition
	inFlight []*flight
	counted  int64 // tokens that the server must count once everything is charged
}

// admit takes a bound, and counts its reservation where the server or the debts do.
func (f *flights) admit(t *rapid.T) {
	b := bound(f.test, f.mode, 1_000_000_000, "acme")
	b.Cost = rapid.Int64Range(0, 20).Draw(t, "reserved")
	statuses, admitted := f.take(f.test, b)
	if !admitted {
		t.Fatalf("denied: %+v", statuses[0])
	}
	statuses[0].Charged = true // as a reservation is kept
	r := &flight{bound: b, statuses: statuses, due: f.is == unreachable}
	if f.is != silent {
		f.counted += b.Cost
	}
	f.inFlight = append(f.inFlight, r)
	f.clock.Advance(1)
}

// settleOne settles a request twice, and counts by the rules what the server must count of it then.
func (f *flights) settleOne(t *rapid.T) {
	i := rapid.IntRange(0, len(f.inFlight)-1).Draw(t, "request")
	r := f.inFlight[i]
	f.inFlight = append(f.inFlight[:i], f.inFlight[i+1:]...)
	actual := rapid.Int64Range(0, 40).Draw(t, "actual")
	switch change := actual - r.bound.Cost; {
	case change > 0 && f.is == silent:
	case change > 0:
		f.counted += change
	case r.statuses[0].Source == decision.Redis && (f.is == up || f.is == deaf), r.due:
		f.counted += change
	}
	for range 2 {
		require.NoError(t, f.view.Settle(t.Context(), []policy.Bound{r.bound}, r.statuses, []int64{actual}))
		require.False(t, r.statuses[0].Charged, "charged still: %+v", r.statuses[0])
	}
}

// reconcile charges what is due, if the server answers.
func (f *flights) reconcile(t *rapid.T) {
	f.store.reconcile(t.Context())
	for _, r := range f.inFlight {
		r.due = r.due && f.is != up
	}
	f.clock.Advance(1)
}

func TestWhateverHappensARequestIsSettledOnceOrKeepsItsReservation(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		f := &flights{
			test: t, world: newWorld(Options{}, StoreOptions{SharePct: 100}),
			mode: rapid.SampledFrom([]policy.FailMode{policy.FailLocal, policy.FailOpen}).Draw(rt, "fail mode"),
		}
		become := func(c condition) {
			f.is = c
			f.servers.set("acme", c)
		}
		for range rapid.IntRange(1, 40).Draw(rt, "steps") {
			switch rapid.IntRange(0, 5).Draw(rt, "step") {
			case 0:
				become(rapid.SampledFrom([]condition{up, unreachable, silent, deaf}).Draw(rt, "condition"))
			case 1:
				f.reconcile(rt)
			case 2, 3:
				f.admit(rt)
			default:
				if len(f.inFlight) > 0 {
					f.settleOne(rt)
				}
			}
		}
		become(up)
		f.reconcile(rt)
		b := bound(t, f.mode, 1_000_000_000, "acme")
		used := f.servers.used(&b)
		require.True(rt, used == f.counted, "the server counts %d tokens, want %d", used, f.counted)
	})
}
