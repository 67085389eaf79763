package lease

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/decision"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/limit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
)

// spy is the store behind a store: it records the policies of its calls, and leaves those of one name unanswered.
type spy struct {
	*bank
	called []string
	lost   string
}

func (s *spy) Take(ctx context.Context, bounds []policy.Bound, statuses []decision.Status) error {
	err := s.bank.Take(ctx, bounds, statuses)
	for i := range bounds {
		s.called = append(s.called, bounds[i].Policy.Name)
		if bounds[i].Policy.Name == s.lost {
			statuses[i] = decision.Status{Failure: decision.Lost}
		}
	}
	return err
}

func TestOnlyTheColdBoundOfARequestCallsTheStoreAndItsDenialReturnsTheDraws(t *testing.T) {
	n := newNode(newBank(), Options{DenialMemory: -1})
	next := &spy{bank: n.bank}
	n.view = n.Store(next)
	tenant, global, user := tokens(t, "tenant", 100_000), window(t, "global", 100_000), window(t, "exact", 2)
	n.warm(t, tenant, global)
	next.called = nil
	before := n.Stats()
	for i := range 4 {
		require.Equal(t, i < 2, n.admits(t, tenant, user, global), "request %d was admitted", i+1)
	}
	assert.Equal(t, []string{"exact", "exact", "exact", "exact"}, next.called, "called for")
	if after := n.Stats(); after.Tokens.Spent != before.Tokens.Spent+4 || after.Out != before.Out-4 {
		t.Errorf("two requests of two leased bounds were admitted: from %+v to %+v", before, after)
	}
}

func TestWhatCostsMoreThanTheLeaseIsTakenFromTheStoreAndLeavesTheLease(t *testing.T) {
	n := newNode(newBank(), Options{})
	b := window(t, "window", 100_000)
	n.warm(t, b)
	out := n.Stats().Out
	used := n.bank.used(b)
	if calls := n.calls(func() { n.admits(t, withCost(b, out+1)) }); calls != 1 || n.Stats().Out != out {
		t.Errorf("%d calls for one more than %d on lease, of which %d are left", calls, out, n.Stats().Out)
	}
	now := n.bank.used(b)
	assert.True(t, now == used+out+1, "the bank has been charged %d, want %d", now-used, out+1)
}

func TestOfARequestThatIsAnsweredInPartTheAnsweredPartIsNoted(t *testing.T) {
	n := newNode(newBank(), Options{})
	n.view = n.Store(&spy{bank: n.bank, lost: "exact"})
	hot, lost, empty := tokens(t, "hot", 100_000), window(t, "exact", 100), window(t, "empty", 1)
	for range 20 {
		n.admits(t, hot, lost)
	}
	n.background()
	if stats := n.Stats(); stats.FromStore != 20 || stats.Leases != 1 || stats.Entries != 1 {
		t.Errorf("%+v, want only the bucket that answered", stats)
	}
	n.admits(t, empty, lost)
	n.admits(t, empty, lost)
	if statuses := n.take(t, empty, lost); !decision.Denies(&empty, &statuses[0]) || statuses[1] != (decision.Status{}) {
		t.Errorf("statuses %+v, want the denial that was answered", statuses)
	}
}

// patient is a bank that is called as real stores are: not at all when the caller's time is up.
type patient struct{ *bank }

func (p patient) Settle(ctx context.Context, bounds []policy.Bound, statuses []decision.Status, actual []int64) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	return p.bank.Settle(ctx, bounds, statuses, actual)
}

func TestLeasesAreGivenBackThoughTheContextOfRunHasEnded(t *testing.T) {
	n := newNode(newBank(), Options{})
	n.central = patient{n.bank}
	b := window(t, "window", 10_000)
	n.warm(t, b)
	ended, cancel := context.WithCancel(context.Background())
	cancel()
	assert.NoError(t, n.Run(ended))
	used := n.bank.used(b)
	assert.True(t, used == 21, "used is %d after 21 requests", used)
}

func TestALeaseFollowsTheNumberOfNodes(t *testing.T) {
	n := newNode(newBank(), Options{})
	b := window(t, "window", 8000) // 160 may be out
	most := func(live int) int64 {
		n.live = live
		var most int64
		for i := range 1000 {
			n.admits(t, b)
			n.background()
			n.bank.clock.Advance(500)
			if i >= 500 { // what was leased before is spent
				most = max(most, n.Stats().Out)
			}
		}
		return most
	}
	if alone, many, again := most(1), most(8), most(1); alone < 100 || alone > 160 || many < 10 || many > 20 ||
		again < 100 {
		t.Errorf("alone %d are out, of 8 nodes %d, alone again %d", alone, many, again)
	}
}

func TestCostsForWhichALeaseHadNoRoomAreLeasedForAgainWhenNodesHaveLeft(t *testing.T) {
	n := newNode(newBank(), Options{})
	b := withCost(window(t, "window", 1_000_000), 3000) // 20,000 may be out
	drawn := func(live int) uint64 {
		n.live = live
		before := n.Stats().FromLease
		for range 100 {
			n.admits(t, b)
			n.background()
			n.bank.clock.Advance(limit.Second / 100)
		}
		return n.Stats().FromLease - before
	}
	if few, many, again := drawn(1), drawn(8), drawn(1); few < 50 || many > 10 || again < 50 {
		t.Errorf("of 100 requests, one node alone answers %d from leases, one of eight %d, and alone again %d",
			few, many, again)
	}
}

