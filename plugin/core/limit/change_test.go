package limit_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/storetest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/limit"
)

// A limit can change while a bucket is live: by an override, a new tier, a rollout. What was spent stays spent.

func TestLimitChangesWhileTheBucketIsLive(t *testing.T) {
	bucket := func(quantity int64, window limit.Micros, burst int64) limit.Spec {
		return limit.Spec{Algorithm: limit.TokenBucket, Quantity: quantity, Window: window, Burst: burst}
	}
	window := func(algorithm limit.Algorithm, quantity int64, window limit.Micros) limit.Spec {
		return limit.Spec{Algorithm: algorithm, Quantity: quantity, Window: window}
	}
	changes := map[string]struct {
		before limit.Spec
		spends int64 // at noon + 500 ms
		after  limit.Spec
		steps  []step
	}{
		"a bucket is raised": {
			bucket(10, second, 10), 10, bucket(20, second, 20), []step{{500 * ms, 10, 0, 0, second}},
		},
		"a bucket is lowered": {
			bucket(20, second, 20), 20, bucket(10, second, 10), []step{{500 * ms, 1, 1100 * ms, 0, 2 * second}},
		},
		"a bucket's window grows": {
			bucket(10, second, 10), 10, bucket(10, minute, 10), []step{{500 * ms, 1, 6 * second, 0, minute}},
		},
		"a bucket's burst shrinks": {
			bucket(10, second, 10), 8, bucket(10, second, 5), []step{{500 * ms, 1, 400 * ms, 0, 800 * ms}},
		},
		"a fixed window is raised": {
			window(limit.FixedWindow, 5, minute), 5, window(limit.FixedWindow, 8, minute),
			[]step{{500 * ms, 3, 0, 0, 59_500 * ms}},
		},
		"a fixed window is lowered": {
			window(limit.FixedWindow, 5, minute), 5, window(limit.FixedWindow, 2, minute),
			[]step{{500 * ms, 1, 59_500 * ms, 0, 59_500 * ms}},
		},
		"a fixed window grows longer": {
			window(limit.FixedWindow, 5, minute), 5, window(limit.FixedWindow, 8, hour),
			[]step{{500 * ms, 4, hour - 500*ms, 3, hour - 500*ms}},
		},
		"a sliding window is lowered": {
			window(limit.SlidingWindow, 100, minute), 100, window(limit.SlidingWindow, 10, minute),
			[]step{{500 * ms, 5, 59_500*ms + 57*second, 0, 59_500 * ms}},
		},
		"a sliding log is lowered": {
			window(limit.SlidingLog, 5, minute), 5, window(limit.SlidingLog, 2, minute),
			[]step{{500 * ms, 1, minute, 0, minute}},
		},
		"a sliding log's window shrinks": {
			window(limit.SlidingLog, 5, minute), 5, window(limit.SlidingLog, 5, second),
			[]step{{1499 * ms, 1, ms, 0, ms}, {1500 * ms, 5, 0, 0, second}},
		},
		"from bucket to fixed window": {
			bucket(10, second, 10), 4, window(limit.FixedWindow, 10, minute), []step{{500 * ms, 7, 59_500 * ms, 6, 59_500 * ms}},
		},
		"from fixed window to bucket": {
			window(limit.FixedWindow, 10, minute), 4, bucket(10, second, 10), []step{{600 * ms, 7, 100 * ms, 6, 400 * ms}},
		},
		"from fixed window to log": {
			window(limit.FixedWindow, 10, minute), 4, window(limit.SlidingLog, 10, minute),
			[]step{{600 * ms, 7, minute, 6, minute}},
		},
		"from log to sliding window": {
			window(limit.SlidingLog, 10, minute), 4, window(limit.SlidingWindow, 10, minute),
			[]step{{600 * ms, 6, 0, 0, 59_400 * ms}},
		},
		"from bucket to log, by its last moment": {
			bucket(10, hour, 10), 4, window(limit.SlidingLog, 10, minute),
			[]step{{60_500*ms - 1, 7, 1, 6, 1}, {60_500 * ms, 10, 0, 0, minute}},
		},
		"from bucket to leaky bucket": {
			bucket(10, second, 10), 3,
			limit.Spec{Algorithm: limit.LeakyBucket, Quantity: 10, Window: second},
			[]step{{500 * ms, 1, 300 * ms, 0, 300 * ms}},
		},
	}
	for name, change := range changes {
		t.Run(name, func(t *testing.T) {
			var s limit.State
			wait, _ := take(mustNew(t, change.before), &s, noon+500*ms, change.spends)
			require.True(t, wait == 0, "the bucket could not be spent from: wait %d", wait)
			play(t, mustNew(t, change.after), &s, change.steps)
		})
	}
}

