package lease

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/decision"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/limit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
)

func TestADeniedFloodCallsTheStoreForNoScope(t *testing.T) {
	n := newNode(newBank(), Options{})
	empty, roomy, shadow := window(t, "empty", 1), window(t, "roomy", 100), window(t, "shadow", 100)
	shadow = with(shadow, func(p *policy.Policy) { p.Mode = policy.Shadow })
	n.admits(t, empty)
	n.admits(t, empty) // denied, and remembered
	calls := n.calls(func() {
		for range 1000 {
			statuses := n.take(t, roomy, empty, shadow)
			if decision.Denies(&roomy, &statuses[0]) || !decision.Denies(&empty, &statuses[1]) ||
				statuses[0] != (decision.Status{}) || statuses[2] != (decision.Status{}) {
				t.Fatalf("statuses %+v, want only the bound that denies", statuses)
			}
		}
	})
	assert.Zero(t, calls, "1000 denied requests call the store %d times", calls)
	assert.Zero(t, n.bank.used(roomy)+n.bank.used(shadow), "they have spent")
}

func TestADenialIsRememberedUntilItEndsAndForASecondAtMost(t *testing.T) {
	for name, spec := range map[string]limit.Spec{
		"short": {Algorithm: limit.TokenBucket, Quantity: 4, Window: limit.Second, Burst: 1},
		"long":  {Algorithm: limit.TokenBucket, Quantity: 1, Window: 60 * limit.Second},
	} {
		n := newNode(newBank(), Options{})
		n.bank.there, n.bank.back, n.bank.ahead = 1000, 2000, limit.Second/2
		b := bound(t, name, spec)
		n.admits(t, b)
		called := n.now()
		wait := n.take(t, b)[0].Wait
		n.bank.clock.Advance(called + min(wait, limit.Second) - 1 - n.now())
		assert.Zero(t, n.calls(func() { n.admits(t, b) }), "%s: just before its end, the store is called again", name)
		n.bank.clock.Advance(1)
		if calls := n.calls(func() { n.admits(t, b) }); calls != 1 {
			t.Errorf("%s: after its end, %d calls", name, calls)
		}
	}
}

func TestTheWaitOfARememberedDenialRunsDown(t *testing.T) {
	n := newNode(newBank(), Options{})
	b := window(t, "window", 1)
	n.admits(t, b)
	first := n.take(t, b)[0]
	n.bank.clock.Advance(limit.Second / 2)
	later := n.take(t, b)[0]
	if later.Wait != first.Wait-limit.Second/2 || later.Now != n.bank.Now() || later.Reset != first.Reset ||
		later.Charged {
		t.Errorf("first %+v, half a second later %+v", first, later)
	}
}

func TestALargerCostGetsItsOwnWaitFromTheDenialOfASmallerOne(t *testing.T) {
	const day = 86_400 * limit.Second
	for _, spec := range []limit.Spec{
		{Algorithm: limit.TokenBucket, Quantity: 86_400, Window: day},            // leased, so it never holds all of that
		{Algorithm: limit.TokenBucket, Quantity: 110_000, Window: day, Burst: 3}, // 11 tokens in 8.64 s
		{Algorithm: limit.LeakyBucket, Quantity: 1000, Window: day},
		{Algorithm: limit.FixedWindow, Quantity: 1000, Window: day},
		{Algorithm: limit.SlidingWindow, Quantity: 10, Window: day},
	} {
		n := newNode(newBank(), Options{})
		b := bound(t, "bucket", spec)
		capacity := b.Policy.Limit.Capacity()
		n.admits(t, withCost(b, capacity-3))
		for n.admits(t, b) {
			continue
		}
		asks := newNode(n.bank, Options{DenialMemory: -1})
		for _, cost := range []int64{1, 2, capacity / 2, capacity - 2, capacity, capacity + 1} {
			cost = max(cost, 1)
			want, got := asks.take(t, withCost(b, cost))[0], n.take(t, withCost(b, cost))[0]
			if got.Source != decision.Leased || want.Admits() {
				t.Fatalf("%s, cost %d: %+v from memory, %+v when called; want two denials", b.Policy.Describe(), cost, got, want)
			}
			early := want.Wait - got.Wait
			if early > b.Policy.Limit.Tick() && spec.Algorithm != limit.SlidingWindow || early < 0 ||
				(got.Wait == limit.Never) != (want.Wait == limit.Never) {
				t.Errorf("%s, cost %d: must wait %d µs, want %d", b.Policy.Describe(), cost, got.Wait, want.Wait)
			}
		}
	}
}

