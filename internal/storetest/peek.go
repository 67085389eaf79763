package storetest

import (
	"context"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/bucket/store"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/decision"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
)

// Peeked is what a store showed of a request. [Peeked.Check] compares it with the take that follows.
type Peeked struct {
	bounds   []policy.Bound
	statuses []decision.Status
}

// Failer is a test or a property that fails.
type Failer interface {
	Helper()
	Fatalf(format string, args ...any)
}

// Peek peeks twice at the bounds. Both answers must be the same, and nothing may be charged.
func Peek(t Failer, s store.Store, bounds []policy.Bound) Peeked {
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
func (p Peeked) Check(t Failer, taken []decision.Status) {
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
