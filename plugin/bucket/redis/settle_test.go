package redis

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/redistest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/decision"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/limit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
)

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
		if transport.refunds.Load() != 1 || s.Failure != decision.Lost || s.Settled != 0 || used != 5 {
			t.Errorf("after %d calls to settle 5 to %d: %+v, and %d are used",
				transport.refunds.Load(), actual, s, used)
		}
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
