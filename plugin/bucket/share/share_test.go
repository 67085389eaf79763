package share

import (
	"fmt"
	"slices"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/leaktest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/soak"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/limit"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

// places are where a limit can be shared: in one process, and through Redis by several nodes, with and without leases,
// and with clocks that differ by hours.
var places = map[string]rules{
	"in one process":               {},
	"five nodes with leases":       {nodes: 5, leased: true},
	"five nodes, clocks apart":     {nodes: 5, spread: true},
	"five nodes, a minute's burst": {nodes: 5, burst: int64(60 * rate)},
}

// inEachPlace runs a test in all places.
func inEachPlace(t *testing.T, test func(t *testing.T, r rules)) {
	t.Helper()
	for name, r := range places {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, r)
		})
	}
}

var share = rate / 2 // of each of two tenants

// part returns a part of the rate, in requests per second.
func part(x float64) float64 { return x * float64(rate) }

func TestSoakATenantWithinItsShareLosesAtMostASecondOfItWhenAnotherRushes(t *testing.T) {
	lost := func(w *world, seconds int) int {
		steady := &client{tenant: "steady", perSecond: part(0.5)}
		rush := &client{tenant: "rush", perSecond: rushing, from: 2 * limit.Second}
		w.run(seconds, nil, rush, steady) // in each millisecond the rush is first
		t.Logf("steady %v, rush %v", steady.admitted, rush.admitted)
		return seconds*share - steady.total(0, 0)
	}
	inEachPlace(t, func(t *testing.T, r rules) {
		if n := lost(newWorld(t, r), soak.Count(6, 12)); n > share {
			t.Errorf("the steady tenant lost %d requests, want at most %d", n, share)
		}
	})
	// Redis's clock is real. A run in which the machine stalls for so long that messages end says nothing.
	for _, nodes := range []int{1, 5} {
		w := newWorld(t, rules{nodes: nodes, redis: true, leased: true})
		n := lost(w, 5)
		for w.stalled {
			w = newWorld(t, rules{nodes: nodes, redis: true, leased: true})
			n = lost(w, 5)
		}
		if n > share {
			t.Errorf("%d nodes with Redis: the steady tenant lost %d requests, want at most %d", nodes, n, share)
		}
	}
	if n := lost(newWorld(t, rules{nodes: 5, unfair: true}), 6); n < 3*share {
		t.Errorf("without shares the steady tenant lost only %d requests: the test shows nothing", n)
	}
}

// The first caps are in force after a period in one process, and after three with other nodes: the node's own, the
// leader's, and the node's next. Until then who comes first is served first.
func TestARushIsCappedAfterAPeriodOrAfterThreeWithOtherNodes(t *testing.T) {
	for nodes, until := range map[int]limit.Micros{0: period, 5: 3 * period} {
		t.Run(fmt.Sprintf("%d nodes", nodes), func(t *testing.T) {
			w := newWorld(t, rules{nodes: nodes})
			steady := &client{tenant: "steady", perSecond: part(0.5)}
			rush := &client{tenant: "rush", perSecond: rushing, from: 2*limit.Second + 1000}
			capped := limit.Micros(0)
			w.run(4, func(at limit.Micros) {
				uncapped := func(n *node) bool { return n.shares.Stats().Tenants == 0 }
				if capped == 0 && at > rush.from && !slices.ContainsFunc(w.nodes, uncapped) {
					capped = at
				}
			}, rush, steady)
			if waited := capped - rush.from; capped == 0 || waited > until {
				t.Errorf("all nodes cap the rush %d µs after it began, want at most %d", waited, until)
			}
			if most := 2*rate + rate/2; rush.total(2, 3) > most {
				t.Errorf("in its first second the rush got %d requests, want at most %d", rush.total(2, 3), most)
			}
		})
	}
}

func TestSoakTheLimitIsUsedAlmostInFullWhileDemandExceedsIt(t *testing.T) {
	inEachPlace(t, func(t *testing.T, r rules) {
		wantUsed(t, r, func() []*client {
			return []*client{
				{tenant: "a", perSecond: part(0.9)},
				{tenant: "b", perSecond: part(4)},
				{tenant: "c", tier: "enterprise", perSecond: part(0.3)},
			}
		})
	})
}

func TestSoakTheLimitIsUsedAlmostInFullWhereTenantsHaveLimitsOfTheirOwn(t *testing.T) {
	wantUsed(t, rules{nodes: 5, own: int64(part(0.15))}, func() []*client {
		clients := []*client{{tenant: "flood", tier: "enterprise", perSecond: part(9)}}
		for i := range 7 {
			clients = append(clients, &client{tenant: fmt.Sprint(i), perSecond: part(0.14 + 0.1*float64(i%2))})
		}
		return clients
	})
}

