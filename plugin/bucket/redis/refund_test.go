package redis

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/redistest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/storetest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/decision"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/limit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
)

// everybody is b in the one bucket of all tenants, which is another group.
func everybody(b policy.Bound) policy.Bound {
	b.Key.Group, b.Key.GroupID = policy.ByAll, ""
	return b
}

// grouped is a fixture that is served as a cluster is: each group by a call of its own. Its clock stands still.
func grouped(t *testing.T, client *redis.Client) (*fixture, clock, *faulty) {
	flush(t, client)
	transport := &faulty{direct: direct{client, true}}
	return &fixture{Store: turned(newStore("test", transport, turnedClock, quiet)), client: client}, newClock(t, client), transport
}

var errBroken = errors.New("the connection broke")

// faulty is a transport whose refunds can be made to fail, and counted.
type faulty struct {
	direct
	lose        bool
	unavailable string       // keys that hold it are out of reach
	refunds     atomic.Int64 // groups give back at the same time

	refunding func() // what happens before a refund arrives
}

func (f *faulty) Run(ctx context.Context, script *script, c *call) error {
	if script == turnedClock && c.args[0][0] == modeSettle {
		f.refunds.Add(1)
		if f.refunding != nil {
			f.refunding()
		}
		if f.lose {
			return errBroken
		}
	}
	if f.unavailable != "" && strings.Contains(c.keys[0], f.unavailable) {
		return errBroken
	}
	return f.direct.Run(ctx, script, c)
}

func TestAGroupThatDeniesCostsTheOthersNothing(t *testing.T) {
	client := redistest.Single(t).Client(t)
	for _, algorithm := range storetest.Algorithms {
		t.Run(algorithm.String(), func(t *testing.T) {
			f, clock, transport := grouped(t, client)
			spec := limit.Spec{Algorithm: algorithm, Quantity: 10, Window: hour}
			if algorithm == limit.LeakyBucket || algorithm == limit.TokenBucket {
				spec.Burst = 10
			}
			ours, shadow, all := bound(t, "ours", spec), bound(t, "shadow", spec), everybody(bound(t, "all", spec))
			p := *shadow.Policy
			p.Mode = policy.Shadow
			shadow.Policy = &p
			f.take(t, costing(ours, 4), costing(shadow, 2), costing(all, 10))
			for range 3 {
				clock.Advance(1)
				statuses := f.take(t, costing(ours, 3), costing(shadow, 3), all)
				if !statuses[0].Admits() || !statuses[1].Admits() || statuses[2].Admits() {
					t.Fatalf("waits are %d, %d, %d: want that of the third alone",
						statuses[0].Wait, statuses[1].Wait, statuses[2].Wait)
				}
				if statuses[0].Used != 4 || statuses[1].Used != 2 || statuses[2].Used != 10 {
					t.Errorf("a denial reports %d, %d, %d used: want 4, 2, 10 as before",
						statuses[0].Used, statuses[1].Used, statuses[2].Used)
				}
			}
			statuses := f.take(t, costing(ours, 0), costing(shadow, 0), costing(all, 0))
			if statuses[0].Used != 4 || statuses[1].Used != 2 || statuses[2].Used != 10 {
				t.Errorf("kept %d, %d, %d used: want 4, 2, 10 as before",
					statuses[0].Used, statuses[1].Used, statuses[2].Used)
			}
			if transport.refunds.Load() != 3 {
				t.Errorf("%d refunds for 3 rejections by one of two groups", transport.refunds.Load())
			}
		})
	}
}

func TestWhatIsGivenBackAfterTheClockHasSteppedBackIsWhatWasTaken(t *testing.T) {
	for _, spec := range []limit.Spec{
		{Algorithm: limit.TokenBucket, Quantity: 60_000, Window: 60 * limit.Second},
		{Algorithm: limit.TokenBucket, Quantity: 10_000_000, Window: 30 * 24 * hour}, // read in coarser ticks
		{Algorithm: limit.FixedWindow, Quantity: 60_000, Window: 60 * limit.Second},
		{Algorithm: limit.SlidingWindow, Quantity: 60_000, Window: 60 * limit.Second},
	} {
		for _, back := range []limit.Micros{1, 10 * limit.Second} {
			f, clock, _ := grouped(t, redistest.Single(t).Client(t))
			b := bound(t, "p", spec)
			f.take(t, costing(b, 5000))
			taken := f.take(t, costing(b, 20))
			clock.Advance(-back)
			f.Settle(context.Background(), []policy.Bound{costing(b, 20)}, taken, nil)
			if used := f.take(t, costing(b, 0))[0].Used; used != 5000 {
				t.Errorf("%s: 20 of 5020 are given back by a clock that stepped %d µs back, and %d are used",
					b.Policy.Describe(), back, used)
			}
			later := decision.Status{Now: clock.Now() + 2*back, Source: decision.Redis, Charged: true}
			f.Settle(context.Background(), []policy.Bound{costing(b, 20)}, []decision.Status{later}, nil)
			if used := f.take(t, costing(b, 0))[0].Used; used < 4980 {
				t.Errorf("%s: what a bucket never held is given back to it: %d are used", b.Policy.Describe(), used)
			}
		}
	}
}

