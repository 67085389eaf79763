package lease

import (
	"context"
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/decision"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/limit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
)

func TestARememberedDenialShowsWhatWasSpentSince(t *testing.T) {
	n := newNode(newBank(), Options{})
	b := bound(t, "exact", limit.Spec{Algorithm: limit.TokenBucket, Quantity: 10, Window: 100 * limit.Second})
	for range 4 {
		n.admits(t, b)
	}
	n.admits(t, withCost(b, 7)) // six are left
	for range 5 {
		n.admits(t, b)
	}
	if s := n.take(t, withCost(b, 7))[0]; s.Source != decision.Leased || s.Remaining != 1 ||
		s.Wait < 60*limit.Second-b.Policy.Limit.Tick() {
		t.Errorf("one is left, and seven are there in a minute: got %+v", s)
	}
}

// undone is a store of which another server has denied: what was taken goes back.
type undone struct{ *bank }

func (u undone) Take(ctx context.Context, bounds []policy.Bound, statuses []decision.Status) error {
	before := u.states
	u.states = map[policy.Key]limit.State{}
	err := u.bank.Take(ctx, bounds, statuses)
	u.states = before
	for i := range statuses {
		statuses[i].Charged = false
	}
	return err
}

func TestWhatWasReturnedPredictsNoDenial(t *testing.T) {
	n := newNode(newBank(), Options{})
	b := window(t, "exact", 1)
	n.admits(t, b)
	n.admits(t, b)
	n.bank.clock.Advance(60 * limit.Second)
	n.bank.states = map[policy.Key]limit.State{}
	require.NoError(t, n.Store(undone{n.bank}).Take(t.Context(), []policy.Bound{b}, make([]decision.Status, 1)))
	assert.True(t, n.admits(t, b), "denied from memory though the token went back")
}

func TestABucketWhoseRenewalIsDueIsNotForgotten(t *testing.T) {
	n := newNode(newBank(), Options{MaxEntries: shardCount})
	hot := window(t, "hot", 10_000)
	for range 20 {
		n.admits(t, hot)
	}
	for i := range 500 {
		other := window(t, "exact", 1)
		other.Key.Subject = fmt.Sprint(i)
		n.admits(t, other)
		n.admits(t, other)
	}
	n.background()
	n.bank.clock.Advance(idleAfter)
	n.background()
	used := n.bank.used(hot)
	assert.True(t, used == 20, "20 were spent, and %d are missing", used)
}

// settle settles a request of one bound.
func (n *node) settle(t *testing.T, b policy.Bound, statuses []decision.Status, actual int64) decision.Status {
	t.Helper()
	require.NoError(t, n.view.Settle(t.Context(), []policy.Bound{b}, statuses, []int64{actual}))
	return statuses[0]
}

func TestTokensThatWereNotLeasedAreSettledInTheStore(t *testing.T) {
	n := newNode(newBank(), Options{})
	for _, b := range []policy.Bound{withCost(tokens(t, "exact", 1000), 10), withCost(tokens(t, "cold", 1000), 10)} {
		for _, actual := range []int64{3, 10, 40} {
			before := n.bank.used(b)
			statuses := n.take(t, b)
			if s := n.settle(t, b, statuses, actual); s.Charged || s.Settled != actual-10 || s.Source != decision.Redis {
				t.Errorf("%s is settled to %d: %+v", b.Policy.Name, actual, s)
			}
			assert.Equal(t, actual, n.bank.used(b)-before, "%s: tokens are spent", b.Policy.Name)
		}
	}
}

func TestLeasedTokensStaySpentAndTheExcessIsChargedToTheStore(t *testing.T) {
	n := newNode(newBank(), Options{})
	b := tokens(t, "hot", 100_000)
	n.warm(t, b)
	before, stats := n.bank.used(b), n.Stats().Tokens
	for _, actual := range []int64{0, 1, 8} {
		statuses := n.take(t, b)
		require.Equal(t, decision.Leased, statuses[0].Source, "%+v: want an answer from the lease", statuses[0])
		s := n.settle(t, b, statuses, actual)
		if s.Charged || s.Settled != max(actual-1, 0) || s.Source != decision.Leased {
			t.Errorf("settled to %d: %+v", actual, s)
		}
		n.settle(t, b, statuses, 100)
	}
	if used := n.bank.used(b) - before; used != 7 {
		t.Errorf("the store is charged %d tokens, want the excess of 7", used)
	}
	assert.EqualValues(t, 3, n.Stats().Tokens.Spent-stats.Spent, "leased tokens are spent")
}

// A request that reserved far more than it needed must not deny others for as long as a denial is remembered.
func TestADenialIsForgottenWhenTheBucketGetsTokensBack(t *testing.T) {
	n := newNode(newBank(), Options{})
	for _, b := range []policy.Bound{
		withCost(bound(t, "exact", limit.Spec{Algorithm: limit.TokenBucket, Quantity: 60, Window: 60 * limit.Second}), 40),
		withCost(bound(t, "exact", limit.Spec{Algorithm: limit.FixedWindow, Quantity: 60, Window: 60 * limit.Second}), 40),
	} {
		b.Key.Policy = b.Policy.Limit.Spec().Algorithm.String()
		statuses := n.take(t, b)
		n.take(t, b)
		if calls := n.calls(func() {
			assert.False(t, n.admits(t, b), "a request is admitted by an exhausted bucket")
		}); calls != 0 {
			t.Fatalf("a remembered denial calls the store %d times", calls)
		}
		n.settle(t, b, statuses, 41)
		assert.False(t, n.admits(t, b), "a request is admitted after a charge")
		n.bank.clock.Advance(60 * limit.Second)
		statuses = n.take(t, b)
		n.take(t, b)
		n.settle(t, b, statuses, 1)
		assert.True(t, n.admits(t, b), "%s: a request is denied though the bucket got 39 tokens back", b.Key.Policy)
	}
}
