package lease

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/calendar"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/decision"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/limit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
)

func TestALeaseIsAboutWhatIsSpentInATenthOfASecond(t *testing.T) {
	n := newNode(newBank(), Options{})
	b := tokens(t, "hot", 1_000_000)
	for range 3000 { // 5,000 tokens a second
		n.admits(t, b)
		n.bank.clock.Advance(200)
		n.background()
		if out := n.Stats().Out; out > 500 {
			t.Fatalf("%d tokens are out at a demand of 500", out)
		}
	}
	if out := n.Stats().Out; out < 200 {
		t.Errorf("%d tokens are out, want about 500", out)
	}
}

func TestALeaseIsANodesPartOfTheShareAtMost(t *testing.T) {
	for _, live := range []int{1, 3, 100} {
		n := newNode(newBank(), Options{SharePct: 5})
		n.live = live
		b := window(t, "window", 2000) // 100 may be out
		for range 200 {
			n.admits(t, b)
			n.background()
			out := n.Stats().Out
			require.True(t, out <= int64(100/live), "one of %d has %d out, want at most %d", live, out, 100/live)
		}
		leased := n.Stats().Tokens.Granted > 0
		assert.True(t, leased == (live < 100), "one of %d has leased: %t; a lease of one token is none", live, leased)
	}
}

func TestLooksAtABucketAreNoDemandForIt(t *testing.T) {
	n := newNode(newBank(), Options{})
	b := window(t, "window", 10_000)
	for range 2 {
		n.admits(t, withCost(b, 0))
		n.background() // a renewal for nothing would put the next one off
	}
	n.warm(t, b)
	var d demand
	d.observe(60, n.now())
	d.observe(0, n.now())
	assert.False(t, d.isHot(n.now()), "one request and a look are taken for two requests")
}

func TestARaisedLimitIsLeasedAtOnce(t *testing.T) {
	n := newNode(newBank(), Options{})
	b := window(t, "window", 1000)
	for n.admits(t, b) {
		n.background()
	}
	n.background() // finds nothing, and rests
	b.Policy = window(t, "window", 100_000).Policy
	n.warm(t, b)
}

func TestNothingIsLeasedWhileTheNumberOfNodesIsNotKnown(t *testing.T) {
	n := newNode(newBank(), Options{})
	n.live = 0
	b := tokens(t, "hot", 100_000)
	for range 100 {
		n.admits(t, b)
		n.background()
	}
	if stats := n.Stats(); stats.Renewals != 0 || stats.FromLease != 0 || stats.FromStore != 100 {
		t.Errorf("%+v, want 100 from the store", stats)
	}
}

func TestALeaseEndsBeforeOthersCanThinkItsNodeDead(t *testing.T) {
	n := newNode(newBank(), Options{})
	b := tokens(t, "hot", 100_000)
	n.warm(t, b)
	n.bank.clock.Advance(grantLife + 1) // and no sweep
	assert.Equal(t, 1, n.calls(func() { n.admits(t, b) }), "a lease was spent after its life")
}

func TestALeaseOfAWindowEndsBeforeTheStoresWindow(t *testing.T) {
	n := newNode(newBank(), Options{})
	n.bank.fast = 2 // in 1000: the drift that is allowed for
	b := window(t, "window", 100_000)
	const minute = 60 * limit.Second
	n.bank.clock.Advance(minute - n.bank.Now()%minute - 3*limit.Second/2)
	n.warm(t, b)
	for end := n.bank.Now() + minute - n.bank.Now()%minute; n.bank.Now() < end; {
		n.bank.clock.Advance(100)
	}
	assert.Equal(t, 1, n.calls(func() { n.admits(t, b) }), "a lease was spent in the next window")
}

func TestALeaseOfACalendarsLimitEndsWithItsPeriod(t *testing.T) {
	n := newNode(newBank(), Options{})
	c, err := calendar.New(calendar.Month, calendar.Anchor{}, "America/Sao_Paulo")
	require.NoError(t, err)
	b := bound(t, "monthly", limit.Spec{Algorithm: limit.FixedWindow, Quantity: 100_000, Calendar: c})
	_, end := b.Policy.Limit.PeriodAt(n.bank.Now())
	n.bank.clock.Advance(end - n.bank.Now() - 3*limit.Second/2)
	n.warm(t, b)
	for n.bank.Now() < end {
		n.bank.clock.Advance(100)
	}
	assert.Equal(t, 1, n.calls(func() { n.admits(t, b) }), "a lease was spent in the next period")
}