func TestALostRefundIsNotRepeatedAndUnderAdmits(t *testing.T) {
	f, _, transport := grouped(t, redistest.Single(t).Client(t))
	ours, all := hundred(t), everybody(hundred(t))
	f.take(t, costing(all, 100))
	transport.lose = true
	if statuses := f.take(t, ours, all); statuses[1].Admits() {
		t.Fatalf("statuses are %+v, want the second denied", statuses)
	}
	transport.lose = false
	s, refunds, lost := f.take(t, costing(ours, 0))[0], transport.refunds.Load(), f.Stats().LostRefunds
	if s.Used != 1 || refunds != 1 || lost != 1 {
		t.Errorf("used %d after %d refunds of which %d were lost: want 1, 1, 1", s.Used, refunds, lost)
	}
}

func TestAGroupThatDoesNotAnswerLeavesTheOthersTheirSay(t *testing.T) {
	f, _, transport := grouped(t, redistest.Single(t).Client(t))
	transport.unavailable = "{g}"
	bounds := []policy.Bound{costing(hundred(t), 60), everybody(hundred(t))}
	for _, admits := range []bool{true, false} {
		statuses := f.take(t, bounds...)
		if s := statuses[0]; s.Source != decision.Redis || s.Admits() != admits || s.Charged != admits || s.Used != 60 {
			t.Errorf("the group that is there says %+v, want it to admit (%v) and 60 used", s, admits)
		}
		if s := statuses[1]; s.Source != decision.Unanswered || s.Failure != decision.Lost || s.Charged {
			t.Errorf("the group that is unavailable says %+v, want that its answer was lost", s)
		}
	}
	if transport.refunds.Load() != 0 || f.Stats().Failed != 2 {
		t.Errorf("%d refunds, %+v: want none, and two failures", transport.refunds.Load(), f.Stats())
	}
}

// A client that is denied by one group cannot fill the memory of another.
func TestDenialsByAnotherGroupLeaveNoEntriesInASlidingLog(t *testing.T) {
	f, clock, _ := grouped(t, redistest.Single(t).Client(t))
	ours := bound(t, "log", limit.Spec{Algorithm: limit.SlidingLog, Quantity: 100, Window: hour})
	empty := everybody(bound(t, "all", limit.Spec{Algorithm: limit.FixedWindow, Quantity: 1, Window: 24 * hour}))
	f.take(t, costing(ours, 2), empty)
	size := func() int64 { return f.client.StrLen(t.Context(), string(appendLog(nil, &ours.Key))).Val() }
	before := size()
	for range 50 {
		clock.Advance(limit.Second)
		if s := f.take(t, ours, empty); s[1].Admits() || s[0].Used != 2 {
			t.Fatalf("%+v: want the second to deny, and 2 used of the first", s)
		}
	}
	if after := size(); after > before+14 {
		t.Errorf("50 denied requests make the log grow from %d to %d bytes: want room for one entry at most", before, after)
	}
	clock.Advance(hour - 50*limit.Second)
	if s := f.take(t, costing(ours, 0))[0]; s.Used != 0 {
		t.Errorf("%d used after the window of the only admission, want 0", s.Used)
	}
}

// settle settles bounds.
func (f *fixture) settle(t *testing.T, bounds []policy.Bound, statuses []decision.Status, actual ...int64) {
	t.Helper()
	require.NoError(t, f.Settle(t.Context(), bounds, statuses, actual))
}

func TestEachGroupIsSettledByOneCallWhateverBecomesOfTheOthers(t *testing.T) {
	f, _, transport := grouped(t, redistest.Single(t).Client(t))
	bounds := []policy.Bound{
		costing(hundred(t), 10), everybody(costing(hundred(t), 20)), of(costing(hundred(t), 30), "u"),
	}
	statuses := f.take(t, bounds...)
	transport.unavailable = "{g}"
	f.settle(t, bounds, statuses, 4, 5, 36)
	for i, want := range []decision.Status{{Settled: -6}, {Failure: decision.Lost}, {Settled: 6}} {
		if s := statuses[i]; s.Charged || s.Settled != want.Settled || s.Failure != want.Failure {
			t.Errorf("bound %d is settled with %+v, want a change of %d and the failure %q",
				i, s, want.Settled, want.Failure)
		}
	}
	transport.unavailable = ""
	f.settle(t, bounds, statuses, 4, 5, 36)
	if calls, lost := transport.refunds.Load(), f.Stats().LostSettlements; calls != 2 || lost != 1 {
		t.Errorf("%d calls settled two groups, and %d bounds were lost, want one", calls, lost)
	}
	for i, s := range f.take(t, costing(bounds[0], 0), costing(bounds[1], 0), costing(bounds[2], 0)) {
		if want := []int64{4, 20, 36}[i]; s.Used != want {
			t.Errorf("bucket %d has %d used, want %d", i, s.Used, want)
		}
	}
}