func TestSoakTheLimitIsUsedAlmostInFullByManySmallTenants(t *testing.T) {
	wantUsed(t, rules{nodes: 5}, func() (clients []*client) {
		for i := range rate * 3 / 2 {
			clients = append(clients, &client{tenant: fmt.Sprint(i), perSecond: 0.8, due: float64(i%10) / 10})
		}
		return append(clients, &client{tenant: "large", perSecond: part(5)})
	})
}

// wantUsed wants that almost as much is admitted with shares as without.
func wantUsed(t *testing.T, r rules, clients func() []*client) {
	t.Helper()
	used := map[bool]int{}
	for _, r.unfair = range []bool{true, false} {
		all := clients()
		newWorld(t, r).run(soak.Count(15, 60), nil, all...)
		for _, c := range all {
			used[r.unfair] += c.total(0, 0)
		}
	}
	if used[false] < used[true]*97/100 || used[false] > used[true]*101/100 {
		t.Errorf("with shares %d are admitted, without %d", used[false], used[true])
	}
	t.Logf("with shares %d are admitted, without %d", used[false], used[true])
}

func TestTenantsThatAllDemandMoreGetSharesByTheirWeights(t *testing.T) {
	inEachPlace(t, func(t *testing.T, r rules) {
		one := &client{tenant: "one", perSecond: part(3)}
		three := &client{tenant: "three", tier: "enterprise", perSecond: part(5)}
		const begin, seconds = 12, 5
		newWorld(t, r).run(begin+seconds, nil, one, three)
		a, b := one.total(begin, 0), three.total(begin, 0)
		if b < a*27/10 || b > a*33/10 || a+b < seconds*rate*97/100 {
			t.Errorf("in %d seconds weight 1 gets %d and weight 3 gets %d of %d", seconds, a, b, seconds*rate)
		}
	})
}

func TestBelowFourFifthsOfTheRateNoRequestIsDenied(t *testing.T) {
	inEachPlace(t, func(t *testing.T, r rules) {
		a, b := &client{tenant: "a", perSecond: part(0.78)}, &client{tenant: "b", perSecond: part(0.01)}
		newWorld(t, r).run(5, nil, a, b)
		n := a.total(0, 0) + b.total(0, 0)
		assert.True(t, n == a.sent+b.sent, "%d of %d requests are admitted", n, a.sent+b.sent)
	})
}

func TestRequestsWithoutATenantHaveOneShareTogether(t *testing.T) {
	steady := &client{tenant: "steady", perSecond: part(0.5)}
	clients := []*client{steady}
	for i := range 20 {
		clients = append(clients, &client{ip: fmt.Sprintf("192.0.2.%d", i), perSecond: part(0.5)})
	}
	newWorld(t, rules{nodes: 5}).run(10, nil, clients...)
	n := steady.total(2, 0)
	assert.True(t, n >= 8*share*95/100, "beside twenty addresses the tenant gets %d of %d", n, 8*share)
}

func TestTheOthersKeepTheirSharesWhenTheLeaderIsKilled(t *testing.T) {
	w := newWorld(t, rules{nodes: 5})
	steady, rush := &client{tenant: "steady", perSecond: part(0.5)}, &client{tenant: "rush", perSecond: rushing}
	killed := 0
	w.run(14, func(at limit.Micros) {
		if at == 0 || at%(3*limit.Second) != 0 {
			return
		}
		for _, n := range w.nodes {
			if !n.dead && n.shares.Stats().Leads == 1 {
				n.dead = true
				killed++
				return
			}
		}
	}, rush, steady)
	require.Equal(t, 4, killed, "leaders were killed")
	for second := 3; second < 14; second++ {
		if n := steady.admitted[second]; n < share*8/10 {
			t.Errorf("in second %d the steady tenant gets %d of %d: %v", second, n, share, steady.admitted)
		}
	}
}

func TestWithoutRedisTheBucketAloneDecidesAndThereAreSharesAgainAfterwards(t *testing.T) {
	w := newWorld(t, rules{nodes: 5})
	steady, rush := &client{tenant: "steady", perSecond: part(0.5)}, &client{tenant: "rush", perSecond: rushing}
	var before, during uint64
	denied := func() (sum uint64) {
		for _, n := range w.nodes {
			sum += n.shares.Stats().Denied
		}
		return sum
	}
	w.run(13, func(at limit.Micros) {
		switch at {
		case 3 * limit.Second:
			w.board.unavailable = true
		case 4*limit.Second + period:
			before = denied()
		case 8 * limit.Second:
			during, w.board.unavailable = denied(), false
		}
	}, rush, steady)
	assert.Equal(t, before, during, "%d requests were denied by caps that had ended", during-before)
	all := steady.total(5, 8) + rush.total(5, 8)
	assert.True(t, all >= 3*rate*99/100, "without caps %d requests were admitted of %d", all, 3*rate)
	if n := steady.total(10, 0); n < 3*share*97/100 {
		t.Errorf("afterwards the steady tenant gets %d of %d", n, 3*share)
	}
}

