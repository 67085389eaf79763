package limit_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/limit"
)

// These tests are timelines: at an instant somebody asks for a cost, and the table says what the limit answers.

const (
	ms     = limit.Micros(1_000)
	second = limit.Second
	minute = 60 * second
	hour   = 60 * minute
	day    = 24 * hour
)

// step is one request of a timeline. Its instant is relative to the timeline's start.
type step struct {
	at        limit.Micros
	cost      int64
	wait      limit.Micros // 0: admitted and spent
	remaining int64        // afterwards
	reset     limit.Micros // afterwards, relative to at
}

// noon is the start of all timelines: a multiple of every window used here.
const noon = 20_000 * day

func mustNew(t testing.TB, spec limit.Spec) *limit.Limit {
	t.Helper()
	l, err := limit.New(spec)
	require.NoError(t, err, "New(%+v)", spec)
	return &l
}

// take is what a store does with one bound.
func take(l *limit.Limit, s *limit.State, now limit.Micros, cost int64) (limit.Micros, limit.Status) {
	l.Advance(s, now)
	wait := l.Wait(s, now, cost)
	if wait == 0 {
		l.Spend(s, now, cost)
	}
	return wait, l.Status(s, now)
}

// play runs a timeline over one state.
func play(t *testing.T, l *limit.Limit, s *limit.State, steps []step) {
	t.Helper()
	for i, want := range steps {
		now := noon + want.at
		wait, status := take(l, s, now, want.cost)
		got := step{at: want.at, cost: want.cost, wait: wait, remaining: status.Remaining, reset: status.Reset - now}
		if got != want {
			t.Fatalf("step %d:\n got %+v\nwant %+v\nstate %+v", i, got, want, *s)
		}
	}
}

