package lease

import (
	"context"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/decision"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/limit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
)

// bursts is a bucket of so many tokens, of which one comes back each second.
func bursts(t *testing.T, most int64) policy.Bound {
	t.Helper()
	return bound(t, "burst", limit.Spec{Algorithm: limit.TokenBucket, Quantity: 1, Window: limit.Second, Burst: most})
}

// denies checks that a request of a burst and a day is denied without asking, and that the answer has the day's wait.
func denies(t *testing.T, n *node, burst, day policy.Bound) {
	t.Helper()
	var statuses []decision.Status
	calls := n.calls(func() { statuses = n.take(t, burst, day) })
	require.True(t, calls == 0, "the shared store is called %d times, want the burst's denial to be remembered", calls)
	if !decision.Denies(&burst, &statuses[0]) || !decision.Denies(&day, &statuses[1]) {
		t.Fatalf("%+v: want both to deny", statuses)
	}
	if got, least := statuses[1].Wait, 50*limit.Second; got < least || got > 60*limit.Second {
		t.Errorf("the day that is used up says to wait %d, want what is left of its window", got)
	}
}

func TestARememberedBurstDoesNotHideADayThatIsUsedUp(t *testing.T) {
	n := newNode(newBank(), Options{})
	burst, day := bursts(t, 1), window(t, "day", 3)
	n.bank.clock.Advance(-n.now() % (60 * limit.Second))
	for range 4 {
		n.admits(t, day)
	}
	n.bank.clock.Advance(limit.Second * 95 / 100)
	for range 2 { // for another endpoint of the tenant, that no day counts; the second is denied
		n.admits(t, burst)
	}
	n.bank.clock.Advance(limit.Second / 10) // and what was remembered of the day has ended
	n.background()
	denies(t, n, burst, day)
}

func TestARememberedBurstDoesNotHideADayWhoseLastTokenWasJustSpent(t *testing.T) {
	n := newNode(newBank(), Options{})
	burst, day := bursts(t, 3), window(t, "day", 1000)
	n.bank.clock.Advance(-n.now() % (60 * limit.Second))
	require.True(t, newNode(n.bank, Options{}).admits(t, withCost(day, 997)), "the day denies another node")
	for range 3 {
		require.True(t, n.admits(t, burst, day), "a request is denied while both have room")
	}
	n.admits(t, burst) // for an endpoint that no day counts; it is denied
	denies(t, n, burst, day)
}

func TestADayThatHasRoomIsNotNamedByTheDenialOfABurst(t *testing.T) {
	n := newNode(newBank(), Options{})
	burst, day := bursts(t, 3), window(t, "day", 1000)
	for range 3 {
		n.admits(t, burst, day)
	}
	n.admits(t, burst)
	if statuses := n.take(t, burst, day); !decision.Denies(&burst, &statuses[0]) || statuses[1] != (decision.Status{}) {
		t.Errorf("%+v: want the burst alone to deny", statuses)
	}
}

func TestWhatWasDrawnComesBackWhenTheRestOfARequestPanics(t *testing.T) {
	n := newNode(newBank(), Options{})
	leased, called := tokens(t, "leased", 60_000), window(t, "called", 100)
	n.warm(t, leased)
	before := n.Stats()
	n.bank.during = func() { panic("a fault of this program") }
	func() {
		defer func() {
			assert.NotNil(t, recover(), "the take has not panicked")
		}()
		_ = n.view.Take(context.Background(), []policy.Bound{leased, called}, make([]decision.Status, 2))
	}()
	for i := range n.shards {
		require.True(t, n.shards[i].mu.TryLock(), "shard %d is still locked", i)
		for _, e := range n.shards[i].entries {
			assert.Zero(t, e.holdings.pending, "%s: tokens belong to a request that is gone", e.key.Policy)
		}
		n.shards[i].mu.Unlock()
	}
	if after := n.Stats(); after.Out != before.Out || after.Tokens.Spent != before.Tokens.Spent {
		t.Errorf("%d out and %d spent, want %d and %d as before",
			after.Out, after.Tokens.Spent, before.Out, before.Tokens.Spent)
	}
	calls := n.calls(func() { n.admits(t, leased) })
	assert.True(t, calls == 0, "the next request calls the store %d times", calls)
}

// empty is a token bucket of 100 an hour that is not leased and has denied for the first time.
func empty(t *testing.T, n *node) policy.Bound {
	t.Helper()
	b := bound(t, "exact", limit.Spec{Algorithm: limit.TokenBucket, Quantity: 100, Window: 3600 * limit.Second})
	for n.admits(t, b) {
		continue
	}
	return b
}

// pairs counts the denials of requests that come in pairs, 10 ms apart.
func pairs(t *testing.T, n *node, b policy.Bound) (denied int) {
	t.Helper()
	for range 40 {
		for range 2 {
			if !n.admits(t, b) {
				denied++
			}
		}
		n.bank.clock.Advance(10_000)
	}
	return denied
}

func TestADenialIsForgottenWhenTheBucketIsEmptied(t *testing.T) {
	n := newNode(newBank(), Options{})
	b := empty(t, n)
	n.bank.states = map[policy.Key]limit.State{} // an operator's reset, or a Redis that lost its data
	n.bank.clock.Advance(limit.Second)
	denied := pairs(t, n, b)
	assert.True(t, denied == 0, "a second later, %d of 80 are denied by a bucket that holds 100", denied)
}

func TestADenialIsForgottenWhenTheStoreDoesNotAnswer(t *testing.T) {
	n := newNode(newBank(), Options{})
	b := empty(t, n)
	n.bank.set(unreachable)
	n.bank.clock.Advance(limit.Second)
	denied := pairs(t, n, b)
	assert.True(t, denied == 0, "a second later, %d of 80 are denied though fail modes let them pass", denied)
}

func TestARequestThatCostsNothingMakesNoDenial(t *testing.T) {
	n := newNode(newBank(), Options{})
	began := n.now()
	n.now = func() limit.Micros { return n.bank.clock.Now() - began + limit.Second } // the process has just begun
	b := empty(t, n)
	raised := bound(t, "exact", limit.Spec{Algorithm: limit.TokenBucket, Quantity: 200, Window: 3600 * limit.Second})
	n.admits(t, raised)
	n.admits(t, withCost(raised, 0))
	if status := n.take(t, withCost(raised, 1))[0]; !answered(&status) {
		t.Errorf("under the limit that took the place of %s, a request is answered %+v without the store",
			b.Policy.Describe(), status)
	}
}
