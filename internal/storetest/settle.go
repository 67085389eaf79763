package storetest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"pgregory.net/rapid"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/soak"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/bucket/store"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/decision"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/limit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
)

// settle settles what a take of the bounds spent, and fails the test unless the buckets changed by want.
func (f *fixture) settle(
	t *testing.T, bounds []policy.Bound, statuses []decision.Status, actual []int64, want ...int64,
) {
	t.Helper()
	if err := f.Settle(context.Background(), bounds, statuses, actual); err != nil {
		t.Fatalf("settle %d bounds: %v", len(bounds), err)
	}
	for i, s := range statuses {
		if s.Charged || s.Settled != want[i] || s.Failure != decision.NoFailure {
			t.Errorf("%s is settled to %d: %+v, want a change of %d", bounds[i].Policy.Name, actual[i], s, want[i])
		}
	}
}

func settleReplacesWhatWasSpent(t *testing.T, f *fixture) {
	for _, algorithm := range Settling {
		name := algorithm.String()
		bounds := []policy.Bound{
			withCost(bound(t, name, perHour(algorithm, 100)), 8), withCost(fixed(t, "beside-"+name, 50), 4),
			withMode(withCost(bound(t, "shadow-"+name, perHour(algorithm, 100)), 6), policy.Shadow),
		}
		f.take(t, bounds...)
		statuses := f.take(t, bounds...)
		f.settle(t, bounds, statuses, []int64{3, 4, 16}, -5, 0, 10)
		f.expect(t, "after a settlement", bounds, 11, 8, 22)
		f.settle(t, bounds, statuses, []int64{0, 50, 0}, -5, 0, 10) // nothing is Charged any more
		f.expect(t, "after a second settlement of the same take", bounds, 11, 8, 22)
		statuses = f.take(t, bounds...)
		f.settle(t, bounds, statuses, []int64{0, 0, 0}, -8, -4, -6)
		f.expect(t, "after a settlement to nothing", bounds, 11, 8, 22)
	}
}

func settleMayLeaveADebt(t *testing.T, f *fixture) {
	for _, algorithm := range Settling {
		b := withCost(bound(t, algorithm.String(), perHour(algorithm, 10)), 4)
		statuses := f.take(t, b)
		f.settle(t, []policy.Bound{b}, statuses, []int64{25}, 21)
		if s := f.take(t, b)[0]; s.Admits() || s.Used != 25 || s.Remaining != 0 {
			t.Errorf("%s: with 25 of 10 used the status is %+v, want a denial", algorithm, s)
		}
		for _, mode := range []policy.Mode{policy.Enforce, policy.Shadow} {
			if free := withMode(withCost(b, 0), mode); !f.take(t, free)[0].Admits() {
				t.Errorf("%s: a request that costs nothing is denied in mode %s", algorithm, mode)
			}
		}
		f.Advance(f.take(t, b)[0].Wait - 1)
		if f.admits(t, b) {
			t.Errorf("%s: a request is admitted a microsecond before its wait is over", algorithm)
		}
		f.Advance(1)
		if statuses = f.take(t, b); !statuses[0].Admits() {
			t.Errorf("%s: a request is denied after its wait", algorithm)
		}
		if f.admits(t, b) && algorithm != limit.FixedWindow {
			t.Errorf("%s: a second request is admitted at once", algorithm)
		}
	}
}

func settleChargesABucketThatWasDeleted(t *testing.T, f *fixture) {
	for _, algorithm := range Settling {
		b := withCost(bound(t, algorithm.String(), perHour(algorithm, 100)), 10)
		bounds := []policy.Bound{b}
		less, more, most := f.take(t, b), f.take(t, b), f.take(t, b)
		if _, err := f.keeper().Forget(context.Background(), bounds); err != nil {
			t.Fatal(err)
		}
		f.settle(t, bounds, less, []int64{2}, 0)
		f.expect(t, "after a refund to a deleted bucket", bounds, 0)
		f.settle(t, bounds, more, []int64{15}, 5)
		f.expect(t, "after a charge to a deleted bucket", bounds, 5)
		f.settle(t, bounds, most, []int64{10}, 0)
		f.Advance(2 * hour)
		f.expect(t, "after two hours", bounds, 0)
	}
}

