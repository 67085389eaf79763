package storetest

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/soak"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/bucket/store"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/decision"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/limit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
)

// atOnce returns a bound of n requests in flight, each for a minute at most.
func atOnce(t *testing.T, name string, n int64) policy.Bound {
	b := bound(t, name, limit.Spec{Algorithm: limit.Concurrency, Quantity: n, Window: minute})
	return WithPolicy(b, b.Policy)
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

func slotIsTakenWithTheOtherLimitsOrNot(t *testing.T, f *fixture) {
	slot, shadow, tokens := atOnce(t, "exports", 2), withMode(atOnce(t, "tried", 1), policy.Shadow), fixed(t, "daily", 3)
	bounds := []policy.Bound{slot, shadow, tokens}
	f.take(t, bounds...)
	if s := f.take(t, bounds...); !admitted(bounds, s) || s[1].Admits() || s[1].Charged {
		t.Errorf("with a full limit in shadow: %+v", s)
	}
	f.expect(t, "after two requests", bounds, 2, 1, 2)
	if f.admits(t, bounds...) {
		t.Error("a request is admitted without a slot")
	}
	f.expect(t, "after a request without a slot", bounds, 2, 1, 2)
	roomy := []policy.Bound{atOnce(t, "roomy", 9), withCost(tokens, 2)}
	if f.admits(t, roomy...) {
		t.Error("a request is admitted without a token")
	}
	f.expect(t, "after a request without a token", roomy, 0, 2)
	peeked := Peek(t, f, bounds)
	peeked.Check(t, f.take(t, bounds...))
	sameName := bound(t, "exports", perHour(limit.TokenBucket, 10))
	if s := f.take(t, sameName); s[0].Used != 1 {
		t.Errorf("a token bucket with the name of a concurrency limit: %+v, want a bucket of its own", s[0])
	}
	both := []policy.Bound{atOnce(t, "both", 3), atOnce(t, "both", 3)}
	if !f.admits(t, both...) || f.admits(t, both...) {
		t.Error("two limits of one bucket: want two slots for each request, or none")
	}
	f.expect(t, "after two requests by two limits of one bucket", both[:1], 2)
}

func forgetFreesSlots(t *testing.T, f *fixture) {
	b := atOnce(t, "exports", 1)
	bounds := []policy.Bound{b}
	before := f.take(t, b)
	if n, err := f.keeper().Forget(context.Background(), policy.KeysOf(bounds)); err != nil || n != 1 {
		t.Errorf("%d buckets were deleted (%v), want 1", n, err)
	}
	f.take(t, b)
	f.settle(t, bounds, before, []int64{0}, 0)
	f.expect(t, "after the release of a slot that was forgotten", bounds, 1)
}

func inFlightNeverExceedsTheLimit(t *testing.T, f *fixture) { ServeAtOnce(t, f.Clock, f.Store) }

// served is a request that has a slot.
type served struct {
	at              limit.Micros // the store's clock at its admission
	returned, ended int64        // numbers of the return of its take and of the call of its release
}

// ServeAtOnce serves the requests of many clients by stores of one bucket, each as long as the client likes. Some
// clients are killed: they release nothing. It checks that at no instant more requests are in flight and younger than
// the limit allows, and that all slots are free once the last deadline is over.
func ServeAtOnce(t *testing.T, clock Clock, nodes ...store.Store) {
	const clients, slots = 64, 10
	requests := soak.Count(8, 60)
	b := atOnce(t, "exports", slots)
	bounds := []policy.Bound{b}
	var mu sync.Mutex
	var all []*served
	var events atomic.Int64
	var calls sync.RWMutex // the clock stands still during a call: some stores read it before they send the call
	ends := map[int64]limit.Micros{}
	inParallel(clients, func(client int) {
		random := rand.New(rand.NewPCG(uint64(client), 7))
		node := nodes[client%len(nodes)]
		for range requests {
			statuses, s := make([]decision.Status, 1), &served{ended: math.MaxInt64}
			calls.RLock()
			err := node.Take(context.Background(), bounds, statuses)
			s.at, s.returned = statuses[0].Now, events.Add(1)
			mu.Lock()
			if ends[s.returned] = clock.Now(); statuses[0].Charged {
				all = append(all, s)
			}
			mu.Unlock()
			calls.RUnlock()
			if err != nil {
				t.Errorf("take: %v", err)
			}
			calls.Lock()
			clock.Advance(limit.Micros(random.Int64N(int64(minute / 16))))
			calls.Unlock()
			if !statuses[0].Charged || random.IntN(6) == 0 { // killed
				continue
			}
			calls.RLock()
			ended := events.Add(1)
			mu.Lock()
			s.ended = ended
			mu.Unlock()
			if err := node.Settle(context.Background(), bounds, statuses, []int64{0}); err != nil {
				t.Errorf("release: %v", err)
			}
			calls.RUnlock()
		}
	})
	if n := len(all); n < clients || n == clients*requests {
		t.Errorf("%d of %d requests are admitted, want some of them denied", n, clients*requests)
	}
	if err := checkInFlight(all, ends, slots); err != nil {
		t.Error(err)
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

// checkInFlight returns an error for an instant with more requests in flight than allowed: those whose take had
// returned, whose release was not called yet, and whose deadline was later than the clock just after.
func checkInFlight(all []*served, clockAfter map[int64]limit.Micros, allowed int) error {
	slices.SortFunc(all, func(a, b *served) int { return int(a.returned - b.returned) })
	for i, last := range all {
		now, count := clockAfter[last.returned], 0
		for _, s := range all[:i+1] {
			if s.ended > last.returned && s.at+minute > now {
				count++
			}
		}
		if count > allowed {
			return fmt.Errorf("at %d %d requests are in flight, at most %d promised", now, count, allowed)
		}
	}
	return nil
}