func TestFractionOfATokenIsChargedAsOneWhenUnitsChange(t *testing.T) {
	var s limit.State
	take(mustNew(t, limit.Spec{Algorithm: limit.TokenBucket, Quantity: 10, Window: second, Burst: 10}), &s, noon, 5)
	// 50 ms later half a token is back: 4.5 owed. Units of 1/100000 token become units of 1/6000000.
	after := mustNew(t, limit.Spec{Algorithm: limit.TokenBucket, Quantity: 10, Window: minute, Burst: 10})
	s.Spent -= 50_000
	s.At += 50 * ms
	_, status := take(after, &s, noon+50*ms, 0)
	assert.True(t, status.Used == 5 && status.Reset == noon+50*ms+30*second, "%+v: want exactly 5 tokens owed", status)
}

func TestBucketWrittenInFinerTicksIsNotRefilledTwice(t *testing.T) {
	fine := mustNew(t, limit.Spec{Algorithm: limit.TokenBucket, Quantity: 1, Window: second, Burst: 100})
	coarse := mustNew(t,
		limit.Spec{Algorithm: limit.TokenBucket, Quantity: 31_622_401, Window: limit.MaxWindow, Burst: 60_000_000})
	if coarse.Tick() == fine.Tick() {
		t.Fatalf("both limits tick in %d µs", fine.Tick())
	}
	var s limit.State
	take(fine, &s, noon+700*ms, 100)
	coarse.Advance(&s, noon+900*ms)
	assert.True(t, s.At%coarse.Tick() == 0 && s.At >= noon+700*ms, "debt of 0.7 s is dated %d µs after noon", s.At-noon)
}

func TestAnotherAlgorithmCountsALogAtItsLastAdmission(t *testing.T) {
	var s limit.State
	log := mustNew(t, limit.Spec{Algorithm: limit.SlidingLog, Quantity: 10, Window: minute})
	take(log, &s, noon-second, 3)
	take(log, &s, noon+second, 4)
	play(t, mustNew(t, limit.Spec{Algorithm: limit.FixedWindow, Quantity: 10, Window: minute}), &s, []step{
		{2 * second, 4, 58 * second, 3, 58 * second},
		{minute, 10, 0, 0, minute},
	})
}

// What a fast limit has remembered can take a slow one of the same units millennia to refill.
func TestDebtIsCutToWhatCanBeWaitedFor(t *testing.T) {
	fast := mustNew(t, limit.Spec{Algorithm: limit.TokenBucket, Quantity: 999_999_937, Window: day, Burst: 50_000_000})
	slow := mustNew(t, limit.Spec{Algorithm: limit.TokenBucket, Quantity: 7, Window: day, Burst: 300_000})
	var s, other limit.State
	take(fast, &s, noon, 50_000_000)
	take(slow, &other, noon, 1)
	require.Equal(t, other.Base, s.Base, "units of 1/%d and 1/%d token", s.Base, other.Base)
	wait, status := take(slow, &s, noon, 1)
	if wait <= 0 || wait > limit.MaxProduct || status.Reset > noon+limit.MaxProduct {
		t.Errorf("wait %d, %+v: want at most %d", wait, status, int64(limit.MaxProduct))
	}
}

