package limit_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/storetest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/limit"
)

func TestSoftZoneBeginsJustAboveTheSoftThreshold(t *testing.T) {
	for _, algorithm := range []limit.Algorithm{
		limit.TokenBucket, limit.FixedWindow, limit.SlidingWindow, limit.SlidingLog,
	} {
		t.Run(algorithm.String(), func(t *testing.T) {
			l := mustNew(t, limit.Spec{Algorithm: algorithm, Quantity: 20, Window: minute, SoftPct: 80, HardPct: 110})
			var s limit.State
			for used := int64(1); used <= 22; used++ {
				wait, status := take(l, &s, noon, 1)
				want := limit.Status{Used: used, Remaining: max(0, 20-used), Reset: status.Reset, Soft: used > 16}
				if want.Soft {
					want.Remaining = 0
				}
				require.True(t, wait == 0 && status == want, "token %d: wait %d, status %+v, want %+v", used, wait, status, want)
			}
			if wait, _ := take(l, &s, noon, 1); wait == 0 {
				t.Error("token 23 of 110 % of 20 was admitted")
			}
		})
	}
}

func TestHardThresholdMeansNothingWithoutASoftOne(t *testing.T) {
	l := mustNew(t, limit.Spec{Algorithm: limit.FixedWindow, Quantity: 10, Window: minute, HardPct: 200})
	assert.EqualValues(t, 10, l.Capacity(), "capacity")
}

func TestHardThresholdOfABucketWidensItsCapacityAndNotItsRate(t *testing.T) {
	l := mustNew(t,
		limit.Spec{Algorithm: limit.TokenBucket, Quantity: 10, Window: second, Burst: 10, SoftPct: 100, HardPct: 150})
	var s limit.State
	play(t, l, &s, []step{
		{0, 15, 0, 0, 1500 * ms},
		{0, 1, 100 * ms, 0, 1500 * ms},
		{100 * ms, 1, 0, 0, 1500 * ms},
		{600 * ms, 0, 0, 0, 1000 * ms},
		{700 * ms, 0, 0, 1, 900 * ms},
	})
}

// A hard threshold that falls within a token is exact where usage has fractions, and rounds down where it has none.
func TestHardThresholdWithinATokenIsExact(t *testing.T) {
	spec := limit.Spec{Algorithm: limit.SlidingWindow, Quantity: 10, Window: minute, SoftPct: 100, HardPct: 105}
	l := mustNew(t, spec)
	var s limit.State
	take(l, &s, noon, 10)
	at := noon + minute + 3*second // 57/60 of the 10 still count: 9.5, and 9.5 + 1 is 105 %
	if wait, _ := take(l, &s, at-1, 1); wait != 1 {
		t.Errorf("a microsecond before usage falls to 10.5: wait %d, want 1", wait)
	}
	if wait, status := take(l, &s, at, 1); wait != 0 || !status.Soft || status.Used != 11 {
		t.Errorf("at 10.5 of 10.5 tokens: wait %d, %+v: want it admitted and soft", wait, status)
	}
	spec.Algorithm = limit.FixedWindow
	got := mustNew(t, spec).Capacity()
	assert.True(t, got == 10, "105 %% of 10 is %d whole tokens, want 10", got)
}

func TestSoftOnlyWarnsAndNeverDenies(t *testing.T) {
	for _, algorithm := range []limit.Algorithm{
		limit.TokenBucket, limit.LeakyBucket, limit.FixedWindow, limit.SlidingWindow, limit.SlidingLog,
	} {
		t.Run(algorithm.String(), func(t *testing.T) {
			l := mustNew(t, limit.Spec{Algorithm: algorithm, Quantity: 10, Window: minute, SoftOnly: true})
			full := l.Spec().Burst
			var s limit.State
			for used := int64(1); used <= 50*full; used++ {
				wait, status := take(l, &s, noon, 1)
				require.True(t, wait == 0 && status.Soft == (used > full), "token %d of %d: wait %d, %+v", used, full, wait, status)
			}
			for _, cost := range []int64{1000 * full, limit.MaxQuantity, 1 << 62} {
				if wait, status := take(l, &s, noon, cost); wait != 0 || !status.Soft {
					t.Fatalf("cost %d: wait %d, %+v: want it admitted and soft", cost, wait, status)
				}
			}
			assert.True(t, len(s.Log) <= 1, "%d entries for one instant", len(s.Log))
			// Two windows after the excess the warnings have ended, however large it was.
			if _, status := take(l, &s, noon+3*minute, 1); status.Soft {
				t.Errorf("still soft two windows later: %+v", status)
			}
		})
	}
}

func TestSoftOnlyCountsStayExactHoweverMuchIsSpent(t *testing.T) {
	for _, algorithm := range []limit.Algorithm{limit.TokenBucket, limit.FixedWindow, limit.SlidingWindow} {
		l := mustNew(t,
			limit.Spec{Algorithm: algorithm, Quantity: 1_000_000_000, Window: second, SoftPct: 1000, SoftOnly: true})
		var s limit.State
		for range 300_000 {
			if _, status := take(l, &s, noon, limit.MaxQuantity); !status.Soft || status.Used < 0 || s.Spent > limit.MaxProduct {
				t.Fatalf("%s: %+v of state %+v", algorithm, status, s)
			}
		}
	}
}

func TestSoftOnlyLogForgetsNoMoreThanTheExcess(t *testing.T) {
	l := mustNew(t, limit.Spec{Algorithm: limit.SlidingLog, Quantity: 10, Window: minute, SoftOnly: true})
	var s limit.State
	take(l, &s, noon, 20)
	if _, status := take(l, &s, noon+1, 1); status.Used != 20 || !status.Soft {
		t.Errorf("after 21 tokens: %+v, want the 20 that are remembered", status)
	}
	if _, status := take(l, &s, noon+minute, 0); status.Used != 1 {
		t.Errorf("a window after the first: %+v, want 1 used", status)
	}
}

func TestSoftOnlyLogDoesNotGrowWithoutEnd(t *testing.T) {
	l := mustNew(t, limit.Spec{Algorithm: limit.SlidingLog, Quantity: 10, Window: hour, SoftOnly: true})
	var s limit.State
	for i := range limit.Micros(10_000) {
		take(l, &s, noon+i, 1)
	}
	if len(s.Log) > 20 || cap(s.Log) > 200 {
		t.Errorf("%d entries in memory for %d", len(s.Log), cap(s.Log))
	}
}

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
				got, from := busiest(algorithm, admissions)
				require.True(t, got <= most, "the minute from %d saw %d tokens; the table says at most %d", from, got, most)
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
	got, _ := storetest.Most(admissions, minute)
	assert.True(t, got >= quantity && got <= quantity+1, "the busiest minute saw %d tokens of %d", got, quantity)
}
