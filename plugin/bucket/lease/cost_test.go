//go:build !race

package lease

import (
	"context"
	"testing"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/decision"
)

// With the race detector a pool drops some of what is put into it.

func TestALeaseHitAllocatesNothing(t *testing.T) {
	for _, bounds := range []int{1, 4, 8, 9, 100} {
		n := newNode(newBank(), Options{})
		list, statuses := hot(t, n, bounds), make([]decision.Status, bounds)
		called := n.bank.calls
		allocations := testing.AllocsPerRun(50, func() {
			if err := n.view.Take(context.Background(), list, statuses); err != nil || !statuses[0].Charged {
				t.Fatalf("take: %v, %+v", err, statuses[0])
			}
		})
		if allocations != 0 || n.bank.calls != called {
			t.Errorf("%d bounds: %v allocations, %d calls", bounds, allocations, n.bank.calls-called)
		}
	}
}
