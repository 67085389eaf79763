package limit_test

import (
	"reflect"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/storetest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/limit"
)

// taken is a take that may be given back, in parts.
type taken struct {
	limit   *limit.Limit
	left    int64 // tokens that are neither spent nor refunded
	at      int   // its place in the history
	receipt limit.Receipt
}

// event is a take in a bucket's history, of so many tokens as are not given back. One of none shows the clock.
type event struct {
	limit   *limit.Limit
	now     limit.Micros
	seen    limit.Micros // the latest instant that the bucket has seen
	cost    int64
	charged int64 // units, by a settlement
}

// timeline is one bucket with takes by several, some of which are given back later, in any order.
type timeline struct {
	state   limit.State
	now     limit.Micros
	latest  limit.Micros
	history []event
	open    []taken
}

// spend takes cost if it fits, and reports whether it did.
func (tl *timeline) spend(l *limit.Limit, cost int64) bool {
	l.Advance(&tl.state, tl.now)
	if cost <= 0 || l.Wait(&tl.state, tl.now, cost) > 0 {
		cost = 0
	}
	l.Spend(&tl.state, tl.now, cost)
	tl.seen(l, cost)
	return cost > 0
}

// seen records what the bucket has seen of the clock, with what it spent then.
func (tl *timeline) seen(l *limit.Limit, cost int64) {
	tl.latest = max(tl.latest, tl.now)
	tl.history = append(tl.history, event{limit: l, now: tl.now, seen: tl.latest, cost: cost})
}

// refund gives back so much of an open take, and returns the units that came back.
func (tl *timeline) refund(i int, cost int64) int64 {
	o := &tl.open[i]
	tl.history[o.at].cost -= cost
	o.left -= cost
	back := o.limit.Refund(&tl.state, tl.now, cost, o.receipt)
	if back > 0 && o.limit.Units().Kind == limit.TokenBucket { // it has seen the clock
		tl.seen(o.limit, 0)
	}
	if o.left == 0 {
		tl.open = append(tl.open[:i], tl.open[i+1:]...)
	}
	return back
}

// turn lets time pass. Refills of a full bucket are drawn often: it is there that refunds can go wrong.
func (tl *timeline) turn(t *rapid.T, l *limit.Limit) {
	switch rapid.IntRange(0, 3).Draw(t, "pause") {
	case 0:
		tl.now += storetest.Gap(t, l)
	case 1:
		u := l.Units()
		full := tl.state.Spent
		if u.Kind == limit.TokenBucket {
			full = tl.state.Spent / u.Rate * int64(u.Tick)
		}
		tl.now += limit.Micros(rapid.Int64Range(0, min(full, int64(limit.MaxWindow))+1).Draw(t, "until nearly full"))
	}
	// the promise is of what is between larger steps back
	tl.now = max(tl.now, storetest.Start, tl.state.At-limit.StepBack)
}

// step is a take, a take that may be given back, or a refund.
func (tl *timeline) step(t *rapid.T, l *limit.Limit) {
	tl.turn(t, l)
	switch kind := rapid.IntRange(0, 5).Draw(t, "step"); {
	case kind < 3 && len(tl.open) > 0:
		i := rapid.IntRange(0, len(tl.open)-1).Draw(t, "refund of")
		cost := tl.open[i].left
		if rapid.Bool().Draw(t, "in parts") {
			cost = rapid.Int64Range(1, cost).Draw(t, "refunded")
		}
		tl.refund(i, cost)
	default:
		cost := storetest.Cost(t, l)
		if tl.spend(l, cost) && kind > 3 {
			tl.open = append(tl.open, taken{l, cost, len(tl.history) - 1, tl.state.Receipt()})
		}
	}
}

// owed is the state of a bucket in which only what was not given back was ever taken.
func (tl *timeline) owed(l *limit.Limit) limit.State {
	var s limit.State
	for _, e := range tl.history {
		e.limit.Advance(&s, e.now)
		e.limit.Spend(&s, e.now, e.cost)
		s.Spent += e.charged
	}
	l.Advance(&s, tl.now)
	return s
}

// distinguishable reports whether a state shows which of two limits wrote it: few pairs have the same base and tag.
func distinguishable(a, b *limit.Limit) bool {
	one, two := a.Units(), b.Units()
	return one.Kind != limit.TokenBucket || one.Base != two.Base || one.Tag != two.Tag || one.Rate == two.Rate
}