func TestTimelines(t *testing.T) {
	const never = limit.Never
	timelines := map[string]struct {
		spec  limit.Spec
		steps []step
	}{
		"a token bucket bursts, then refills a token at a time": {
			limit.Spec{Algorithm: limit.TokenBucket, Quantity: 10, Window: second, Burst: 3},
			[]step{
				{0, 1, 0, 2, 100 * ms},
				{0, 1, 0, 1, 200 * ms},
				{0, 1, 0, 0, 300 * ms},
				{0, 1, 100 * ms, 0, 300 * ms},
				{99_999, 1, 1, 0, 200_001},
				{100 * ms, 1, 0, 0, 300 * ms},
				{10 * second, 0, 0, 3, 0},
				{10 * second, 3, 0, 0, 300 * ms},
			},
		},
		"a token bucket's burst is its quantity when none is given": {
			limit.Spec{Algorithm: limit.TokenBucket, Quantity: 2, Window: minute},
			[]step{{0, 2, 0, 0, minute}, {0, 1, 30 * second, 0, minute}},
		},
		"a larger cost waits longer, and does not block a smaller one": {
			limit.Spec{Algorithm: limit.TokenBucket, Quantity: 1, Window: second, Burst: 10},
			[]step{
				{0, 8, 0, 2, 8 * second},
				{0, 5, 3 * second, 2, 8 * second},
				{0, 2, 0, 0, 10 * second},
				{second, 10, 9 * second, 1, 9 * second},
				{second, 11, never, 1, 9 * second},
			},
		},
		"cost 0 reads": {
			limit.Spec{Algorithm: limit.TokenBucket, Quantity: 1, Window: second},
			[]step{{0, 0, 0, 1, 0}, {0, 1, 0, 0, second}, {0, 0, 0, 0, second}, {400 * ms, 0, 0, 0, 600 * ms}},
		},
		"a leaky bucket lets one out at a time": {
			limit.Spec{Algorithm: limit.LeakyBucket, Quantity: 10, Window: second},
			[]step{
				{0, 1, 0, 0, 100 * ms},
				{0, 1, 100 * ms, 0, 100 * ms},
				{100 * ms, 1, 0, 0, 100 * ms},
				{5 * second, 1, 0, 0, 100 * ms},
				{5 * second, 1, 100 * ms, 0, 100 * ms},
				{5 * second, 2, never, 0, 100 * ms},
			},
		},
		"a fixed window starts anew at its end": {
			limit.Spec{Algorithm: limit.FixedWindow, Quantity: 5, Window: minute},
			[]step{
				{59 * second, 4, 0, 1, second},
				{59 * second, 2, second, 1, second},
				{59 * second, 1, 0, 0, second},
				{minute - 1, 1, 1, 0, 1},
				{minute, 5, 0, 0, minute},
				{minute, 6, never, 0, minute},
				{10*minute + 20*second, 0, 0, 5, 40 * second},
			},
		},
		"a sliding window weighs the window before by what it still covers": {
			limit.Spec{Algorithm: limit.SlidingWindow, Quantity: 10, Window: minute},
			[]step{
				{30 * second, 10, 0, 0, 30 * second},
				{30 * second, 1, 36 * second, 0, 30 * second},
				{66*second - 1, 1, 1, 0, 54*second + 1},
				{66 * second, 1, 0, 0, 54 * second},
				{90 * second, 1, 0, 3, 30 * second},
				{90 * second, 4, 6 * second, 3, 30 * second},
				{90 * second, 10, 90 * second, 3, 30 * second}, // the 2 of this window count to the end of the next
				{90 * second, 11, never, 3, 30 * second},
				{4 * minute, 0, 0, 10, minute},
			},
		},
		"a sliding window weighs no more than all of the window before when the clock steps back": {
			limit.Spec{Algorithm: limit.SlidingWindow, Quantity: 10, Window: minute},
			[]step{
				{0, 4, 0, 6, minute},
				{minute, 1, 0, 5, minute},
				{30 * second, 1, 0, 4, 90 * second},
				{minute - hour, 4, 0, 0, hour + minute},
				{minute - hour, 1, hour + 15*second, 0, hour + minute},
			},
		},
		"a sliding log admits again when an admission is a window old": {
			limit.Spec{Algorithm: limit.SlidingLog, Quantity: 5, Window: minute},
			[]step{
				{0, 2, 0, 3, minute},
				{10 * second, 3, 0, 0, minute},
				{20 * second, 1, 40 * second, 0, 50 * second},
				{20 * second, 3, 50 * second, 0, 50 * second},
				{20 * second, 6, never, 0, 50 * second},
				{minute - 1, 1, 1, 0, 10*second + 1},
				{minute, 2, 0, 0, minute},
				{70 * second, 3, 0, 0, minute},
				{5 * minute, 0, 0, 5, 0},
			},
		},
		"the clock of a bucket steps back a little: nothing refills until it has caught up": {
			limit.Spec{Algorithm: limit.TokenBucket, Quantity: 10, Window: second, Burst: 3},
			[]step{
				{0, 3, 0, 0, 300 * ms},
				{-50 * ms, 1, 150 * ms, 0, 350 * ms},
				{50 * ms, 1, 50 * ms, 0, 250 * ms},
				{100 * ms, 1, 0, 0, 300 * ms},
			},
		},
		"the clock of a bucket steps back far: what is there can be spent": {
			limit.Spec{Algorithm: limit.TokenBucket, Quantity: 10, Window: second, Burst: 3},
			[]step{
				{0, 1, 0, 2, 100 * ms},
				{-hour, 1, 0, 1, hour + 200*ms},
				{-hour, 1, 0, 0, hour + 300*ms},
				{-hour, 1, hour + 100*ms, 0, hour + 300*ms},
				{0, 1, 100 * ms, 0, 300 * ms},
			},
		},
		"a bucket that is more than an hour ahead of the clock counts anew": {
			limit.Spec{Algorithm: limit.TokenBucket, Quantity: 3, Window: day},
			[]step{
				{2 * hour, 3, 0, 0, day},
				{hour, 1, 9 * hour, 0, day + hour},
				{hour - 1, 1, 0, 2, 8 * hour},
				{hour, 2, 0, 0, day - 1},
			},
		},
		"a fixed window that begins more than an hour ahead of the clock counts anew": {
			limit.Spec{Algorithm: limit.FixedWindow, Quantity: 2, Window: hour},
			[]step{{2 * hour, 2, 0, 0, hour}, {hour, 1, 2 * hour, 0, 2 * hour}, {hour - 1, 2, 0, 0, 1}, {hour, 2, 0, 0, hour}},
		},
		"a sliding window that begins more than an hour ahead of the clock counts anew": {
			limit.Spec{Algorithm: limit.SlidingWindow, Quantity: 2, Window: hour},
			[]step{{hour, 2, 0, 0, hour}, {2 * hour, 0, 0, 0, hour}, {hour - 1, 2, 0, 0, 1}},
		},
		"a sliding log that has seen more than an hour ahead of the clock counts anew": {
			limit.Spec{Algorithm: limit.SlidingLog, Quantity: 2, Window: day},
			[]step{{2 * hour, 2, 0, 0, day}, {hour, 1, day + hour, 0, day + hour}, {hour - 1, 2, 0, 0, day}},
		},
		"a window stays when the clock steps back before it": {
			limit.Spec{Algorithm: limit.FixedWindow, Quantity: 2, Window: minute},
			[]step{
				{0, 1, 0, 1, minute},
				{-second, 1, 0, 0, minute + second},
				{-hour, 1, hour + minute, 0, hour + minute},
				{second, 1, 59 * second, 0, 59 * second},
			},
		},
		"what a sliding log has forgotten stays in the past when the clock steps back": {
			limit.Spec{Algorithm: limit.SlidingLog, Quantity: 2, Window: minute},
			[]step{
				{0, 2, 0, 0, minute},
				{2 * minute, 0, 0, 2, 0},
				{0, 2, 0, 0, 3 * minute},
				{61 * second, 1, 119 * second, 0, 119 * second},
			},
		},
		"5 to 4 to 3.1 tokens": { // capacity 5, one a second: at 0.1 s there are 4.1, and after the second request 3.1
			limit.Spec{Algorithm: limit.TokenBucket, Quantity: 1, Window: second, Burst: 5},
			[]step{
				{0, 1, 0, 4, second},
				{100 * ms, 1, 0, 3, 1900 * ms},
				{100 * ms, 1, 0, 2, 2900 * ms},
				{100 * ms, 1, 0, 1, 3900 * ms},
				{100 * ms, 1, 0, 0, 4900 * ms},
				{100 * ms, 1, 900 * ms, 0, 4900 * ms},
				{1000 * ms, 1, 0, 0, 5000 * ms},
			},
		},
		"0.01 tokens a second is exact": {
			limit.Spec{Algorithm: limit.TokenBucket, Quantity: 1, Window: 100 * second},
			[]step{
				{0, 1, 0, 0, 100 * second},
				{100*second - 1, 1, 1, 0, 1},
				{100 * second, 1, 0, 0, 100 * second},
				{300*second - 1, 1, 0, 0, 100 * second},
				{400*second - 2, 1, 1, 0, 1},
			},
		},
	}
	for name, tl := range timelines {
		t.Run(name, func(t *testing.T) {
			var s limit.State
			play(t, mustNew(t, tl.spec), &s, tl.steps)
		})
	}
}