func settleLeavesABucketOfAChangedLimit(t *testing.T, f *fixture) {
	for _, spec := range []limit.Spec{
		perHour(limit.TokenBucket, 100), perHour(limit.FixedWindow, 100),
	} {
		b := withCost(bound(t, spec.Algorithm.String(), spec), 10)
		bounds := []policy.Bound{b}
		less, more := f.take(t, b), f.take(t, b)
		spec.Algorithm = limit.TokenBucket + limit.FixedWindow - spec.Algorithm
		spec.Burst = burst(spec.Algorithm, 100)
		changed := bound(t, b.Policy.Name, spec)
		f.take(t, changed)
		f.settle(t, bounds, less, []int64{2}, 0)
		f.settle(t, bounds, more, []int64{15}, 0)
		f.expect(t, "after a change of the algorithm", []policy.Bound{changed}, 21)
	}
}

// reservations records requests that are settled, from many goroutines.
type reservations struct {
	calls atomic.Int64 // numbers the calls of all requests
	clock sync.RWMutex // stands still during a call: some stores read it before they send the call
	mu    sync.Mutex
	list  []Reservation
}

// serve takes the bound and settles it some time later. It records the request if it is admitted.
func (r *reservations) serve(t *testing.T, f *fixture, b policy.Bound, actual int64, later limit.Micros) {
	bounds, statuses := []policy.Bound{b}, make([]decision.Status, 1)
	call := func(what string, do func() error) {
		r.clock.RLock()
		defer r.clock.RUnlock()
		if err := do(); err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
	began := r.calls.Add(1)
	call("take", func() error { return f.Take(context.Background(), bounds, statuses) })
	r.advance(f, later)
	if !statuses[0].Admits() {
		return
	}
	at := statuses[0].Now
	call("settle", func() error { return f.Settle(context.Background(), bounds, statuses, []int64{actual}) })
	settled := r.calls.Add(1)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.list = append(r.list, Reservation{At: at, Reserved: b.Cost, Actual: actual, Began: began, Settled: settled})
}

// advance advances the clock between the calls.
func (r *reservations) advance(f *fixture, by limit.Micros) {
	r.clock.Lock()
	defer r.clock.Unlock()
	if by > 0 {
		f.Advance(by)
	}
}

// concurrentSettlementsKeepTheBound serves many requests at once, which cost less or more than they reserve, while time
// passes.
func concurrentSettlementsKeepTheBound(t *testing.T, f *fixture) {
	const most, requests = 64, 12
	callers := soak.Count(16, most)
	apart := most / callers // a smaller number of callers has a smaller limit, and takes the same time
	for _, algorithm := range Settling {
		b := bound(t, algorithm.String(), limit.Spec{
			Algorithm: algorithm, Quantity: int64(2000 / apart), Window: limit.Second,
			Burst: burst(algorithm, int64(200/apart)),
		})
		var served reservations
		inParallel(callers, func(caller int) {
			later := limit.Micros((500 + 60*apart*caller) * apart)
			for i := range requests {
				reserved, actual := int64(1+(caller+i)%9), int64((caller*7+i*5)%20)
				served.serve(t, f, withCost(b, reserved), actual, later)
			}
		})
		if n := len(served.list); n < callers || n == callers*requests {
			t.Errorf("%s: %d of %d requests are admitted, want some of them denied", algorithm, n, callers*requests)
		}
		if err := (Bound{Limit: &b.Policy.Limit}).CheckReservations(served.list); err != nil {
			t.Error(err)
		}
	}
}

// concurrentSettlementsAddUp serves many requests at one instant, and compares what the bucket counts with what they
// cost. Where no request costs more than it reserves, they never cost more than the limit.
func concurrentSettlementsAddUp(t *testing.T, f *fixture) {
	const requests = 8
	callers := soak.Count(16, 64)
	capacity := int64(8 * callers)
	for _, algorithm := range Settling {
		b := bound(t, algorithm.String(), perHour(algorithm, capacity))
		var served reservations
		inParallel(callers, func(caller int) {
			for i := range requests {
				served.serve(t, f, withCost(b, 10), int64((caller+i)%11), 0)
			}
		})
		var sum int64
		for _, r := range served.list {
			sum += r.Actual
		}
		if used := f.used(t, b); used != sum || sum > capacity || int64(len(served.list)) < capacity/10 {
			t.Errorf("%s: %d requests cost %d of %d, and %d are used", algorithm, len(served.list), sum, capacity, used)
		}
	}
}

// taken is a request in flight in a store and in the model.
type taken struct {
	bounds    []policy.Bound
	got, want []decision.Status
}

// compareWithModel plays random timelines of peeks, takes and settlements on the store and the model, and compares the
// statuses at every step.
func compareWithModel(t *testing.T, open Open, place Place, groups []policy.Group) {
	rapid.Check(t, func(rt *rapid.T) {
		store, clock := open(t)
		model := NewModel(clock)
		model.place = place
		world := drawWorld(rt, groups)
		var inFlight []taken
		for step := range rapid.IntRange(1, 100).Draw(rt, "requests") {
			world.advance(rt, model)
			if len(inFlight) > 0 && rapid.Bool().Draw(rt, "settles") {
				i := rapid.IntRange(0, len(inFlight)-1).Draw(rt, "which")
				inFlight[i].settle(rt, step, store, model)
				inFlight = slices.Delete(inFlight, i, i+1)
				continue
			}
			r := taken{bounds: world.request(rt)}
			r.decide(rt, fmt.Sprint("peek ", step), store.Peek, model.Peek)
			r.decide(rt, fmt.Sprint("take ", step), store.Take, model.Take)
			inFlight = append(inFlight, r)
		}
	})
}

// decide has the bounds decided by a store and by the model.
func (r *taken) decide(t *rapid.T, what string, store, model decide) {
	r.got, r.want = make([]decision.Status, len(r.bounds)), make([]decision.Status, len(r.bounds))
	ctx := context.Background()
	if err := errors.Join(store(ctx, r.bounds, r.got), model(ctx, r.bounds, r.want)); err != nil {
		t.Fatalf("%s of %d bounds: %v", what, len(r.bounds), err)
	}
	r.compare(t, what)
}

// settle settles the request in both stores.
func (r *taken) settle(t *rapid.T, step int, s store.Store, model *Model) {
	actual := make([]int64, len(r.bounds))
	for i := range actual {
		actual[i] = Actual(t, &r.bounds[i].Policy.Limit, r.bounds[i].Cost)
	}
	err := s.Settle(context.Background(), r.bounds, r.got, actual)
	if err = errors.Join(err, model.Settle(context.Background(), r.bounds, r.want, actual)); err != nil {
		t.Fatalf("settlement %d: %v", step, err)
	}
	r.compare(t, fmt.Sprint("settlement ", step, " to ", actual))
}

// compare demands that the statuses of both stores are alike.
func (r *taken) compare(t *rapid.T, what string) {
	for i := range r.got {
		got, want := r.got[i], r.want[i]
		want.Source, want.Wait = got.Source, shadowWait(&r.bounds[i], &got, &want)
		if r.bounds[i].Key.Slots { // ids are random
			want.Receipt.Debt, want.Receipt.Mark = got.Receipt.Debt, got.Receipt.Mark
		}
		if got != want {
			b := &r.bounds[i]
			t.Fatalf("%s, bound %d: %s of cost %d with %+v\n got %+v\nwant %+v",
				what, i, b.Policy.Mode, b.Cost, b.Policy.Limit.Spec(), got, want)
		}
	}
}