// A refund returns no more than what is certainly missing, whatever others take and refund meanwhile.
func TestABucketOwesNoLessThanWhatWasReallySpent(t *testing.T) {
	perAlgorithm(t, func(t *rapid.T, l *limit.Limit) {
		tl := timeline{now: storetest.Start}
		other := storetest.Limits(l.Spec().Algorithm).Draw(t, "other limit")
		for range rapid.IntRange(1, 30).Draw(t, "steps") {
			under := l
			if rapid.IntRange(0, 11).Draw(t, "under another limit") == 7 && distinguishable(l, other) {
				under = other
			}
			tl.step(t, under)
			tl.state.Log = clone(tl.state).Log
			now := tl.state
			l.Advance(&now, tl.now)
			owed := tl.owed(l)
			if now.At == owed.At && now.Spent < owed.Spent || l.Status(&now, tl.now).Used < l.Status(&owed, tl.now).Used {
				t.Fatalf("%+v\nis less than what was really spent, which is\n%+v", now, owed)
			}
		}
	})
}

// What is really spent keeps the promise of the limit in every interval.
func TestNoIntervalSeesMoreThanTheBoundWhateverIsGivenBack(t *testing.T) {
	perAlgorithm(t, func(t *rapid.T, l *limit.Limit) {
		tl := timeline{now: storetest.Start}
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			tl.step(t, l)
		}
		var kept []limit.Admission
		for _, e := range tl.history {
			if e.cost > 0 {
				kept = append(kept, limit.Admission{At: e.seen, Cost: e.cost})
			}
		}
		require.NoError(t, (storetest.Bound{Limit: l}).Check(kept))
	})
}

// While a bucket is never full, all of a take comes back, however late.
func TestAllComesBackToABucketThatWasNeverFull(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		l := storetest.Limits(limit.TokenBucket).Draw(t, "limit")
		tl := timeline{now: storetest.Start}
		used := rapid.Int64Range(1, l.Capacity()).Draw(t, "used")
		tl.spend(l, used)
		if cost := rapid.Int64Range(1, used).Draw(t, "taken"); !tl.spend(l, cost) {
			return
		}
		cost := tl.history[1].cost
		receipt := tl.state.Receipt()
		u := l.Units()
		// the first take alone covers so many
		tl.now += limit.Micros(rapid.Int64Range(0, used*u.Base/u.Rate).Draw(t, "ticks")) * u.Tick
		others := min(l.Capacity()-used-cost, 5)
		tl.spend(l, others)
		back := l.Refund(&tl.state, tl.now, cost, receipt)
		require.True(t, back == cost*u.Base, "%d units come back of %d tokens, each of %d", back, cost, u.Base)
	})
}

func TestNothingIsGivenBackToABucketThatBeganAnew(t *testing.T) {
	for _, algorithm := range storetest.Algorithms {
		l := mustNew(t,
			limit.Spec{
				Algorithm: algorithm, Quantity: 100, Window: hour,
				Burst: map[bool]int64{true: 100}[algorithm <= limit.LeakyBucket],
			})
		tl := timeline{now: noon}
		tl.spend(l, 50)
		receipt := tl.state.Receipt()
		tl.state, tl.now = limit.State{}, noon+1_000
		tl.spend(l, 60)
		before := clone(tl.state)
		if back := l.Refund(&tl.state, tl.now, 50, receipt); back != 0 || tl.state.Spent != before.Spent {
			t.Errorf("%s: %d come back to a bucket that was reset meanwhile", algorithm, back)
		}
	}
}

func TestNothingIsGivenBackWhenTheLimitWasAnotherMeanwhile(t *testing.T) {
	for _, pair := range [][2]limit.Spec{
		{
			{Algorithm: limit.TokenBucket, Quantity: 7, Window: minute, Burst: 1000},
			{Algorithm: limit.TokenBucket, Quantity: 11, Window: minute, Burst: 1000},
		},
		{
			{Algorithm: limit.TokenBucket, Quantity: 10, Window: minute, Burst: 1000},
			{Algorithm: limit.TokenBucket, Quantity: 1000, Window: minute},
		},
		{
			{Algorithm: limit.FixedWindow, Quantity: 1000, Window: minute},
			{Algorithm: limit.FixedWindow, Quantity: 1000, Window: second},
		},
		{
			{Algorithm: limit.SlidingWindow, Quantity: 1000, Window: minute},
			{Algorithm: limit.FixedWindow, Quantity: 1000, Window: minute},
		},
	} {
		l, other := mustNew(t, pair[0]), mustNew(t, pair[1])
		tl := timeline{now: noon}
		tl.spend(l, 200)
		receipt := tl.state.Receipt()
		tl.now += 3 * second
		tl.spend(other, 10)
		tl.now += second
		if back := l.Refund(&tl.state, tl.now, 200, receipt); back != 0 {
			t.Errorf("%d come back while the limit is %+v, and was %+v", back, other.Spec(), l.Spec())
		}
		tl.spend(l, 1)
		if back := l.Refund(&tl.state, tl.now, 200, receipt); back != 0 {
			t.Errorf("%d come back, though the limit was %+v meanwhile, not %+v", back, other.Spec(), l.Spec())
		}
	}
}

