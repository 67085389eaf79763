package addresses

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/decision"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
)

// An address is charged where it is counted: in a bucket of its own, that of its prefix, or in this process. It gets
// tokens back in its own bucket and in this process alone.
func TestAnAddressIsSettledWhereItIsCounted(t *testing.T) {
	w, p := newWorld(t, 10, 1), perMinute(t, 1_000_000)
	seen := map[string]bool{}
	for i := range 40 * burst {
		b := ofAddress(p, fmt.Sprintf("10.%d.%d.1", i>>8, i&255))
		b.Cost = 10
		bounds := []policy.Bound{b, ofTenant(perMinute(t, 1_000_000), "acme")}
		place := func() (string, policy.Bound) {
			before := w.budget.Stats()
			w.take(bounds...)
			switch after := w.budget.Stats(); {
			case after.Local > before.Local:
				return "here", b
			case after.Prefix > before.Prefix:
				wider := b
				wider.Key = WithAddress(b.Key, Wider(*Address(&b.Key)))
				return "prefix", wider
			}
			return "address", b
		}
		where, counted := place()
		for actual, change := range map[int64]int64{4: -6, 10: 0, 35: 25} {
			if where == "prefix" {
				change = max(change, 0)
			}
			before := w.used(where, counted)
			statuses, _ := w.take(bounds...)
			require.NoError(t, w.view.Settle(t.Context(), bounds, statuses, []int64{actual, 3}))
			used := w.used(where, counted) - before
			if statuses[0].Charged || statuses[0].Settled != change || used != 10+change {
				t.Fatalf("%s, settled from 10 to %d: %d used, %+v", where, actual, used, statuses[0])
			}
			if statuses[1].Charged || statuses[1].Settled != 2 {
				t.Fatalf("%s: a tenant is settled from 1 to 3: %+v", where, statuses[1])
			}
		}
		if seen[where] = true; len(seen) == 3 {
			return
		}
	}
	t.Errorf("addresses were counted in %v, want each place once", seen)
}

// used returns what the bucket of a bound counts, in this process or in the central store.
func (w *world) used(where string, b policy.Bound) int64 {
	w.t.Helper()
	peek, statuses := w.shared.Peek, make([]decision.Status, 1)
	if where == "here" {
		peek = w.here.Store.Peek
	}
	require.NoError(w.t, peek(w.t.Context(), []policy.Bound{b}, statuses))
	return statuses[0].Used
}

// A charge makes a key that did not exist, which counts among those of addresses.
func TestAChargeCountsAsANewKeyOfItsAddress(t *testing.T) {
	w, p := newWorld(t, 1000, 100), perMinute(t, 100)
	b := ofAddress(p, "192.0.2.1")
	bounds := []policy.Bound{b}
	statuses, _ := w.take(bounds...)
	w.clock.Advance(10 * minute)
	if kept := w.budget.Stats().Kept; kept != 0 {
		t.Fatalf("%d addresses are kept ten minutes later", kept)
	}
	require.NoError(t, w.view.Settle(t.Context(), bounds, statuses, []int64{50}))
	w.clock.Advance(minute / 2)
	if stats, used := w.budget.Stats(), w.used("", b); stats.Kept != 1 || stats.Apart != 2 || used != 49 {
		t.Errorf("%+v with %d used: want the address kept for the 49 tokens that it was charged", stats, used)
	}
}
