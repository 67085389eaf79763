package storetest

import (
	"cmp"
	"fmt"
	"math"
	"math/bits"
	"slices"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/limit"
)

// Bound is the promise of a limit over any interval, as documented at limit's Algorithm constants. It uses only the
// limit's spec and tick, so it shares no arithmetic with the code under test.
type Bound struct{ Limit *limit.Limit }

// Check returns an error for the first interval with more tokens than the bound, or nil. The admissions may come in any
// order. Their instants are those of the store, which do not step back. Check covers every pair of admissions in one
// pass after sorting. A soft-only limit bounds nothing.
func (b Bound) Check(admissions []limit.Admission) error {
	spec := b.Limit.Spec()
	if spec.SoftOnly {
		return nil
	}
	sorted := slices.Clone(admissions)
	slices.SortStableFunc(sorted, func(x, y limit.Admission) int { return cmp.Compare(x.At, y.At) })
	for _, a := range sorted {
		if a.Cost > b.capacity() {
			return b.violation(a.Cost, a.At, a.At, b.capacity())
		}
	}
	switch spec.Algorithm {
	case limit.TokenBucket, limit.LeakyBucket:
		return b.checkBucket(sorted)
	case limit.FixedWindow, limit.SlidingWindow:
		return b.checkWindows(sorted)
	}
	// No interval shorter than a window of a sliding log has more than H.
	if sum, from := Most(sorted, spec.Window); sum > b.capacity() {
		return b.violation(sum, from, from+spec.Window-1, b.capacity())
	}
	return nil
}

// hardPct returns the percentage of the limit above which it denies.
func (b Bound) hardPct() int64 {
	spec := b.Limit.Spec()
	if spec.SoftPct == 0 {
		return 100
	}
	return max(100, spec.HardPct)
}

// capacity returns H in whole tokens.
func (b Bound) capacity() int64 { return b.Limit.Spec().Burst * b.hardPct() / 100 }

// hard returns H in units of 1/base token.
func (b Bound) hard(base int64) int64 {
	full, pct := b.Limit.Spec().Burst*base, b.hardPct()
	return full/100*pct + full%100*pct/100
}

// checkBucket checks base × sum(i..j) − rate × ticks(i..j) ≤ hard for every i ≤ j. For each j only the largest
// left side over all i counts: the previous one, minus the refill since then, plus the cost of j.
func (b Bound) checkBucket(sorted []limit.Admission) error {
	rate, base := b.fraction()
	tick, hard := b.Limit.Tick(), b.hard(base)
	var excess, sum int64
	var from, last limit.Micros
	for _, a := range sorted {
		if elapsed := int64(a.At/tick - last); excess == 0 || elapsed > excess/rate {
			excess, sum, from = 0, 0, a.At
		} else {
			excess -= elapsed * rate
		}
		last = a.At / tick
		excess, sum = excess+a.Cost*base, sum+a.Cost
		if excess > hard {
			return b.violation(sum, from, a.At, sum-(excess-hard-1)/base-1)
		}
	}
	return nil
}

// fraction returns the reduced fraction of tokens per tick.
func (b Bound) fraction() (rate, base int64) {
	spec := b.Limit.Spec()
	rate, base = spec.Quantity, int64(spec.Window/b.Limit.Tick())
	x, y := rate, base
	for y != 0 {
		x, y = y, x%y
	}
	return rate / x, base / x
}

// checkWindows checks that no aligned window sees more than H and, for sliding windows, that two neighbours see no
// more than H × (1 + e÷window) until e into the later one. Neighbours are enough, because an earlier window adds
// at most H to both sides.
func (b Bound) checkWindows(sorted []limit.Admission) error {
	spec, tick := b.Limit.Spec(), b.Limit.Tick()
	ticks := int64(spec.Window / tick)
	var start limit.Micros
	var previous, current int64
	for _, a := range sorted {
		switch opened, _ := b.Limit.PeriodAt(a.At); {
		case opened == start+spec.Window:
			start, previous, current = opened, current, 0
		case opened > start:
			start, previous, current = opened, 0, 0
		}
		current += a.Cost
		if current > b.capacity() {
			return b.violation(current, start, a.At, b.capacity())
		}
		if spec.Algorithm == limit.SlidingWindow && previous > 0 {
			e := int64((a.At - start) / tick)
			if most := (b.hard(ticks) + b.capacity()*e) / ticks; previous+current > most {
				return b.violation(previous+current, start-spec.Window, a.At, most)
			}
		}
	}
	return nil
}

// violation returns the error of an interval with too many tokens.
func (b Bound) violation(counted int64, from, to limit.Micros, promised int64) error {
	spec := b.Limit.Spec()
	return fmt.Errorf("%s of %d per %d s, burst %d, hard %d%%: %d tokens counted from %d to %d µs, at most %d promised",
		spec.Algorithm, spec.Quantity, spec.Window/limit.Second, spec.Burst, b.hardPct(), counted, from, to, promised)
}

// Most returns the largest number of tokens in any interval [t, t+window), and the first admission of such an interval.
// The admissions must be in the order of their instants.
func Most(admissions []limit.Admission, window limit.Micros) (tokens int64, from limit.Micros) {
	var sum int64
	oldest := 0
	for _, a := range admissions {
		for sum += a.Cost; admissions[oldest].At <= a.At-window; oldest++ {
			sum -= admissions[oldest].Cost
		}
		if sum > tokens {
			tokens, from = sum, admissions[oldest].At
		}
	}
	return tokens, from
}

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
// sum of all costs must be below 2^62 of the limit's units. The algorithm is one of [Settling]. A limit that only warns
// bounds nothing.
func (b Bound) CheckReservations(list []Reservation) error {
	spec := b.Limit.Spec()
	if spec.SoftOnly {
		return nil
	}
	sorted := slices.SortedFunc(slices.Values(list), func(x, y Reservation) int {
		return cmp.Or(cmp.Compare(x.At, y.At), cmp.Compare(x.Began, y.Began))
	})
	check := b.checkBucketUntil
	if spec.Algorithm == limit.FixedWindow {
		check = b.checkWindowUntil
	}
	for last := range sorted {
		if err := check(sorted[:last+1]); err != nil {
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
	last := &sorted[len(sorted)-1]
	start, _ := b.Limit.PeriodAt(last.At)
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