func TestIdleLeasesGoBackToTheirBucketsInOneCall(t *testing.T) {
	n := newNode(newBank(), Options{})
	b := window(t, "window", 10_000)
	n.warm(t, b)
	n.bank.clock.Advance(1000)
	n.warm(t, window(t, "other", 10_000))
	n.bank.clock.Advance(idleAfter)
	n.background()
	if used, stats := n.bank.used(b), n.Stats(); used != 21 || stats.Out != 0 || n.bank.refunds != 1 ||
		stats.Tokens.Returned != stats.Tokens.Granted-stats.Tokens.Spent {
		t.Errorf("used is %d after 21 requests, %+v after %d refunds", used, stats, n.bank.refunds)
	}
	if n.background(); n.Stats().Entries != 0 {
		t.Error("an idle bucket is remembered")
	}
}

func TestAChangedLimitGivesTheLeaseBackAndAnEqualOneKeepsIt(t *testing.T) {
	n := newNode(newBank(), Options{})
	b := window(t, "window", 10_000)
	n.warm(t, b)
	same := with(b, func(*policy.Policy) {})
	require.Zero(t, n.calls(func() { n.admits(t, same) }), "another version of the same limit does not use its lease")
	changed := b
	changed.Policy = window(t, "window", 20_000).Policy
	assert.Equal(t, 1, n.calls(func() { n.admits(t, changed) }), "a changed limit uses the lease of the old one")
	n.background()
	used := n.bank.used(b)
	assert.True(t, used == 23, "used is %d after 23 requests", used)
}

func TestAPolicyThatBecomesExactCallsTheStoreAndReturnsItsLease(t *testing.T) {
	n := newNode(newBank(), Options{})
	b := window(t, "window", 10_000)
	n.warm(t, b)
	exact := with(b, func(p *policy.Policy) { p.Name = "exact" })
	for range 100 {
		calls := n.calls(func() { n.admits(t, exact) })
		require.True(t, calls == 1, "an exact request calls the store %d times", calls)
	}
	n.background()
	used := n.bank.used(b)
	assert.True(t, used == 121 && n.Stats().Out == 0, "used is %d after 121 requests, %d out", used, n.Stats().Out)
}

func TestInTheSoftZoneALeaseIsRenewedAndADenialIsNotHeld(t *testing.T) {
	n := newNode(newBank(), Options{})
	b := bound(t, "soft", limit.Spec{
		Algorithm: limit.FixedWindow, Quantity: 1000, Window: 60 * limit.Second,
		SoftPct: 10, HardPct: 200,
	})
	n.admits(t, withCost(b, 100))
	n.admits(t, withCost(b, 5000)) // denied, whatever the bucket holds
	for i := range 1800 {
		status := n.take(t, b)[0]
		require.True(t, status.Admits() && status.Soft && status.Remaining == 0, "request %d: %+v", i, status)
		n.bank.clock.Advance(500)
		n.background()
	}
	assert.True(t, n.Stats().FromLease >= 1500, "%+v, want most of them drawn", n.Stats())
}

func TestWhatIsGrantedUnderALimitThatHasChangedGoesBack(t *testing.T) {
	n := newNode(newBank(), Options{})
	b, changed := window(t, "window", 10_000), window(t, "window", 20_000)
	changed.Key = b.Key
	for range 20 {
		n.admits(t, b)
	}
	n.bank.during = func() { n.admits(t, changed) }
	n.background()
	if used, stats := n.bank.used(b), n.Stats(); used != 21 || stats.Out != 0 ||
		stats.Tokens.Granted != stats.Tokens.Returned {
		t.Errorf("used is %d after 21 requests, %+v", used, stats)
	}
}

func TestALeaseThatMayBeLostIsNotSpent(t *testing.T) {
	n := newNode(newBank(), Options{})
	b := window(t, "window", 10_000)
	for range 20 {
		n.admits(t, b)
	}
	n.bank.there, n.bank.back = renewalPause, renewalPause // and that takes longer than the rest
	n.bank.set(deaf)
	n.background()
	n.bank.there, n.bank.back = 0, 0
	n.bank.set(up)
	if stats := n.Stats(); stats.Renewals != 1 || stats.Out != 0 || stats.Tokens.Granted != 0 {
		t.Errorf("%+v after a renewal without an answer", stats)
	}
	assert.Equal(t, 1, n.calls(func() { n.admits(t, b); n.background() }), "a renewal is tried again at once")
}

