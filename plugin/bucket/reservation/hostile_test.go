package reservation

import (
	"math"
	"testing"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/settle"
)

func TestTheIDOfAnotherTenantSettlesThatTenantsReservationAlone(t *testing.T) {
	w := newWorld(t, 0)
	p := budget(t, 100)
	victim, thief := boundOf(p, 100), boundOf(p, 100)
	thief.Key.GroupID = "globex"
	stolen, own := w.reserve(victim), w.reserve(thief)
	for range 3 { // the log phase of the thief's request, with the id of the victim's, as often as Kong sends it
		w.settle(stolen, usedTokens(0))
	}
	w.settle(own, usedTokens(40))
	w.expect(victim, 0, Measured, Measured)
	if used := w.used(thief); used != 40 {
		t.Errorf("the thief used 40 tokens and paid %d", used)
	}
}

func TestAHostileAmountKeepsTheReservation(t *testing.T) {
	for name, value := range map[string]settle.Value{
		"missing": {}, "a text": settle.Text("many"), "an empty text": settle.Text(""), "negative": settle.Number(-5),
		"not a number": settle.Number(math.NaN()), "infinite": settle.Number(math.Inf(1)), "large": settle.Number(1e300),
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, 0)
			b := boundOf(budget(t, 100), 100)
			e := usedTokens(0)
			e.answer.Shared["tokens"] = value
			w.settle(w.reserve(b), e)
			w.expect(b, 100, Unmeasured)
		})
	}
}

func TestTheLargestAmountIsChargedOnceAndNotBeyondWhatABucketCounts(t *testing.T) {
	w := newWorld(t, 0)
	b := boundOf(budget(t, 100), 100)
	w.settle(w.reserve(b), usedTokens(1<<53))
	if used := w.used(b); used != settle.MaxActual {
		t.Errorf("%d tokens are used, want %d", used, settle.MaxActual)
	}
}