func TestOneCallBringsWhatAScarceBucketHas(t *testing.T) {
	n := newNode(newBank(), Options{})
	b := window(t, "window", 1000) // 20 may be out
	for range 20 {
		n.admits(t, b)
	}
	n.bank.states[b.Key] = limit.State{Algorithm: limit.FixedWindow, At: n.bank.states[b.Key].At, Spent: 987}
	n.admits(t, b) // shows that 12 are left
	if calls := n.calls(n.background); calls != 1 || n.Stats().Out != 12 || n.bank.used(b) != 1000 {
		t.Errorf("%d calls brought %d of 12", calls, n.Stats().Out)
	}
}

func TestTwoKeysOfOneHashAreTwoBuckets(t *testing.T) {
	n := newNode(newBank(), Options{})
	b, other := tokens(t, "hot", 100_000), tokens(t, "other", 100_000)
	n.warm(t, b)
	places := make([]place, 1)
	n.locate([]policy.Bound{b}, places)
	p := places[0]
	n.locate([]policy.Bound{other}, places)
	places[0].shard.entries[places[0].hash] = p.shard.entries[p.hash] // as if both had this hash
	if calls := n.calls(func() { n.admits(t, other) }); calls != 1 || n.bank.used(other) != 1 {
		t.Errorf("%d calls, and %d spent from the other's bucket", calls, n.bank.used(other))
	}
}

func TestAfterRunNothingIsLeasedAndWhatWasDrawnIsAccountedFor(t *testing.T) {
	n := newNode(newBank(), Options{})
	b, exact := window(t, "window", 10_000),
		with(window(t, "exact", 10), func(p *policy.Policy) { p.FailMode = policy.FailClosed })
	n.warm(t, b)
	ended, cancel := context.WithCancel(context.Background())
	cancel()
	n.bank.during = func() {
		assert.NoError(t, n.Run(ended))
	}
	n.bank.set(deaf) // the request that holds 5 fails closed
	n.admits(t, withCost(b, 5), exact)
	n.bank.set(up)
	for range 100 {
		calls := n.calls(func() { n.admits(t, b) })
		require.True(t, calls == 1, "after the end, a request calls the store %d times", calls)
	}
	stats := n.Stats()
	left := stats.Tokens.Granted - stats.Tokens.Spent - stats.Tokens.Returned - stats.Tokens.Expired
	assert.True(t, left == 0 && stats.Out == 0 && stats.Leases == 0, "%+v leave %d out", stats, left)
	if len(n.due)+len(n.returns) != 0 || stats.Tokens.Expired != 5 {
		t.Errorf("%d renewals and %d refunds are pending; %d tokens are lost, want 5",
			len(n.due), len(n.returns), stats.Tokens.Expired)
	}
}

func TestAClockThatStandsLetsRunRest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(newBank(), Options{})
		ctx, cancel := context.WithCancel(context.Background())
		ended := make(chan error)
		go func() { ended <- n.Run(ctx) }()
		b := bound(t, "hot", limit.Spec{Algorithm: limit.TokenBucket, Quantity: 1000, Window: limit.Second})
		for range 5000 {
			n.admits(t, b)
			time.Sleep(100 * time.Microsecond)
		}
		cancel()
		assert.NoError(t, <-ended)
		used, calls := n.bank.used(b), n.bank.calls
		assert.True(t, used <= 1000 && used >= 980-1 && calls <= 200, "%d of 1000 were spent with %d calls", used, calls)
	})
}

func TestALostNodesTokensComeBackWithTime(t *testing.T) {
	b := newBank()
	n, other := newNode(b, Options{}), newNode(b, Options{})
	bucket := bound(t, "hot", limit.Spec{Algorithm: limit.TokenBucket, Quantity: 1000, Window: limit.Second})
	n.warm(t, bucket) // and is killed with 19 out
	lost := n.Stats().Out
	b.clock.Advance(limit.Micros(lost+21) * 1000) // share × burst ÷ rate, and what was spent
	used := b.used(bucket)
	assert.True(t, used == 0 && lost != 0, "%d of %d lost tokens are still missing", used, lost)
	assert.True(t, other.admits(t, withCost(bucket, 980)), "another node cannot have all of the bucket but the share")
}

func TestRenewalsWithoutAnAnswerAreCounted(t *testing.T) {
	n := newNode(newBank(), Options{})
	b := window(t, "window", 10_000)
	for range 20 {
		n.admits(t, b)
	}
	n.bank.set(unreachable)
	n.background()
	if stats := n.Stats(); stats.Renewals != 1 || stats.Failed != 1 || stats.Leases != 0 {
		t.Errorf("%+v", stats)
	}
	n.bank.set(up)
	n.bank.clock.Advance(renewalPause)
	n.admits(t, b)
	n.background()
	if stats := n.Stats(); stats.Failed != 1 || stats.Leases != 1 || stats.Out == 0 || stats.RenewalTime <= 0 {
		t.Errorf("%+v", stats)
	}
}