func TestACapInShadowDeniesNothingAndTakesNothingOfTheBucket(t *testing.T) {
	w := newWorld(t, rules{nodes: 1, mode: "shadow"})
	steady, rush := &client{tenant: "steady", perSecond: part(0.5)}, &client{tenant: "rush", perSecond: part(5)}
	w.run(5, nil, rush, steady)
	n := rush.total(0, 0) + steady.total(0, 0)
	assert.True(t, n == rush.sent+steady.sent, "%d of %d requests are admitted", n, rush.sent+steady.sent)
	if d := &rush.exchange.Decision; !d.ShadowDenied || w.nodes[0].shares.Stats().Denied == 0 {
		t.Errorf("the last decision of the rush is %+v, want a denial in shadow", d.Statuses)
	}
	if d := &steady.exchange.Decision; d.ShadowDenied || !d.Statuses[0].Charged {
		t.Errorf("the last decision of the steady tenant is %+v", d.Statuses)
	}
}

func TestACapDeniesForASecondAtMostAndSpendsNothing(t *testing.T) {
	w := newWorld(t, rules{own: 100_000})
	rush, steady := &client{tenant: "rush", perSecond: rushing}, &client{tenant: "steady", perSecond: part(0.5)}
	w.run(3, nil, rush, steady)
	for range rate {
		w.send(rush)
	}
	d := &rush.exchange.Decision
	if !d.Denied() || d.RetryAfter <= 0 || d.RetryAfter > limit.Second {
		t.Errorf("the rush waits %d µs: %+v", d.RetryAfter, d.Statuses)
	}
	for i := range d.Statuses {
		assert.False(t, d.Statuses[i].Charged, "a denied request is charged: %+v", d.Statuses)
	}
}

func TestDecisionsWithSharesAllocateNothing(t *testing.T) {
	w := newWorld(t, rules{})
	c := &client{tenant: "a", perSecond: part(0.9)}
	w.run(2, nil, c, &client{tenant: "b", perSecond: part(0.9)})
	request := c.request()
	if n := testing.AllocsPerRun(1000, func() {
		require.NoError(t, w.nodes[0].decider.Admit(t.Context(), request, &c.exchange))
	}); n > 0 {
		t.Errorf("a decision allocates %g times", n)
	}
}

func TestTenantsBeyondTheBoundAreCountedTogether(t *testing.T) {
	w := newWorld(t, rules{tenants: 2})
	clients := make([]*client, 4)
	for i := range clients {
		clients[i] = &client{tenant: fmt.Sprint(i), perSecond: part(1)}
	}
	w.run(3, nil, clients...)
	p := w.nodes[0].shares
	assert.EqualValues(t, 2, p.tenants.Load(), "tenants are counted")
	w.run(12, nil)
	if n, limits := p.tenants.Load(), p.Stats().Limits; n != 0 || limits != 0 {
		t.Errorf("after twelve seconds without requests %d tenants of %d limits are counted", n, limits)
	}
}

func TestATenantIsForgottenASecondAfterItsLastRequest(t *testing.T) {
	w := newWorld(t, rules{})
	last := &client{tenant: "last", perSecond: part(0.5), until: limit.Second}
	w.run(2, nil, last, &client{tenant: "other", perSecond: part(0.1)})
	w.run(1, func(at limit.Micros) {
		n := w.nodes[0].shares.tenants.Load()
		require.True(t, at <= 2*period || n == 1, "%d µs after the second, %d tenants are counted", at, n)
	}, &client{tenant: "other", perSecond: part(0.1)})
}

func TestATenantOfADroppedLimitIsNotCountedForever(t *testing.T) {
	w := newWorld(t, rules{tenants: 2})
	w.run(1, nil, &client{tenant: "a", perSecond: part(0.1)})
	s := w.nodes[0].shares
	for _, p := range *s.pools.Load() { // as a request that has found it before it is dropped
		s.addTenant(p, "b")
		s.drop(p)
		late, added := s.addTenant(p, "c")
		assert.True(t, !added && late == &p.others, "a dropped limit counts a tenant more")
	}
	assert.Zero(t, s.tenants.Load(), "tenants are counted of no limit")
}

func TestRequestsAndPeriodsGoOnAtOnce(t *testing.T) {
	w := newWorld(t, rules{nodes: 2})
	var sending sync.WaitGroup
	for i := range 4 {
		sending.Go(func() {
			c := &client{tenant: fmt.Sprint(i % 3), perSecond: part(1)}
			for range 2000 {
				assert.NoError(t, w.nodes[0].decider.Admit(t.Context(), c.request(), &c.exchange))
			}
		})
	}
	for range 200 {
		w.nodes[0].shares.Step(t.Context())
		w.nodes[0].shares.Stats()
	}
	sending.Wait()
	w.nodes[0].shares.Step(t.Context())
	n := w.nodes[0].shares.Stats()
	assert.True(t, n.Limits <= 1 && n.Failed == 0, "%+v", n)
}
