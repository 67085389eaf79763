package limit_test

import (
	"math"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/storetest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/limit"
)

// perSettling checks a property of each algorithm that settles.
func perSettling(t *testing.T, property func(t *rapid.T, l *limit.Limit)) {
	for _, algorithm := range storetest.Settling {
		t.Run(algorithm.String(), func(t *testing.T) {
			rapid.Check(t, func(t *rapid.T) { property(t, storetest.Limits(algorithm).Draw(t, "limit")) })
		})
	}
}

// settle settles an open take, and returns the change in units.
func (tl *timeline) settle(i int, actual int64) int64 {
	o := tl.open[i]
	tl.open = slices.Delete(tl.open, i, i+1)
	tl.history[o.at].cost = min(actual, o.left)
	change := o.limit.Settle(&tl.state, tl.now, o.left, actual, o.receipt)
	if change > 0 || change < 0 && o.limit.Units().Kind == limit.TokenBucket { // it has seen the clock
		tl.seen(o.limit, 0)
		tl.history[len(tl.history)-1].charged = max(change, 0)
	}
	return change
}

// takeOpen takes cost if it fits, as a request that is settled later, and reports whether it did.
func (tl *timeline) takeOpen(l *limit.Limit, cost int64) bool {
	if !tl.spend(l, cost) {
		return false
	}
	tl.open = append(tl.open, taken{l, cost, len(tl.history) - 1, tl.state.Receipt()})
	return true
}

// actual draws what an open take cost, such that the bucket stays below the largest debt.
func (tl *timeline) actual(t *rapid.T, l *limit.Limit, reserved int64) int64 {
	return min(storetest.Actual(t, l, reserved), reserved+(l.Units().Ceiling-tl.state.Spent)/unit(l))
}

// owes fails the test if the bucket counts less than one from which only the actual costs were taken.
func (tl *timeline) owes(t *rapid.T, l *limit.Limit) {
	now, owed := clone(tl.state), tl.owed(l)
	l.Advance(&now, tl.now)
	if now.At == owed.At && now.Spent < owed.Spent || l.Status(&now, tl.now).Used < l.Status(&owed, tl.now).Used {
		t.Fatalf("%+v\nis less than what was really spent, which is\n%+v", now, owed)
	}
}

// Whatever is settled when, and under whatever other limits, the bucket counts no less than the actual costs.
func TestABucketOwesNoLessThanTheActualCosts(t *testing.T) {
	perSettling(t, func(t *rapid.T, l *limit.Limit) {
		tl := timeline{now: storetest.Start}
		other := storetest.Limits(l.Spec().Algorithm).Draw(t, "other limit")
		for range rapid.IntRange(1, 30).Draw(t, "steps") {
			current := l
			if rapid.IntRange(0, 11).Draw(t, "with another limit") == 7 && distinguishable(l, other) {
				current = other
			}
			tl.turn(t, current)
			if len(tl.open) > 0 && rapid.Bool().Draw(t, "settles") {
				i := rapid.IntRange(0, len(tl.open)-1).Draw(t, "which")
				tl.settle(i, storetest.Actual(t, tl.open[i].limit, tl.open[i].left))
			} else {
				tl.takeOpen(current, storetest.Cost(t, current))
			}
			tl.owes(t, l)
		}
	})
}

// The sum of the actual costs in any interval is within the bound, and the excess of the requests in flight.
func TestNoIntervalCostsMoreThanTheBoundAndTheExcessOfTheRequestsInFlight(t *testing.T) {
	perSettling(t, func(t *rapid.T, l *limit.Limit) {
		tl := timeline{now: storetest.Start}
		var all []storetest.Reservation
		var open []int
		for step := range int64(rapid.IntRange(1, 60).Draw(t, "steps")) {
			tl.turn(t, l)
			if len(open) == 0 || rapid.Bool().Draw(t, "takes") {
				if cost := storetest.Cost(t, l); tl.takeOpen(l, cost) {
					open = append(open, len(all))
					all = append(all, storetest.Reservation{
						At: tl.latest, Reserved: cost, Actual: cost, Began: step, Settled: storetest.InFlight,
					})
				}
				continue
			}
			i := rapid.IntRange(0, len(open)-1).Draw(t, "which")
			r := &all[open[i]]
			r.Actual, r.Settled = tl.actual(t, l, r.Reserved), step
			change := tl.settle(i, r.Actual)
			if least := (min(r.Actual, r.Reserved) - r.Reserved) * unit(l); change < least {
				t.Fatalf("%d of %d reserved tokens were used, and %d units came back", r.Actual, r.Reserved, -change)
			}
			open = slices.Delete(open, i, i+1)
		}
		require.NoError(t, (storetest.Bound{Limit: l}).CheckReservations(all))
	})
}

// unit returns how many units of a state's Spent a token has.
func unit(l *limit.Limit) int64 {
	if u := l.Units(); u.Kind == limit.TokenBucket {
		return u.Base
	}
	return 1
}

