package lease

import (
	"context"
	"fmt"
	"testing"

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
	if !n.admits(t, b) {
		t.Error("denied from memory though the token went back")
	}
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
	if used := n.bank.used(hot); used != 20 {
		t.Errorf("20 were spent, and %d are missing", used)
	}
}