func TestAWeekOfAHundredthTokenASecondLosesNothing(t *testing.T) {
	l := mustNew(t, limit.Spec{Algorithm: limit.TokenBucket, Quantity: 1, Window: 100 * second})
	var s limit.State
	admitted := int64(0)
	for now := noon; now < noon+7*day; now += 777 * ms { // checked much more often than it admits
		if wait, _ := take(l, &s, now, 1); wait == 0 {
			admitted++
		}
	}
	// Each of the 6048 tokens waits for the next question, up to 777 ms, so a few tokens' worth of time goes by unused.
	ideal := int64(7 * day / (100 * second))
	assert.True(t, admitted <= ideal && admitted >= ideal*100/101, "admitted %d of at most %d in a week", admitted, ideal)
	assert.True(t, s.Spent <= s.Base && s.Spent >= 0, "debt is %d/%d tokens", s.Spent, s.Base)
}

func TestAFullBucketIsResetNowAndNotAtItsLastTick(t *testing.T) {
	l := mustNew(t, limit.Spec{Algorithm: limit.TokenBucket, Quantity: 1_000_003, Window: day})
	require.True(t, l.Tick() != 1, "the limit ticks in microseconds")
	var s limit.State
	_, status := take(l, &s, noon+1, 0)
	assert.True(t, status.Reset == noon+1, "reset is %d µs after noon, want 1", status.Reset-noon)
}

func TestAdmissionsOfOneInstantAreOneEntryOfALog(t *testing.T) {
	l := mustNew(t, limit.Spec{Algorithm: limit.SlidingLog, Quantity: 100, Window: minute})
	var s limit.State
	for i := range limit.Micros(100) {
		take(l, &s, noon-i%2, 1) // every other one a step back
	}
	if len(s.Log) != 1 || s.Log[0] != (limit.Admission{At: noon, Cost: 100}) {
		t.Errorf("100 admissions at one instant are %v", s.Log)
	}
}