// Within one window, and as long as a bucket could not have been full without what was returned, it counts exactly the
// sum of the actual costs.
func TestTheSumOfWhatIsSettledIsTheSumOfTheActualCosts(t *testing.T) {
	perSettling(t, func(t *rapid.T, l *limit.Limit) {
		u := l.Units()
		start, end := l.PeriodAt(storetest.Start)
		tl := timeline{now: start}
		before := rapid.Int64Range(0, l.Capacity()).Draw(t, "spent before")
		tl.spend(l, before)
		sum, began, returned := before*unit(l), tl.now, int64(0)
		last := end - 1
		if u.Kind == limit.TokenBucket { // what was spent before has not refilled until then
			last = tl.now + limit.Micros(before*u.Base/u.Rate)*u.Tick
		}
		for range rapid.IntRange(1, 30).Draw(t, "steps") {
			tl.now = limit.Micros(rapid.Int64Range(int64(tl.now), int64(last)).Draw(t, "now"))
			refilled := int64(tl.now/u.Tick-began/u.Tick) * u.Rate
			if len(tl.open) > 0 && rapid.Bool().Draw(t, "settles") {
				if returned+refilled > before*unit(l) && u.Kind == limit.TokenBucket {
					return
				}
				i := rapid.IntRange(0, len(tl.open)-1).Draw(t, "which")
				reserved := tl.open[i].left
				actual := tl.actual(t, l, reserved)
				tl.settle(i, actual)
				sum += (actual - reserved) * unit(l)
				returned += inSteps(l, max(reserved-actual, 0)*unit(l))
			} else if cost := storetest.Cost(t, l); tl.takeOpen(l, cost) {
				sum += cost * unit(l)
			}
			now := clone(tl.state)
			l.Advance(&now, tl.now)
			want := sum - refilled
			require.True(t, now.Spent == want, "the bucket counts %d units, want %d", now.Spent, want)
		}
	})
}

// inSteps rounds returned units up to what a bucket's mark counts by.
func inSteps(l *limit.Limit, units int64) int64 {
	u := l.Units()
	if u.Kind != limit.TokenBucket {
		return 0
	}
	ticks := (units + u.Rate - 1) / u.Rate
	return (ticks + u.Step - 1) / u.Step * u.Step * u.Rate
}

// No number that is possible in a request, a state or a clock panics, or makes a number that is no exact double.
func TestHostileSettlementsKeepEveryNumberExact(t *testing.T) {
	hostile := rapid.OneOf(rapid.Int64Range(0, 10), rapid.SampledFrom([]int64{
		0, 1, limit.MaxQuantity, limit.MaxProduct, math.MaxInt64, -1, math.MinInt64,
	}))
	rapid.Check(t, func(t *rapid.T) {
		var s limit.State
		var receipts []limit.Receipt
		now := storetest.Start
		for range rapid.IntRange(1, 12).Draw(t, "steps") {
			l := storetest.Limits().Draw(t, "limit")
			now = max(now+storetest.Gap(t, l), 0)
			if rapid.Bool().Draw(t, "takes") {
				take(l, &s, now, storetest.Cost(t, l))
				receipts = append(receipts, s.Receipt())
			}
			var r limit.Receipt
			if len(receipts) > 0 {
				r = rapid.SampledFrom(receipts).Draw(t, "receipt")
			}
			reserved, actual := hostile.Draw(t, "reserved"), hostile.Draw(t, "actual")
			before := clone(s)
			change := l.Settle(&s, now, reserved, actual, r)
			require.True(t, change != 0 || reflect.DeepEqual(s, before), "nothing was settled, and %+v became %+v", before, s)
			if u := l.Units(); change > 0 && (s.Spent > u.Ceiling || s.Algorithm != u.Kind) {
				t.Fatalf("%d units are charged, which makes %+v", change, s)
			}
			if change < 0 && (actual > reserved || before.Algorithm != l.Units().Kind) {
				t.Fatalf("%d units came back of %d tokens that cost %d, to %+v", -change, reserved, actual, before)
			}
			if after := clone(s); s.Algorithm != limit.None {
				l.Advance(&after, now)
				end := max(l.Status(&after, now).Reset, l.Expiry(&after, now))
				for _, n := range []int64{s.Spent, s.Previous, int64(s.At), s.Mark, int64(end)} {
					require.True(t, n >= 0 && n <= 2*limit.MaxProduct, "%d is no exact double: %+v", n, s)
				}
			}
		}
	})
}

func TestAfterTheEndOfItsWindowARefundIsDroppedAndAChargeCountsInTheNext(t *testing.T) {
	l := mustNew(t, limit.Spec{Algorithm: limit.FixedWindow, Quantity: 100, Window: minute})
	for _, spent := range []int64{0, 30} {
		tl := timeline{now: noon + minute - 1}
		tl.takeOpen(l, 50)
		tl.takeOpen(l, 50)
		tl.now++
		tl.spend(l, spent)
		if change := tl.settle(0, 70); change != 20 || tl.state.Spent != spent+20 || tl.state.At != noon+minute {
			t.Errorf("%d are charged, and the bucket is %+v: want 20 more than %d from %d on",
				change, tl.state, spent, noon+minute)
		}
		if change := tl.settle(0, 10); change != 0 {
			t.Errorf("%d come back from a window that has ended", -change)
		}
	}
}

