package storetest

import (
	"context"
	"maps"
	"math/rand/v2"
	"sync"
	"testing"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/soak"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/bucket/store"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/decision"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/limit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
)

// atOnce returns a bound of n requests in flight, each for a minute at most.
func atOnce(t *testing.T, name string, n int64) policy.Bound {
	return bound(t, name, limit.Spec{Algorithm: limit.Concurrency, Quantity: n, Window: minute})
}

const minute = 60 * limit.Second

func slotIsHeldUntilItsReleaseOrDeadline(t *testing.T, f *fixture) {
	b := atOnce(t, "exports", 2)
	bounds := []policy.Bound{b}
	first := f.take(t, b)
	f.Advance(30 * limit.Second)
	second := f.take(t, b)
	if !first[0].Charged || !second[0].Charged || second[0].Used != 2 || second[0].Remaining != 0 {
		t.Fatalf("two requests: %+v and %+v", first[0], second[0])
	}
	f.Advance(limit.Second)
	// The oldest of two is 31 s old: so one becomes free each 15.5 s.
	want := limit.Micros(15_500_000)
	if s := f.take(t, b)[0]; s.Wait != want || s.Reset != f.Now()+want || s.Charged || s.Used != 2 {
		t.Errorf("a third request: %+v, want a wait of %d", s, want)
	}
	if !f.admits(t, withCost(b, 0)) {
		t.Error("a request without a cost needs a slot")
	}
	f.settle(t, bounds, first, []int64{0}, -1)
	f.expect(t, "after a release", bounds, 1)
	f.settle(t, bounds, first, []int64{0}, -1) // nothing is Charged any more
	f.expect(t, "after a second release of the same slot", bounds, 1)
	third := f.take(t, b)
	f.Advance(second[0].Now + minute - 1 - f.Now())
	if s := f.take(t, b)[0]; s.Wait != 1 {
		t.Errorf("a microsecond before the first deadline: %+v, want a wait of 1", s)
	}
	f.Advance(1)
	f.expect(t, "at the deadline of a slot", bounds, 1)
	f.settle(t, bounds, second, []int64{7}, 0) // its slot is gone, and is that of no other
	f.expect(t, "after the late release of a slot", bounds, 1)
	f.settle(t, bounds, third, []int64{7}, -1)
	f.expect(t, "after all releases", bounds, 0)
}

func inFlightNeverExceedsTheLimit(t *testing.T, f *fixture) { ServeAtOnce(t, f.Clock, f.Store) }

// ServeAtOnce serves the requests of many clients by stores of one bucket, each as long as the client likes. Some
// clients are killed: they release nothing. It checks that at no instant more requests are in flight and younger than
// the limit allows, and that all slots are free once the last deadline is over.
func ServeAtOnce(t *testing.T, clock Clock, nodes ...store.Store) {
	const clients, slots = 64, 10
	requests := soak.Count(8, 60)
	b := atOnce(t, "exports", slots)
	bounds := []policy.Bound{b}
	var calls sync.RWMutex // the clock stands still during a call: some stores read it before they send the call
	var mu sync.Mutex
	taken, deadlines := 0, map[limit.Receipt]limit.Micros{} // of requests in flight, from their take to their release
	begin := func(s *decision.Status) {
		mu.Lock()
		defer mu.Unlock()
		taken, deadlines[s.Receipt] = taken+1, s.Now+minute
		maps.DeleteFunc(deadlines, func(_ limit.Receipt, end limit.Micros) bool { return end <= clock.Now() })
		if n := len(deadlines); n > slots {
			t.Errorf("at %d %d requests are in flight, at most %d promised", clock.Now(), n, slots)
		}
	}
	inParallel(clients, func(client int) {
		random := rand.New(rand.NewPCG(uint64(client), 7))
		node := nodes[client%len(nodes)]
		for range requests {
			statuses := make([]decision.Status, 1)
			calls.RLock()
			err := node.Take(context.Background(), bounds, statuses)
			if statuses[0].Charged {
				begin(&statuses[0])
			}
			calls.RUnlock()
			calls.Lock()
			clock.Advance(limit.Micros(random.Int64N(int64(minute / 16))))
			calls.Unlock()
			if err == nil && statuses[0].Charged && random.IntN(6) > 0 { // else it was killed
				mu.Lock()
				delete(deadlines, statuses[0].Receipt)
				mu.Unlock()
				calls.RLock()
				err = node.Settle(context.Background(), bounds, statuses, []int64{0})
				calls.RUnlock()
			}
			if err != nil {
				t.Errorf("take or release: %v", err)
			}
		}
	})
	if taken < clients || taken == clients*requests {
		t.Errorf("%d of %d requests are admitted, want some of them denied", taken, clients*requests)
	}
	clock.Advance(minute)
	f := &fixture{Store: nodes[0], Clock: clock}
	f.expect(t, "after the last deadline", bounds, 0)
	for i := range slots + 1 {
		if f.admits(t, b) != (i < slots) {
			t.Errorf("request %d after the last deadline: want %d admitted", i, slots)
		}
	}
}