// A sliding window of a year multiplies by 3 × 10^13, so it must not multiply what a fixed window has counted.
func TestSlidingWindowTakesOverAnyCount(t *testing.T) {
	fixed := mustNew(t, limit.Spec{Algorithm: limit.FixedWindow, Quantity: limit.MaxQuantity, Window: day})
	sliding := mustNew(t, limit.Spec{Algorithm: limit.SlidingWindow, Quantity: 10, Window: limit.MaxWindow})
	var s limit.State
	take(fixed, &s, noon, limit.MaxQuantity)
	// as the current window's count, then as the previous one's
	for _, at := range []limit.Micros{noon, noon + limit.MaxWindow} {
		wait, status := take(sliding, &s, at, 1)
		if wait <= 0 || wait > 2*limit.MaxWindow || status.Used < 10 || status.Remaining != 0 {
			t.Fatalf("at %d: wait %d, %+v: want it full", at, wait, status)
		}
	}
	if wait, _ := take(sliding, &s, noon+3*limit.MaxWindow, 10); wait != 0 {
		t.Errorf("two windows later, wait is %d", wait)
	}
}

// A second definition of the same bucket takes over what the first has written, at every request. The rounding costs
// each admission at most one token more, so at least half of the lower rate must get through.
func TestTwoDefinitionsOfOneBucketDoNotStarveIt(t *testing.T) {
	a := mustNew(t, limit.Spec{Algorithm: limit.TokenBucket, Quantity: 1000, Window: minute})
	b := mustNew(t, limit.Spec{Algorithm: limit.TokenBucket, Quantity: 2000, Window: minute})
	if a.Tick() != b.Tick() {
		t.Fatalf("ticks of %d and %d µs", a.Tick(), b.Tick())
	}
	var stored limit.State
	admitted := 0
	for i := range 60_000 { // a minute's worth and three more, one request each 4 ms
		l, now := a, noon+limit.Micros(i)*4*ms
		if i%2 == 1 {
			l = b
		}
		s := stored // a store keeps what a denied request has looked at as it was
		if wait, _ := take(l, &s, now, 1); wait == 0 {
			stored = s
			admitted++
		}
	}
	assert.True(t, admitted >= 4*1000/2, "admitted %d in four minutes of 1000 and 2000 a minute", admitted)
}

// Any limit can take over any state: its answers stay within their range, and waiting helps.
func TestAnyLimitTakesOverAnyState(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var s limit.State
		now := storetest.Start
		for i := range rapid.IntRange(1, 12).Draw(t, "changes") {
			l := storetest.Limits().Draw(t, fmt.Sprintf("limit %d", i))
			for range rapid.IntRange(1, 5).Draw(t, "requests") {
				now += storetest.Gap(t, l)
				cost := storetest.Cost(t, l)
				wait, status := take(l, &s, now, cost)
				checkRange(t, l, now, cost, wait, status)
				if wait == 0 || wait == limit.Never {
					continue
				}
				got, _ := take(l, new(clone(s)), now+wait, cost)
				require.True(t, got == 0, "%+v: after waiting %d µs it must wait %d more", l.Spec(), wait, got)
			}
		}
	})
}

func checkRange(t *rapid.T, l *limit.Limit, now limit.Micros, cost int64, wait limit.Micros, status limit.Status) {
	if wait < 0 || (wait == limit.Never) != (cost > l.Capacity()) {
		t.Fatalf("%+v: cost %d of %d waits %d", l.Spec(), cost, l.Capacity(), wait)
	}
	if end := wait + now; wait != limit.Never && end > 2*limit.MaxProduct {
		t.Fatalf("%+v: waits until %d, which is no exact double", l.Spec(), end)
	}
	if status.Used < 0 || status.Remaining < 0 || status.Remaining > l.Spec().Burst || status.Reset < now ||
		status.Reset > 2*limit.MaxProduct {
		t.Fatalf("%+v at %d: status %+v", l.Spec(), now, status)
	}
}

// clone copies a state whose entries may be changed afterwards.
func clone(s limit.State) limit.State {
	s.Log = append([]limit.Admission(nil), s.Log...)
	return s
}