// A bucket that no longer exists, or that another limit wrote, gets nothing back and is charged.
func TestARefundToAnotherBucketIsDroppedAndAChargeIsMadeUnlessALimitHasWrittenIt(t *testing.T) {
	tokens := mustNew(t, limit.Spec{Algorithm: limit.TokenBucket, Quantity: 60, Window: minute, Burst: 100})
	for name, change := range map[string]func(tl *timeline){
		"lost":                            func(tl *timeline) { tl.state = limit.State{} },
		"reset by a clock that was ahead": func(tl *timeline) { tl.now -= limit.StepBack + 1 },
		"written by a faster limit": func(tl *timeline) {
			tl.spend(mustNew(t, limit.Spec{Algorithm: limit.TokenBucket, Quantity: 600, Window: minute}), 1)
		},
		"written by a fixed window": func(tl *timeline) {
			tl.spend(mustNew(t, limit.Spec{Algorithm: limit.FixedWindow, Quantity: 600, Window: minute}), 1)
		},
		"written by a sliding log": func(tl *timeline) {
			tl.spend(mustNew(t, limit.Spec{Algorithm: limit.SlidingLog, Quantity: 600, Window: minute}), 1)
		},
	} {
		tl := timeline{now: noon}
		tl.takeOpen(tokens, 20)
		tl.takeOpen(tokens, 20)
		change(&tl)
		before := clone(tl.state)
		if units := tl.settle(0, 5); units != 0 || !reflect.DeepEqual(tl.state, before) {
			t.Errorf("%s: %d units come back, and %+v becomes %+v", name, -units, before, tl.state)
		}
		if strings.HasPrefix(name, "written by") {
			if units := tl.settle(0, 25); units != 0 || !reflect.DeepEqual(tl.state, before) {
				t.Errorf("%s: %d units are charged, and %+v becomes %+v", name, units, before, tl.state)
			}
			continue
		}
		tokens.Advance(&before, tl.now)
		if units := tl.settle(0, 25); units != 5*tokens.Units().Base || tl.state.Spent != before.Spent+units {
			t.Errorf("%s: %d units are charged to %+v, which becomes %+v", name, units, before, tl.state)
		}
	}
}

// A limit that was changed while a request was in flight counts on, whatever the request settles to.
func TestASettlementNeverForgetsWhatAnotherLimitCounts(t *testing.T) {
	const quantity = 1000
	limits := map[string]*limit.Limit{}
	for name, window := range map[string]limit.Micros{
		"second": limit.Second, "minute": minute, "hour": 60 * minute, "day": 24 * 60 * minute,
		"month": 30 * 24 * 60 * minute,
	} {
		for _, algorithm := range []limit.Algorithm{limit.TokenBucket, limit.FixedWindow} {
			limits[name+" "+algorithm.String()] = mustNew(t,
				limit.Spec{Algorithm: algorithm, Quantity: quantity, Window: window})
		}
	}
	for was, old := range limits {
		for is, now := range limits {
			if was == is {
				continue
			}
			tl := timeline{now: noon + 10*minute}
			tl.takeOpen(old, 100)
			tl.spend(now, 600)
			before := clone(tl.state)
			tl.now += 2 * limit.Second
			after := clone(before)
			old.Settle(&after, tl.now, 100, 101, tl.open[0].receipt)
			now.Advance(&before, tl.now)
			now.Advance(&after, tl.now)
			a, b := now.Status(&after, tl.now).Used, now.Status(&before, tl.now).Used
			assert.True(t, a >= b, "%s becomes %s: %d tokens are used after the settlement, %d without it", was, is, a, b)
		}
	}
}

func TestALimitThatOnlyWarnsOwesNoMoreThanItCounts(t *testing.T) {
	l := mustNew(t, limit.Spec{Algorithm: limit.TokenBucket, Quantity: 60, Window: minute, SoftOnly: true})
	tl := timeline{now: noon}
	tl.takeOpen(l, 1000)
	assert.Zero(t, tl.settle(0, 2000), "units are charged to a full count")
	tl = timeline{now: noon}
	tl.takeOpen(l, 1000) // counts 120
	if units := tl.settle(0, 100); l.WholeTokens(units) != -20 {
		t.Errorf("%d tokens come back, want 20", -l.WholeTokens(units))
	}
}

func TestASlidingAlgorithmIsNotCharged(t *testing.T) {
	for _, algorithm := range []limit.Algorithm{limit.SlidingWindow, limit.SlidingLog} {
		l := mustNew(t, limit.Spec{Algorithm: algorithm, Quantity: 60, Window: minute})
		tl := timeline{now: noon}
		tl.takeOpen(l, 20)
		tl.takeOpen(l, 20)
		if units := tl.settle(0, 30); l.Settles() || units != 0 || tl.state.Spent != 40 {
			t.Errorf("%s: %d units are charged", algorithm, units)
		}
		if units := tl.settle(0, 5); units != -15 || tl.state.Spent != 25 {
			t.Errorf("%s: %d units come back, want 15", algorithm, -units)
		}
	}
}
