package limit_test

import (
	"math/big"
	"testing"

	"pgregory.net/rapid"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/storetest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/limit"
)

// reference decides from first principles, over the whole history and in exact rationals: no state is condensed, no
// product can overflow, nothing is rounded but time, which is read in ticks.
type reference struct {
	spec limit.Spec
	tick limit.Micros
	// latest is the latest instant seen: a clock that steps back is read as this, where it refills or expires. When it
	// steps back further than an hour, all begins anew.
	latest  limit.Micros
	history []limit.Admission
	arrival *big.Rat // GCRA's theoretical arrival time, in ticks
}

func newReference(l *limit.Limit) *reference {
	return &reference{spec: l.Spec(), tick: l.Tick(), arrival: new(big.Rat)}
}

// hard is burst × hard_pct ÷ 100 tokens.
func (r *reference) hard() *big.Rat {
	pct := int64(100)
	if r.spec.SoftPct != 0 {
		pct = max(pct, r.spec.HardPct)
	}
	return new(big.Rat).Mul(rat(r.spec.Burst), big.NewRat(pct, 100))
}

func rat(n int64) *big.Rat { return new(big.Rat).SetInt64(n) }

// admits decides one request and remembers it.
func (r *reference) admits(now limit.Micros, cost int64) bool {
	if r.state() > now+limit.StepBack {
		r.latest, r.history, r.arrival = 0, nil, new(big.Rat)
	}
	r.latest = max(r.latest, now)
	if cost == 0 {
		return true
	}
	var ok bool
	switch r.spec.Algorithm {
	case limit.TokenBucket, limit.LeakyBucket:
		ok = r.gcra(cost)
	case limit.FixedWindow:
		ok = r.fits(r.spent(func(a limit.Admission) *big.Rat { return when(r.opened(a.At) == r.opened(r.latest)) }), cost)
	case limit.SlidingWindow:
		ok = r.fits(r.spent(func(a limit.Admission) *big.Rat { return r.share(a, now) }), cost)
	default:
		ok = r.fits(r.spent(func(a limit.Admission) *big.Rat { return when(a.At > r.latest-r.spec.Window) }), cost)
	}
	if ok {
		r.history = append(r.history, limit.Admission{At: r.latest, Cost: cost})
	}
	return ok
}

// state is the instant that a state of the latest request would have.
func (r *reference) state() limit.Micros {
	switch r.spec.Algorithm {
	case limit.TokenBucket, limit.LeakyBucket:
		return r.latest / r.tick * r.tick
	case limit.FixedWindow, limit.SlidingWindow:
		return r.opened(r.latest)
	}
	return r.latest
}

// gcra is the generic cell rate algorithm (ITU-T I.371, virtual scheduling): a cell conforms when it comes no earlier
// than its theoretical arrival time less the tolerance. Here a request of cost c is c cells at once.
func (r *reference) gcra(cost int64) bool {
	interval := big.NewRat(int64(r.spec.Window/r.tick), r.spec.Quantity) // ticks between two tokens
	now := rat(int64(r.latest / r.tick))
	arrival := new(big.Rat).Set(r.arrival)
	if arrival.Cmp(now) < 0 {
		arrival.Set(now)
	}
	arrival.Add(arrival, new(big.Rat).Mul(interval, rat(cost)))
	tolerance := new(big.Rat).Mul(interval, r.hard())
	if new(big.Rat).Sub(arrival, tolerance).Cmp(now) > 0 {
		return false
	}
	r.arrival = arrival
	return true
}

func (r *reference) fits(spent *big.Rat, cost int64) bool {
	return spent.Add(spent, rat(cost)).Cmp(r.hard()) <= 0
}

// spent is the sum of all admissions, each weighed.
func (r *reference) spent(weight func(limit.Admission) *big.Rat) *big.Rat {
	sum := new(big.Rat)
	for _, a := range r.history {
		sum.Add(sum, new(big.Rat).Mul(rat(a.Cost), weight(a)))
	}
	return sum
}

// share is the weight of an admission in a sliding window that ends now: all of it within the current aligned window,
// in the one before the share of it that is still covered.
func (r *reference) share(a limit.Admission, now limit.Micros) *big.Rat {
	start := r.opened(r.latest)
	switch r.window(a.At) {
	case r.window(r.latest):
		return rat(1)
	case r.window(r.latest) - 1:
		elapsed := max(now-start, 0) / r.tick * r.tick
		return big.NewRat(int64(r.spec.Window-elapsed), int64(r.spec.Window))
	}
	return new(big.Rat)
}

// opened is the start of the window that contains an instant.
func (r *reference) opened(at limit.Micros) limit.Micros {
	if r.spec.Calendar == nil {
		return r.window(at) * r.spec.Window
	}
	start, _ := r.spec.Calendar.Window(int64(at))
	return limit.Micros(start)
}

func (r *reference) window(at limit.Micros) limit.Micros { return at / r.spec.Window }

func when(counts bool) *big.Rat {
	if counts {
		return rat(1)
	}
	return new(big.Rat)
}

func checkAgainstReference(t *rapid.T, l *limit.Limit, requests int) {
	ref := newReference(l)
	var s limit.State
	now := storetest.Start
	for i := range requests {
		now += storetest.Gap(t, l)
		cost := storetest.Cost(t, l)
		wait, _ := take(l, &s, now, cost)
		if want := ref.admits(now, cost); (wait == 0) != want {
			t.Fatalf("%+v: request %d at %d of cost %d waits %d; the reference says admitted: %v",
				l.Spec(), i, now, cost, wait, want)
		}
	}
}

func TestEveryAlgorithmDecidesAsItsReferenceDoes(t *testing.T) {
	for _, algorithm := range storetest.Algorithms {
		t.Run(algorithm.String(), func(t *testing.T) {
			rapid.Check(t, func(t *rapid.T) {
				checkAgainstReference(t, storetest.Limits(algorithm).Draw(t, "limit"), 40)
			})
		})
	}
}
