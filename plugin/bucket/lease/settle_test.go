package lease

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/decision"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/limit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
)

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
			if used := n.bank.used(b) - before; used != actual {
				t.Errorf("%s: %d tokens are spent, want %d", b.Policy.Name, used, actual)
			}
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
		if statuses[0].Source != decision.Leased {
			t.Fatalf("%+v: want an answer from the lease", statuses[0])
		}
		s := n.settle(t, b, statuses, actual)
		if s.Charged || s.Settled != max(actual-1, 0) || s.Source != decision.Leased {
			t.Errorf("settled to %d: %+v", actual, s)
		}
		n.settle(t, b, statuses, 100)
	}
	if used := n.bank.used(b) - before; used != 7 {
		t.Errorf("the store is charged %d tokens, want the excess of 7", used)
	}
	if spent := n.Stats().Tokens.Spent - stats.Spent; spent != 3 {
		t.Errorf("%d leased tokens are spent, want 3", spent)
	}
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
			if n.admits(t, b) {
				t.Error("a request is admitted by an exhausted bucket")
			}
		}); calls != 0 {
			t.Fatalf("a remembered denial calls the store %d times", calls)
		}
		n.settle(t, b, statuses, 41)
		if n.admits(t, b) {
			t.Error("a request is admitted after a charge")
		}
		n.bank.clock.Advance(60 * limit.Second)
		statuses = n.take(t, b)
		n.take(t, b)
		n.settle(t, b, statuses, 1)
		if !n.admits(t, b) {
			t.Errorf("%s: a request is denied though the bucket got 39 tokens back", b.Key.Policy)
		}
	}
}
