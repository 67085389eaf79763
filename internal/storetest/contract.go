package storetest

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/bucket/store"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/decision"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
)

func peekShowsWaits(t *testing.T, f *fixture) {
	for _, algorithm := range Algorithms {
		name := algorithm.String()
		bounds := []policy.Bound{withCost(bound(t, name, perHour(algorithm, 5)), 2), fixed(t, "beside-"+name, 100)}
		for used := int64(0); used <= 4; used += 2 {
			shown := Peek(t, f, bounds)
			if s := shown.statuses; s[0].Used != used || s[1].Used != used/2 {
				t.Errorf("%s with %d used: a peek shows %+v", name, used, s)
			}
			shown.Check(t, f.take(t, bounds...))
		}
	}
}

func refundReturnsOnce(t *testing.T, f *fixture) {
	for _, algorithm := range Algorithms {
		name := algorithm.String()
		bounds := []policy.Bound{withCost(bound(t, name, perHour(algorithm, 10)), 3), fixed(t, "beside-"+name, 5)}
		f.take(t, bounds...)
		statuses := f.take(t, bounds...)
		for range 2 { // the second time nothing is Charged any more
			require.NoError(t, f.Settle(context.Background(), bounds, statuses, nil))
			if statuses[0].Charged || statuses[1].Charged || statuses[0].Settled != -3 || statuses[1].Settled != -1 {
				t.Errorf("%s: refunded %+v, want 3 and 1 returned", algorithm, statuses)
			}
			f.expect(t, "after a refund", bounds, 3, 1)
		}
	}
}

func forgetEmptiesItsKeysAlone(t *testing.T, f *fixture) {
	for _, algorithm := range Every {
		spec := perHour(algorithm, 10)
		gone, kept := bound(t, algorithm.String(), spec), bound(t, "kept-"+algorithm.String(), spec)
		never := bound(t, "never-"+algorithm.String(), spec)
		f.take(t, gone, kept)
		n, err := f.keeper().Forget(context.Background(), []policy.Bound{gone, never})
		if err != nil || n != 1 {
			t.Errorf("%s: %d buckets were deleted (%v), want 1", algorithm, n, err)
		}
		f.expect(t, "after one bucket was deleted", []policy.Bound{gone, kept, never}, 0, 1, 0)
		if f.take(t, gone, kept); f.peek(t, gone)[0].Used != 1 {
			t.Errorf("%s: a deleted bucket does not begin anew", algorithm)
		}
	}
}

func statusesMustFit(t *testing.T, f *fixture) {
	bounds, none := []policy.Bound{fixed(t, "one", 5), fixed(t, "two", 5)}, make([]decision.Status, 1)
	taken := f.take(t, bounds...)
	for name, err := range map[string]error{
		"take": f.Take(context.Background(), bounds, none), "peek": f.Peek(context.Background(), bounds, none),
		"settle":             f.Settle(context.Background(), bounds, taken[:1], []int64{0, 0}),
		"settle by one cost": f.Settle(context.Background(), bounds, taken, []int64{0}),
	} {
		if err == nil {
			t.Errorf("%s: two bounds with one status or cost are no error", name)
		}
	}
	f.expect(t, "after requests that do not fit", bounds, 1, 1)
}

// Peeked is what a store showed of a request. [Peeked.Check] compares it with the take that follows.
type Peeked struct {
	bounds   []policy.Bound
	statuses []decision.Status
}

// Peek peeks twice at the bounds. Both answers must be the same, and nothing may be charged.
func Peek(t rapid.TB, s store.Store, bounds []policy.Bound) Peeked {
	t.Helper()
	first, second := make([]decision.Status, len(bounds)), make([]decision.Status, len(bounds))
	for _, statuses := range [][]decision.Status{first, second} {
		if err := s.Peek(context.Background(), bounds, statuses); err != nil {
			t.Fatalf("peek at %d bounds: %v", len(bounds), err)
		}
	}
	for i := range first {
		if first[i] != second[i] || first[i].Charged || first[i].Receipt != second[i].Receipt {
			t.Fatalf("bound %d of %d: one peek shows %+v, the next %+v", i, len(bounds), first[i], second[i])
		}
	}
	return Peeked{bounds, second}
}

// Check fails the test unless the take at the same instant has the outcome that was shown: the same bounds deny, the
// same were answered, for the same reasons and with the same waits. The zero value checks nothing.
func (p Peeked) Check(t rapid.TB, taken []decision.Status) {
	t.Helper()
	for i := range p.statuses {
		shown, got := &p.statuses[i], &taken[i]
		if shown.Wait != got.Wait || shown.Source != got.Source || shown.Failure != got.Failure ||
			shown.Capacity != got.Capacity {
			t.Fatalf("bound %d of %d, %s of cost %d: the peek showed %+v, the take %+v",
				i, len(taken), p.bounds[i].Policy.Name, p.bounds[i].Cost, *shown, *got)
		}
	}
}
