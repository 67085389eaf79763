package lease

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/storetest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/bucket/memory"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/bucket/store"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/decision"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/limit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
)

// noPolicies leases no policy.
type noPolicies struct{}

func (noPolicies) MayLease(*policy.Policy) bool { return false }

func TestWithoutLeasesAndDenialsAViewIsTheStoreBehindIt(t *testing.T) {
	storetest.Run(t, func(*testing.T) (store.Store, storetest.Clock) {
		clock := storetest.NewClock()
		buckets := memory.New(memory.Options{Now: clock.Now})
		alone := func(string) int { return 1 }
		s := New(buckets, Options{Now: clock.Now, Nodes: alone, Policies: noPolicies{}, DenialMemory: -1})
		return s.Store(buckets), clock
	})
}

func TestAHotBucketIsSpentFromTheLeaseAndAColdOneFromTheStore(t *testing.T) {
	n := newNode(newBank(), Options{})
	hot, cold := tokens(t, "hot", 100_000), tokens(t, "cold", 100_000)
	n.warm(t, hot)
	for range 5 {
		calls := n.calls(func() { n.admits(t, cold) })
		require.True(t, calls == 1, "a request of a cold bucket calls the store %d times", calls)
		n.bank.clock.Advance(2 * span)
		n.background()
	}
}

func TestAStatusFromALeaseCountsWhatTheNodeHasNotSpentAsFree(t *testing.T) {
	n := newNode(newBank(), Options{})
	n.bank.ahead = 7 * limit.Second // it tells the time of the store
	b := window(t, "window", 1000)
	n.warm(t, b) // 21 requests
	status := n.take(t, withCost(b, 2))[0]
	if status.Used != 23 || status.Remaining != 977 || !status.Charged || status.Wait != 0 || status.Now != n.bank.Now() {
		t.Errorf("after 23 of 1000: %+v", status)
	}
	used := n.bank.used(b)
	assert.True(t, used > 23, "the bank has been charged %d, want the lease too", used)
	if status = n.take(t, withCost(b, 0))[0]; status.Used != 23 || status.Charged {
		t.Errorf("cost 0 answered %+v", status)
	}
}

func TestNoMoreThanTheLimitRemainsAfterTheStoreHasLostWhatIsLeased(t *testing.T) {
	n := newNode(newBank(), Options{})
	b := window(t, "window", 1000)
	n.warm(t, b)
	for i := range 100 {
		n.bank.states = map[policy.Key]limit.State{}
		s := n.take(t, b)[0]
		assert.True(t, s.Remaining <= 1000, "request %d after a loss: %+v", i, s)
		n.background()
	}
}

func TestARequestThatIsDeniedElsewhereLeavesTheLeaseAsItWas(t *testing.T) {
	n := newNode(newBank(), Options{DenialMemory: -1})
	leased, shadow, exact := tokens(t, "leased", 100_000), tokens(t, "shadow", 100_000), window(t, "exact", 1)
	shadow = with(shadow, func(p *policy.Policy) { p.Mode = policy.Shadow })
	n.warm(t, leased, shadow)
	n.take(t, exact)
	before := n.Stats()
	statuses := n.take(t, leased, exact, shadow)
	after := n.Stats()
	if admitted([]policy.Bound{leased, exact, shadow}, statuses) || statuses[0].Charged || statuses[2].Charged ||
		!statuses[0].Admits() {
		t.Errorf("statuses %+v, want a denial that charges nothing", statuses)
	}
	assert.True(t, before.Tokens == after.Tokens && before.Out == after.Out, "tokens were %+v, and are %+v", before, after)
}

func TestADrawOfARequestStillUndecidedCountsAsOut(t *testing.T) {
	n := newNode(newBank(), Options{})
	leased, exact := window(t, "leased", 1000), window(t, "exact", 1000) // 20 may be out
	n.warm(t, leased)
	renewals := n.Stats().Renewals
	n.bank.during = func() {
		n.admits(t, withCost(leased, 7)) // runs dry: a renewal is due
		n.background()
		if stats := n.Stats(); stats.Renewals != renewals+1 || stats.Out != 20 {
			t.Errorf("%d tokens are out while a request holds 10 of them, after %d renewals; 20 may",
				stats.Out, stats.Renewals-renewals)
		}
	}
	n.admits(t, withCost(leased, 10), exact)
}

func TestAFailingStoreGetsNoRequestBeforeItsLeaseIsSpent(t *testing.T) {
	n := newNode(newBank(), Options{})
	b := tokens(t, "hot", 100_000)
	n.warm(t, b)
	n.bank.set(unreachable)
	free := n.Stats().Out
	for range free {
		if status := n.take(t, b)[0]; status.Source == decision.Unanswered || !status.Admits() {
			t.Fatalf("with tokens on lease, a request was answered %+v", status)
		}
	}
	if status := n.take(t, b)[0]; status.Source != decision.Unanswered || status.Failure != decision.TimedOut {
		t.Errorf("without, one was answered %+v", status)
	}
}

func TestDrawsGoBackWhenTheRestOfARequestFailsClosed(t *testing.T) {
	n := newNode(newBank(), Options{})
	leased := tokens(t, "leased", 100_000)
	exact := with(window(t, "exact", 10), func(p *policy.Policy) { p.FailMode = policy.FailClosed })
	n.warm(t, leased)
	out := n.Stats().Out
	n.bank.set(unreachable)
	if n.admits(t, leased, exact) || n.Stats().Out != out {
		t.Errorf("%d tokens are out after a request that failed closed, want %d", n.Stats().Out, out)
	}
}

// broken is a store whose calls are errors.
type broken struct{ store.Store }

func (broken) Take(context.Context, []policy.Bound, []decision.Status) error { return errBroken }

var errBroken = errors.New("broken")

func TestAnErrorOfTheStoreIsPassedOnAndCostsNoLease(t *testing.T) {
	n := newNode(newBank(), Options{})
	leased, exact := tokens(t, "leased", 100_000), window(t, "exact", 10)
	n.warm(t, leased)
	out := n.Stats().Out
	err := n.Store(broken{}).Take(context.Background(), []policy.Bound{leased, exact}, make([]decision.Status, 2))
	if !errors.Is(err, errBroken) || n.Stats().Out != out {
		t.Errorf("error %v, %d tokens out, want %d", err, n.Stats().Out, out)
	}
	if err := n.view.Take(context.Background(), []policy.Bound{leased}, nil); err == nil {
		t.Error("a take without room for its statuses was accepted")
	}
}

func TestOnlyLargeTokenBucketsAndFixedWindowsThatMayBeAreLeased(t *testing.T) {
	leased := map[string]bool{"token_bucket of 500": true, "fixed_window of 500": true}
	for _, algorithm := range storetest.Algorithms {
		for _, quantity := range []int64{499, 500} {
			name := fmt.Sprintf("%s of %d", algorithm, quantity)
			b := bound(t, name, limit.Spec{Algorithm: algorithm, Quantity: quantity, Window: limit.Second})
			assert.Equal(t, leased[name], newTerms(b.Policy, DefaultSharePct) != nil, "%s: leased", name)
		}
	}
	n := newNode(newBank(), Options{})
	assert.Nil(t, n.terms.get(tokens(t, "exact", 100_000).Policy), "an exact policy is leased")
}