func TestADenialHoldsForItsCostOrMore(t *testing.T) {
	n := newNode(newBank(), Options{})
	b := window(t, "window", 10)
	n.admits(t, withCost(b, 8))
	require.True(t, !n.admits(t, withCost(b, 3)) && !n.admits(t, withCost(b, 4)), "3 and 4 of the last 2 were admitted")
	calls := n.calls(func() {
		assert.True(t, n.admits(t, withCost(b, 2)), "2 of the last 2 were denied")
		n.admits(t, withCost(b, 0))
	})
	assert.Equal(t, 2, calls, "calls for a smaller cost and a look")
}

func TestADenialIsForgottenWithItsLimitAndKeptByAnEqualOne(t *testing.T) {
	n := newNode(newBank(), Options{})
	b := window(t, "window", 10)
	n.admits(t, withCost(b, 10))
	n.admits(t, b)
	same := with(b, func(*policy.Policy) {})
	assert.Zero(t, n.calls(func() { n.admits(t, same) }), "another version of the same limit calls the store again")
	raised := b
	raised.Policy = window(t, "window", 12).Policy
	for range 2 { // the second finds what the first has left
		assert.True(t, n.admits(t, raised), "what a smaller limit has denied is denied by the larger one")
	}
}

func TestTwoBoundsOfOneBucketAreNotRememberedAsOne(t *testing.T) {
	n := newNode(newBank(), Options{})
	b := window(t, "window", 3)
	n.admits(t, withCost(b, 2))
	require.False(t, n.admits(t, b, b), "2 of the last 1 were admitted")
	assert.True(t, n.admits(t, b), "the last one was denied, because two were")
}

func TestADenialInShadowIsAnsweredFromMemoryAndDeniesNothing(t *testing.T) {
	n := newNode(newBank(), Options{})
	hot, shadow := window(t, "hot", 100_000),
		with(window(t, "shadow", 1), func(p *policy.Policy) { p.Mode = policy.Shadow })
	n.warm(t, hot)
	n.admits(t, shadow)
	n.admits(t, shadow)
	calls := n.calls(func() {
		statuses := n.take(t, hot, shadow)
		if !statuses[0].Charged || statuses[1].Admits() || statuses[1].Charged || statuses[1].Source == decision.Unanswered {
			t.Errorf("statuses %+v", statuses)
		}
	})
	assert.Zero(t, calls, "calls")
}

func TestAFallbacksDenialIsNotRemembered(t *testing.T) {
	n := newNode(newBank(), Options{})
	b := window(t, "window", 10)
	status := decision.Status{Wait: limit.Second, Source: decision.Local, Failure: decision.Unavailable}
	p := place{hash: 1, shard: &n.shards[0]}
	n.recordAnswer(&p, &b, nil, &status, n.now(), true)
	stats := n.Stats()
	assert.True(t, stats.Entries == 0 && stats.FromStore == 0, "%+v, want nothing", stats)
}

func TestADenialOfAHotBucketHoldsUntilWhatCameBackIsLeased(t *testing.T) {
	n := newNode(newBank(), Options{})
	b := bound(t, "hot", limit.Spec{Algorithm: limit.TokenBucket, Quantity: 1000, Window: limit.Second})
	for n.admits(t, b) {
		n.background()
	}
	denied := n.now()
	calls := n.calls(func() {
		for n.now() < denied+2*sharingRound-1 {
			if status := n.take(t, b)[0]; status.Admits() || status.Now+status.Wait != denied+2*sharingRound {
				t.Fatalf("%d µs later, a request was answered %+v", n.now()-denied, status)
			}
			n.bank.clock.Advance(1)
		}
	})
	assert.Zero(t, calls, "calls in two rounds")
	n.background()
	calls = n.calls(func() {
		for range 20 { // the share of 1000 that may be out
			require.True(t, n.admits(t, b), "a request was denied that the renewed lease has room for")
		}
	})
	assert.Zero(t, calls, "calls for what was leased")
	if status := n.take(t, b)[0]; status.Admits() || status.Remaining != 0 || n.bank.used(b) == 980 {
		t.Errorf("%+v, want a denial that shows nothing of what others may lease", status)
	}
}

