package storetest

import (
	"cmp"
	"fmt"
	"math"
	"math/bits"
	"slices"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/limit"
)

// Reservation is an admitted request that reserved tokens, and was or will be settled to what it cost.
type Reservation struct {
	At               limit.Micros // the store's clock at its admission
	Reserved, Actual int64        // tokens

	// Began and Settled number the calls of all requests: its take began at Began, and its settlement had returned at
	// Settled. [InFlight]: it is not settled.
	Began, Settled int64
}

// InFlight is the Settled of a request that is not settled.
const InFlight = math.MaxInt64

// countedAt returns what the store must have counted of the request when a take began: all that it cost, unless it was
// in flight and cost more than it reserved.
func (r *Reservation) countedAt(began int64) int64 {
	if r.Settled < began {
		return r.Actual
	}
	return min(r.Actual, r.Reserved)
}

// CheckReservations returns an error for an interval whose admitted requests cost more than the bound and what those in
// flight at its last admission cost beyond their reservation; or nil. The interval of a fixed window is the window. The
// sum of all costs must be below 2^62 of the limit's units. A limit that only warns bounds nothing.
func (b Bound) CheckReservations(list []Reservation) error {
	spec := b.Limit.Spec()
	if spec.SoftOnly {
		return nil
	}
	sorted := slices.SortedFunc(slices.Values(list), func(x, y Reservation) int {
		return cmp.Or(cmp.Compare(x.At, y.At), cmp.Compare(x.Began, y.Began))
	})
	for last := range sorted {
		var err error
		switch spec.Algorithm {
		case limit.TokenBucket, limit.LeakyBucket:
			err = b.checkBucketUntil(sorted[:last+1])
		case limit.FixedWindow:
			err = b.checkWindowUntil(sorted[:last+1])
		default:
			return fmt.Errorf("requests of a %s are not settled", spec.Algorithm)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// checkBucketUntil checks base × sum(i..last) − rate × ticks(i..last) ≤ hard for every i.
func (b Bound) checkBucketUntil(sorted []Reservation) error {
	rate, base := b.fraction()
	last, tick, hard := &sorted[len(sorted)-1], b.Limit.Tick(), b.hard(base)
	var sum int64
	for i := range slices.Backward(sorted) {
		first := &sorted[i]
		sum += first.countedAt(last.Began)
		refill := int64(math.MaxInt64)
		if hi, lo := bits.Mul64(uint64(rate), uint64(last.At/tick-first.At/tick)); hi == 0 && lo < math.MaxInt64 {
			refill = int64(lo)
		}
		if excess := sum*base - hard; excess > refill {
			return b.violation(sum, first.At, last.At, sum-(excess-refill-1)/base-1)
		}
	}
	return nil
}

// checkWindowUntil checks that the last request's window sees no more than H.
func (b Bound) checkWindowUntil(sorted []Reservation) error {
	last, window := &sorted[len(sorted)-1], b.Limit.Spec().Window
	start := last.At - last.At%window
	var sum int64
	for i := range slices.Backward(sorted) {
		if sorted[i].At < start {
			break
		}
		sum += sorted[i].countedAt(last.Began)
	}
	if sum > b.capacity() {
		return b.violation(sum, start, last.At, b.capacity())
	}
	return nil
}