// A mark begins anew after 2^48 steps; the difference of two marks does not notice.
func TestAMarkThatBeginsAnewIsNoOtherBucket(t *testing.T) {
	l := mustNew(t, limit.Spec{Algorithm: limit.TokenBucket, Quantity: 60, Window: minute, Burst: 1000})
	tl := timeline{now: noon}
	tl.spend(l, 100)
	tl.state.Mark = 1<<48 - 5
	tl.spend(l, 100)
	first := tl.state.Receipt()
	tl.spend(l, 10)
	second := tl.state.Receipt()
	if back := l.Refund(&tl.state, tl.now, 10, second); back != 10*l.Units().Base || tl.state.Mark != 5 {
		t.Fatalf("%d come back, and the mark is %d, want 5", back, tl.state.Mark)
	}
	assert.Equal(t, 100*l.Units().Base, l.Refund(&tl.state, tl.now, 100, first), "come back, want all")
}

// So much was refunded since the take that a mark does not show how much: nothing comes back.
func TestAMarkThatCannotTellReturnsNothing(t *testing.T) {
	l := mustNew(t, limit.Spec{Algorithm: limit.TokenBucket, Quantity: 1_000_000_000, Window: hour * 24})
	tl := timeline{now: noon}
	tl.spend(l, 100)
	receipt := tl.state.Receipt()
	for range 2 {
		tl.spend(l, 9_000_000)
		back := l.Refund(&tl.state, tl.now, 9_000_000, tl.state.Receipt())
		require.True(t, back != 0, "a take that was just made is not given back")
	}
	assert.Zero(t, l.Refund(&tl.state, tl.now, 100, receipt), "come back")
}

// However many takes are refunded, a sliding log keeps no entries of them: what is not spent takes no memory.
func TestARefundedTakeLeavesNoEntryInASlidingLog(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		l := storetest.Limits(limit.SlidingLog).Draw(t, "limit")
		tl := timeline{now: storetest.Start}
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			tl.step(t, l)
			for i, a := range tl.state.Log {
				require.True(t, a.Cost > 0, "entry %d of %+v is empty", i, tl.state.Log)
			}
		}
		for len(tl.open) > 0 {
			tl.refund(0, tl.open[0].left)
		}
		var kept int64
		for _, e := range tl.history {
			kept += e.cost
		}
		if kept == 0 && (tl.state.Log != nil || tl.state.Spent != 0) {
			t.Fatalf("after a refund of all takes the log holds %+v", tl.state)
		}
	})
}

// A server that spends and then refunds, because another one denies, leaves what was spent before: no more, which would
// deny others, and no less, which would admit them. That holds for a bucket that another limit wrote, too.
func TestASpendThatIsRefundedAtOnceChangesNothing(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		tl := timeline{now: storetest.Start}
		l := storetest.Limits().Draw(t, "limit")
		for range rapid.IntRange(1, 30).Draw(t, "steps") {
			if rapid.IntRange(0, 4).Draw(t, "change") == 0 {
				l = storetest.Limits().Draw(t, "changed limit")
			}
			tl.turn(t, l)
			cost := storetest.Cost(t, l)
			want := clone(tl.state)
			l.Advance(&want, tl.now)
			if cost <= 0 || l.Wait(&want, tl.now, cost) > 0 {
				continue
			}
			if rapid.Bool().Draw(t, "keep") {
				tl.spend(l, cost)
				continue
			}
			tl.spend(l, cost)
			l.Refund(&tl.state, tl.now, cost, tl.state.Receipt())
			got := clone(tl.state)
			if got.Mark, want.Mark = 0, 0; !reflect.DeepEqual(got, want) {
				t.Fatalf("a refunded spend of %d leaves\n%+v, want\n%+v", cost, got, want)
			}
		}
	})
}