func TestTheLastTokensAreTakenOneByOne(t *testing.T) {
	n := newNode(newBank(), Options{})
	b := window(t, "window", 1000)
	for i := range 1000 {
		require.True(t, n.admits(t, b), "request %d of 1000 was denied", i+1)
		n.bank.clock.Advance(1000)
		n.background()
	}
	if n.admits(t, b) || n.bank.used(b) != 1000 {
		t.Errorf("used is %d, and another was leased", n.bank.used(b))
	}
}

func TestManyLeasesAreRenewedInOneCall(t *testing.T) {
	n := newNode(newBank(), Options{})
	var bounds []policy.Bound
	for i := range batch {
		bounds = append(bounds, tokens(t, fmt.Sprint("bucket-", i), 100_000))
	}
	n.warm(t, bounds...)
	stats := n.Stats()
	assert.True(t, stats.Renewals == 1, "%d calls for %d leases", stats.Renewals, batch)
}

func TestTheObserverReceivesRenewalsAsIfTheyWereRequests(t *testing.T) {
	var saw []int64
	n := newNode(newBank(), Options{Observer: func(bounds []policy.Bound, statuses []decision.Status) {
		for i := range bounds {
			if bounds[i].Enforced() {
				saw = append(saw, statuses[i].Used)
			}
		}
	}})
	b := tokens(t, "hot", 100_000)
	n.warm(t, b)
	assert.True(t, len(saw) == 1 && saw[0] == 20+n.Stats().Tokens.Granted, "saw %v", saw)
}

func TestRunRenewsInTimeAndGivesEverythingBackAtItsEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBank()
		began := time.Now()
		now := func() limit.Micros { return limit.Micros(time.Since(began).Microseconds()) + 1e12 }
		s := New(b, Options{Now: now, Nodes: func(string) int { return 1 }})
		view, hot := s.Store(b), window(t, "window", 100_000)
		ctx, cancel := context.WithCancel(context.Background())
		ended := make(chan error)
		go func() { ended <- s.Run(ctx) }()
		statuses := make([]decision.Status, 1)
		for range 2000 {
			if err := view.Take(ctx, []policy.Bound{hot}, statuses); err != nil || !statuses[0].Charged {
				t.Fatalf("take: %v, %+v", err, statuses[0])
			}
			time.Sleep(time.Millisecond)
		}
		for range 10 { // too few for a lease, and often enough that none is idle
			if err := view.Take(ctx, []policy.Bound{hot}, statuses); err != nil || !statuses[0].Charged {
				t.Fatalf("take: %v, %+v", err, statuses[0])
			}
			time.Sleep(250 * time.Millisecond)
		}
		synctest.Wait()
		cancel()
		assert.NoError(t, <-ended)
		stats := s.Stats()
		if stats.Out != 0 || stats.Tokens.Expired != 0 || b.used(hot) != 2010 {
			t.Errorf("used is %d after 2010 requests, %+v", b.used(hot), stats)
		}
		if stats.FromStore > 10 || stats.Renewals > 60 {
			t.Errorf("in 2 s, %d requests called the store and leases were renewed %d times", stats.FromStore, stats.Renewals)
		}
	})
}

func TestASweepOfManyBucketsPausesBetweenItsParts(t *testing.T) {
	const perShard, buckets, mostAtOnce = 200, 200 * shardCount, 1500
	n := newNode(newBank(), Options{})
	policy := window(t, "idle", 1).Policy
	for i := range n.shards {
		for hash := range uint64(perShard) {
			n.shards[i].entries[hash] = &entry{policy: policy}
		}
	}
	clock := n.bank.clock
	clock.Advance(2*idleAfter - clock.Now()%span)
	due := n.Step(context.Background(), clock.Now())
	first := due
	for left := buckets; left > 0; {
		clock.Advance(due - clock.Now())
		next := n.Step(context.Background(), clock.Now())
		now := n.Stats().Entries
		if visited := left - now; visited == 0 || visited > mostAtOnce {
			t.Fatalf("one part of the sweep visits %d of %d buckets; want at most %d", visited, buckets, mostAtOnce)
		}
		if now > 0 && next-due < minSleep {
			t.Fatalf("the next part of the sweep comes %d µs later; want %d or more", next-due, minSleep)
		}
		left, due = now, next
	}
	assert.Equal(t, first+span, due, "the next sweep comes %d µs after the first; want %d", due-first, span)
}
