package addresses

import (
	"fmt"
	"testing"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/storetest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/bucket/memory"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/bucket/store"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/decision"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
)

func TestAViewKeepsTheStoresPromises(t *testing.T) {
	storetest.Run(t, func(t *testing.T) (store.Store, storetest.Clock) {
		clock := storetest.NewClock()
		shared, local := memory.New(memory.Options{Now: clock.Now}), memory.New(memory.Options{Now: clock.Now})
		return New(Options{Now: clock.Now}).Store(shared, local), clock
	})
}

func TestAPeekShowsHowAnAddressWouldBeCountedAndKeepsNoAddress(t *testing.T) {
	w, p := newWorld(t, 10, 1), perMinute(t, 5)
	bounds := func(i int) []policy.Bound {
		return []policy.Bound{ofTenant(perMinute(t, 1000), "acme"), ofAddress(p, "192.0.2."+string(rune('a'+i)))}
	}
	for i := range 3 * burst {
		before := w.budget.Stats()
		peeked := storetest.Peek(t, w.view, bounds(i))
		if after := w.budget.Stats(); after != before {
			t.Fatalf("a peek changed the budget from %+v to %+v", before, after)
		}
		statuses, _ := w.take(bounds(i)...)
		peeked.Check(t, statuses)
	}
	if stats := w.budget.Stats(); stats.Apart == 0 || stats.Prefix+stats.Local == 0 {
		t.Errorf("%+v: want addresses counted apart, and others above the budget", stats)
	}
}

func TestARefundReturnsWhatAnAddressSpentInABucketOfItsOwnOrInThisProcess(t *testing.T) {
	w, p := newWorld(t, 10, 1), perMinute(t, 50)
	for i := range 40 * burst {
		bounds := []policy.Bound{ofAddress(p, fmt.Sprintf("10.%d.%d.1", i>>8, i&255))}
		statuses, _ := w.take(bounds...)
		if err := w.view.Refund(t.Context(), bounds, statuses); err != nil || statuses[0].Charged {
			t.Fatalf("%+v, %v: want nothing charged any more", statuses[0], err)
		}
		if apart := w.budget.Stats().Apart > uint64(i); apart && statuses[0].Returned != 1 {
			t.Errorf("address %d, counted apart: %+v, want 1 returned", i, statuses[0])
		}
		if w.budget.Stats().Local > 0 {
			if statuses[0].Source != decision.Local || statuses[0].Returned != 1 {
				t.Errorf("address %d, counted in this process: %+v, want 1 returned", i, statuses[0])
			}
			return
		}
	}
	t.Error("no address was counted in this process")
}
