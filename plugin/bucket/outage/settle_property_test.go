package outage

import (
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/decision"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
)

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
		if r.statuses[0].Charged {
			t.Fatalf("charged still: %+v", r.statuses[0])
		}
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
		if used := f.servers.used(&b); used != f.counted {
			rt.Fatalf("the server counts %d tokens, want %d", used, f.counted)
		}
	})
}
