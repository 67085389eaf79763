package limit_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/storetest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/limit"
)

// What an interval of one window can see is what an administrator reads in the table of algorithms, so it is measured
// here: no client gets more, and one that tries hard gets exactly that much.

const (
	quantity = 100
	burst    = 30
)

// mostInAWindow is what the table says, in tokens, of an interval [t, t + window). A bucket's is of the interval with
// its end: there the last token of the refill arrives.
var mostInAWindow = map[limit.Algorithm]int64{
	limit.TokenBucket:   quantity + burst,
	limit.LeakyBucket:   quantity + 1,
	limit.FixedWindow:   2 * quantity,
	limit.SlidingWindow: 2*quantity - 1, // only where the window before was spent at its very end; q for even traffic
	limit.SlidingLog:    quantity,
}

func busiest(algorithm limit.Algorithm, admissions []limit.Admission) (int64, limit.Micros) {
	interval := minute
	if algorithm == limit.TokenBucket || algorithm == limit.LeakyBucket {
		interval++
	}
	return storetest.Most(admissions, interval)
}

func worstSpec(algorithm limit.Algorithm) limit.Spec {
	spec := limit.Spec{Algorithm: algorithm, Quantity: quantity, Window: minute}
	if algorithm == limit.TokenBucket {
		spec.Burst = burst
	}
	return spec
}

// greedy spends whatever is there, token by token, at each of the given instants, and then as soon as a token is to
// be had again until the next one.
func greedy(l *limit.Limit, starts ...limit.Micros) []limit.Admission {
	var s limit.State
	var admissions []limit.Admission
	for i, now := range starts {
		end := now
		if i+1 < len(starts) {
			end = starts[i+1] - 1
		}
		for now <= end {
			wait, _ := take(l, &s, now, 1)
			if wait == 0 {
				admissions = append(admissions, limit.Admission{At: now, Cost: 1})
			}
			now += wait
		}
	}
	return admissions
}

func TestAnIntervalOfOneWindowCanSeeExactlyWhatTheTableSays(t *testing.T) {
	for algorithm, want := range mostInAWindow {
		t.Run(algorithm.String(), func(t *testing.T) {
			l := mustNew(t, worstSpec(algorithm))
			// Idle until the last microsecond of a window, and then greedy for three.
			start := noon + minute - 1
			got, from := busiest(algorithm, greedy(l, start, start+3*minute))
			if got != want {
				t.Errorf("the busiest minute, from %d µs after noon, saw %d tokens; the table says %d", from-noon, got, want)
			}
		})
	}
}

func TestNoTimelineOfOneWindowSeesMoreThanTheTableSays(t *testing.T) {
	for algorithm, most := range mostInAWindow {
		t.Run(algorithm.String(), func(t *testing.T) {
			l := mustNew(t, worstSpec(algorithm))
			rapid.Check(t, func(t *rapid.T) {
				starts := []limit.Micros{noon}
				for range rapid.IntRange(1, 6).Draw(t, "pauses") {
					starts = append(starts, starts[len(starts)-1]+adversarialPause(t))
				}
				admissions := greedy(l, starts...)
				if got, from := busiest(algorithm, admissions); got > most {
					t.Fatalf("the minute from %d saw %d tokens; the table says at most %d", from, got, most)
				}
				require.NoError(t, (storetest.Bound{Limit: l}).Check(admissions))
			})
		})
	}
}

// adversarialPause aims at the ends of windows, where the approximations are weakest.
func adversarialPause(t *rapid.T) limit.Micros {
	share := limit.Micros(rapid.IntRange(0, 4).Draw(t, "quarters")) * minute / 4
	after := limit.Micros(rapid.Int64Range(0, 2).Draw(t, "just after"))
	return 1 + share + after + rapid.SampledFrom([]limit.Micros{0, 0, second, minute - 2}).Draw(t, "further")
}

// A sliding window's worst case needs all of a window's quantity spent at its end. Traffic that comes evenly, however
// much of it, sees the quantity and no more than a fraction beyond it.
func TestEvenTrafficThroughASlidingWindowSeesItsQuantity(t *testing.T) {
	l := mustNew(t, worstSpec(limit.SlidingWindow))
	var s limit.State
	var admissions []limit.Admission
	for now := noon; now < noon+10*minute; now += 600*ms - 100 { // a little more than a hundred a minute
		if wait, _ := take(l, &s, now, 1); wait == 0 {
			admissions = append(admissions, limit.Admission{At: now, Cost: 1})
		}
	}
	if got, _ := storetest.Most(admissions, minute); got < quantity || got > quantity+1 {
		t.Errorf("the busiest minute saw %d tokens of %d", got, quantity)
	}
}