// spent is a token bucket of so many tokens a second that is not leased, to which the first has just come back.
func spent(t *testing.T, n *node, perSecond int64) policy.Bound {
	t.Helper()
	b := bound(t, "exact", limit.Spec{Algorithm: limit.TokenBucket, Quantity: perSecond, Window: limit.Second})
	for n.admits(t, b) {
		continue
	}
	n.bank.clock.Advance(limit.Second / limit.Micros(perSecond))
	return b
}

func TestWhenADenialEndsOneRequestCallsTheStore(t *testing.T) {
	for perSecond, then := range map[int64]limit.Micros{10: maxRetryWait, 100: maxRetryWait, 400: limit.Second / 800} {
		n := newNode(newBank(), Options{})
		b := spent(t, n, perSecond)
		n.bank.there, n.bank.back = 100, 100
		began := n.now()
		n.bank.during = func() {
			calls := n.calls(func() {
				for _, cost := range []int64{1, 2, 3} {
					if status := n.take(t, withCost(b, cost))[0]; status.Admits() || status.Source != decision.Leased {
						t.Errorf("while one request calls the store, another that costs %d gets %+v", cost, status)
					}
				}
				n.bank.clock.Advance(began + then - 1 - n.now())
				n.admits(t, b)
			})
			assert.Zero(t, calls, "%d a second: calls while a request asks whether a token has come back", perSecond)
			n.bank.clock.Advance(1)
			if calls := n.calls(func() { n.admits(t, b); n.admits(t, b) }); calls != 1 {
				t.Errorf("%d a second: %d calls when that takes long", perSecond, calls)
			}
		}
		assert.True(t, n.admits(t, b), "%d a second: what has come back is denied", perSecond)
	}
}

func TestAFloodOfABucketThatIsNotLeasedAsksOnceForEachTokenThatComesBack(t *testing.T) {
	for _, spec := range []limit.Spec{
		{Algorithm: limit.TokenBucket, Quantity: 10, Window: limit.Second, Burst: 1},
		{Algorithm: limit.TokenBucket, Quantity: 100, Window: limit.Second, Burst: 7},
		{Algorithm: limit.LeakyBucket, Quantity: 30, Window: limit.Second},
		{Algorithm: limit.FixedWindow, Quantity: 3, Window: limit.Second},
	} {
		n := newNode(newBank(), Options{})
		b := bound(t, "exact", spec)
		for n.admits(t, b) {
			continue
		}
		admitted := 0
		calls := n.calls(func() {
			for i := range 6000 {
				if n.admits(t, b) {
					admitted++
				}
				if n.bank.clock.Advance(500); i%100 == 0 {
					n.sweep(n.now() - maxGrantAge)
				}
			}
		})
		if want := 3*int(spec.Quantity) - 1; calls != admitted || admitted < want {
			t.Errorf("%s: 6,000 requests in 3 s call the store %d times, and %d are admitted; want %d at least",
				b.Policy.Describe(), calls, admitted, want)
		}
	}
}

func TestARequestThatMaySpendNothingKeepsNoOtherFromTheStore(t *testing.T) {
	n := newNode(newBank(), Options{})
	b := spent(t, n, 100)
	if n.admits(t, withCost(window(t, "small", 1), 2), b) || !n.admits(t, b) {
		t.Error("what a request has left that another bound denies is denied to the next")
	}
	for what, request := range map[string][]policy.Bound{
		"a larger cost": {withCost(b, 2)}, "a request that is denied elsewhere": {withCost(window(t, "other", 1), 2), b},
	} {
		b = spent(t, n, 100)
		n.bank.during = func() {
			assert.True(t, n.admits(t, b), "what has come back is denied while %s calls the store", what)
		}
		n.admits(t, request...)
		assert.Nil(t, n.bank.during, "%s does not call the store", what)
	}
	leased := entry{
		terms:    new(terms),
		observed: observed{denial: denial{cost: 1, status: decision.Status{Wait: limit.Second}}},
	}
	if leased.extendDenial(1, limit.Second); leased.denies(1, limit.Second) {
		t.Error("a denial of a leased bucket is prolonged")
	}
}