func TestASettlementThatMayHaveArrivedIsNotSentAgain(t *testing.T) {
	for _, actual := range []int64{2, 8} {
		f, _, transport := grouped(t, redistest.Single(t).Client(t))
		bounds := []policy.Bound{costing(hundred(t), 5)}
		statuses := f.take(t, bounds...)
		transport.lose = true
		f.settle(t, bounds, statuses, actual)
		transport.lose = false
		f.settle(t, bounds, statuses, actual)
		s, used := statuses[0], f.take(t, costing(bounds[0], 0))[0].Used
		assert.True(t, transport.refunds.Load() == 1 && s.Failure == decision.Lost && s.Settled == 0 && used == 5,
			"after %d calls to settle 5 to %d: %+v, and %d are used", transport.refunds.Load(), actual, s, used)
	}
}

func TestARequestThatCostWhatItReservedIsSettledWithoutACall(t *testing.T) {
	f, _, transport := grouped(t, redistest.Single(t).Client(t))
	bounds := []policy.Bound{costing(hundred(t), 5), everybody(costing(hundred(t), 2))}
	statuses := f.take(t, bounds...)
	f.settle(t, bounds, statuses, 5, 2)
	if transport.refunds.Load() != 0 || statuses[0].Charged || statuses[1].Charged {
		t.Errorf("%+v after %d calls", statuses, transport.refunds.Load())
	}
}

// A subject is split between a take and its settlement, by another node.
func TestABucketIsSettledWhereverItIsAfterASplit(t *testing.T) {
	f, _, transport := grouped(t, redistest.Single(t).Client(t))
	bounds := endpoints(t, 200)
	less, more := f.take(t, costing(bounds[0], 10)), f.take(t, costing(bounds[1], 10))
	other := &fixture{Store: turned(newStore("other", f.transport, turnedClock, quiet)), client: f.client}
	for i := range bounds {
		other.take(t, bounds[i])
	}
	settled := []policy.Bound{costing(bounds[0], 10), costing(bounds[1], 10)}
	statuses := []decision.Status{less[0], more[0]}
	f.settle(t, settled, statuses, 3, 5000)
	if statuses[0].Settled != -7 || statuses[1].Settled != 4990 || transport.refunds.Load() != 2 {
		t.Errorf("%+v after %d calls, want the second one with the right level", statuses, transport.refunds.Load())
	}
	s := f.take(t, costing(bounds[0], 0), costing(bounds[1], 0), costing(bounds[2], 0))
	if s[0].Used != 4 || s[1].Used != 5001 || s[2].Used != 1 {
		t.Errorf("%d, %d and %d are used", s[0].Used, s[1].Used, s[2].Used)
	}
}

// A charge may outlive what was spent before, beside a refund of a neighbour and in a bucket that is new.
func TestAKeyLivesUntilADebtInItIsPaidBack(t *testing.T) {
	f := newFixture(t)
	short := hundred(t)
	owing := bound(t, "owing", limit.Spec{Algorithm: limit.TokenBucket, Quantity: 10, Window: limit.Second})
	for _, bounds := range [][]policy.Bound{
		{costing(short, 5), costing(owing, 5)}, {costing(owing, 5), costing(short, 5)},
	} {
		statuses := f.take(t, bounds...)
		actual := make([]int64, 2)
		for i := range bounds {
			if actual[i] = 1; bounds[i].Policy == owing.Policy {
				actual[i] = 1_000_000
			}
		}
		f.settle(t, bounds, statuses, actual...)
		if lives := f.lives(t, subjectKey(owing)); lives < 99_000*limit.Second {
			t.Errorf("a key with a debt of 100,000 s lives for %v", time.Duration(lives)*time.Microsecond)
		}
		mustForget(t, f, owing)
		flush(t, f.client)
		statuses[0].Charged, statuses[1].Charged = true, true
		f.settle(t, bounds, statuses, actual...)
		if lives := f.lives(t, subjectKey(owing)); lives < 99_000*limit.Second {
			t.Errorf("a new key with a debt of 100,000 s lives for %v", time.Duration(lives)*time.Microsecond)
		}
		flush(t, f.client)
	}
}

// A key that holds something else is left as it is.
func TestAForeignKeyIsNotSettled(t *testing.T) {
	f := newFixture(t)
	bounds := []policy.Bound{costing(hundred(t), 5)}
	statuses := f.take(t, bounds...)
	f.client.Del(t.Context(), subjectKey(bounds[0]))
	f.client.LPush(t.Context(), subjectKey(bounds[0]), "foreign")
	f.settle(t, bounds, statuses, 50)
	if n := f.client.LLen(t.Context(), subjectKey(bounds[0])).Val(); n != 1 || statuses[0].Settled != 0 {
		t.Errorf("settled %+v, and the foreign list has %d entries", statuses[0], n)
	}
}
