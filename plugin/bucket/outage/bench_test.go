package outage

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/decision"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/limit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
)

// instant is a central store that answers at once, or not at all.
type instant struct {
	*servers
	status decision.Status
}

func (i *instant) Take(_ context.Context, _ []policy.Bound, statuses []decision.Status) error {
	for j := range statuses {
		statuses[j] = i.status
	}
	return nil
}

func (w *world) answering(status decision.Status) *instant {
	central := &instant{w.servers, status}
	w.store.central, w.store.now = central, func() limit.Micros { return limit.Micros(time.Now().UnixMicro()) }
	return central
}

func someBounds(tb testing.TB, n int) []policy.Bound {
	bounds := make([]policy.Bound, n)
	for i := range bounds {
		bounds[i] = bound(tb, policy.FailLocal, 1_000_000_000_000, "acme")
		bounds[i].Key.Policy = fmt.Sprint("policy-", i)
	}
	return bounds
}

func TestNothingIsAllocatedForARequestInSteadyState(t *testing.T) {
	tests := []struct {
		name   string
		status decision.Status
		most   float64
	}{
		{"answered", decision.Status{Source: decision.Redis, Charged: true}, 0},
		// A draft is made anew when the pool has lost one, as it does at random under the race detector.
		{"away", decision.Status{Failure: decision.Unavailable, Wait: limit.Second}, 4},
	}
	for _, test := range tests {
		w := newWorld(Options{}, StoreOptions{})
		w.answering(test.status)
		bounds, statuses := someBounds(t, 4), make([]decision.Status, 4)
		allocations := testing.AllocsPerRun(1000, func() {
			if err := w.view.Take(context.Background(), bounds, statuses); err != nil || !statuses[0].Charged {
				t.Fatalf("take: %v, %+v", err, statuses[0])
			}
		})
		if allocations > test.most {
			t.Errorf("%s: %v allocations, want at most %v", test.name, allocations, test.most)
		}
	}
}