// What is not leased is decided as if the store were called each time, if it answers at once.
func TestADenialIsRememberedForNoLongerThanItHolds(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		spec := limit.Spec{
			Algorithm: rapid.SampledFrom([]limit.Algorithm{
				limit.TokenBucket, limit.LeakyBucket, limit.FixedWindow, limit.SlidingWindow,
			}).Draw(rt, "algorithm"),
			Quantity: rapid.Int64Range(1, 400).Draw(rt, "quantity"),
			Window:   limit.Second * limit.Micros(rapid.IntRange(1, 3).Draw(rt, "window")),
		}
		if spec.Algorithm == limit.TokenBucket {
			spec.Burst = rapid.Int64Range(1, 30).Draw(rt, "burst")
		}
		b, other := bound(t, "exact", spec), bound(t, "exact", spec)
		other.Key.GroupID = "other"
		n := newNode(newBank(), Options{})
		asks := newNode(n.bank, Options{DenialMemory: -1})
		for range 300 {
			n.bank.clock.Advance(limit.Micros(rapid.SampledFrom([]int64{0, 100, 1000, 5000, 20_000}).Draw(rt, "pause")))
			cost := rapid.SampledFrom([]int64{1, 1, 1, 2, 5}).Draw(rt, "cost")
			if rapid.IntRange(0, 9).Draw(rt, "elsewhere") == 0 { // another node's
				asks.admits(t, withCost(b, cost))
				asks.admits(t, withCost(other, cost))
				continue
			}
			if got, want := n.admits(t, withCost(b, cost)), asks.admits(t, withCost(other, cost)); got != want {
				rt.Fatalf("%s, cost %d: admitted %t, want %t", b.Policy.Describe(), cost, got, want)
			}
		}
	})
}

func TestDenialsEvictNoBucketOfWhichTokensAreOut(t *testing.T) {
	n := newNode(newBank(), Options{MaxEntries: 4 * shardCount})
	leased, exact, b := tokens(t, "leased", 100_000), window(t, "exact", 10), window(t, "window", 1)
	n.warm(t, leased)
	flood := func() {
		for i := range 10_000 {
			b.Key.Subject = string(rune('a'+i%26)) + string(rune(i))
			n.admits(t, withCost(b, 2))
		}
	}
	flood()
	out := n.Stats().Out
	n.bank.during = func() { // a request holds all that is out
		flood()
		n.bank.clock.Advance(idleAfter)
		n.sweep(0)
	}
	n.admits(t, withCost(leased, out), exact)
	if stats := n.Stats(); out < 10 ||
		stats.Tokens.Granted != stats.Tokens.Spent+stats.Tokens.Returned+stats.Tokens.Expired+stats.Out {
		t.Errorf("%d were out, and %+v do not add up", out, stats)
	}
	if p := make([]place, 1); n.locate([]policy.Bound{leased}, p) == 0 ||
		p[0].shard.lookup(p[0].hash, &leased.Key) == nil {
		t.Error("a bucket was forgotten while a request held tokens of it")
	}
}

func TestDenialsOfManyBucketsTakeBoundedMemory(t *testing.T) {
	n := newNode(newBank(), Options{MaxEntries: 4 * shardCount})
	b := window(t, "window", 1)
	for i := range 10_000 {
		b.Key.Subject = string(rune('a'+i%26)) + string(rune(i))
		n.admits(t, withCost(b, 2))
	}
	entries := n.Stats().Entries
	assert.True(t, entries <= 4*shardCount && entries >= 2*shardCount, "%d entries, want nearly %d", entries, 4*shardCount)
	n.bank.clock.Advance(2 * limit.Second)
	if n.background(); n.Stats().Entries != 0 {
		t.Errorf("%d entries are kept when all denials are over", n.Stats().Entries)
	}
}

func TestADenialByRequestsInFlightIsNotRemembered(t *testing.T) {
	n := newNode(newBank(), Options{})
	b := bound(t, "exports", limit.Spec{Algorithm: limit.Concurrency, Quantity: 1, Window: 60 * limit.Second})
	b.Key.Slots = true
	n.admits(t, b)
	calls := n.calls(func() {
		for range 10 {
			n.admits(t, b)
		}
	})
	assert.EqualValues(t, 10, calls, "each request calls the store: a slot may be free at any instant")
}
