package share

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/soak"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/limit"
)

// At a node without its demand a tenant has hardly a cap, and one request overspends it: of what a larger cap pays at
// once, the small one would have paid for half a minute.
func TestATenantThatMovesToAnotherNodeHasItsShareThereWithinASecond(t *testing.T) {
	const seconds, moves = 9, 5 * limit.Second
	w := newWorld(t, rules{nodes: 30})
	other := &client{tenant: "other", perSecond: part(5)}
	mover, admitted := &client{tenant: "mover"}, make([]int, seconds)
	w.run(seconds, func(at limit.Micros) {
		next := w.next
		if w.next = 0; at >= moves {
			w.next = 1
		}
		if w.send(mover) {
			admitted[at/limit.Second]++
		}
		w.next = next
	}, other)
	for second := int(moves/limit.Second) + 1; second < seconds; second++ {
		if admitted[second] < share*9/10 {
			t.Fatalf("the tenant gets %v in each second, and its share is %d", admitted, share)
		}
	}
}

func TestRequestsWithoutATenantHaveTheWeightDefaultAndNotThatOfTheDefaultTier(t *testing.T) {
	address := &client{ip: "192.0.2.1", perSecond: part(3)}
	tenant := &client{tenant: "one", perSecond: part(3)}
	newWorld(t, rules{defaultTier: "enterprise"}).run(10, nil, address, tenant)
	if a, b := address.total(5, 0), tenant.total(5, 0); a > b*11/10 || b > a*11/10 {
		t.Errorf("in five seconds the address gets %d, and a tenant with the weight default %d", a, b)
	}
}

const tenth = limit.Second / 10

func TestSoakARushThatComesAgainAndAgainCostsOthersOnlyOnce(t *testing.T) {
	inEachPlace(t, func(t *testing.T, r rules) {
		for _, pulse := range []struct{ lasts, every limit.Micros }{{6 * tenth, 25 * tenth}, {3 * tenth, 45 * tenth}} {
			rush := &client{
				tenant: "rush", perSecond: rushing, from: limit.Second + 1000, lasts: pulse.lasts, every: pulse.every,
			}
			steady := &client{tenant: "steady", perSecond: part(0.25)}
			lumpy := &client{tenant: "lumpy", perSecond: part(1), lasts: tenth / 2, every: 2 * tenth}
			seconds := soak.Count(8, 60)
			newWorld(t, r).run(seconds, nil, rush, steady, lumpy)
			for _, c := range []*client{steady, lumpy} {
				sent := rate / 4 * (seconds - 2)
				if lost := sent - c.total(2, 0); lost > sent*3/100 {
					t.Errorf("after the first of the pulses of %d µs every %d µs the %s tenant loses %d of %d: %v",
						pulse.lasts, pulse.every, c.tenant, lost, sent, c.admitted)
				}
			}
		}
	})
}

func TestATenantThatRushedIsDeniedNothingOnceUseIsBelowFourFifths(t *testing.T) {
	inEachPlace(t, func(t *testing.T, r rules) {
		rush := &client{tenant: "a", perSecond: rushing, until: 2 * limit.Second}
		again := &client{tenant: "a", perSecond: part(0.35), from: 4 * limit.Second, until: 6 * limit.Second}
		later := &client{tenant: "a", perSecond: part(1.5), from: 6*limit.Second + 3*tenth, lasts: tenth, every: 5 * tenth}
		steady := &client{tenant: "b", perSecond: part(0.4)}
		newWorld(t, r).run(9, nil, rush, again, later, steady)
		for _, c := range []*client{again, later} {
			n := c.total(0, 0)
			assert.True(t, n == c.sent, "after its rush the tenant gets %d of %d: %v", n, c.sent, c.admitted)
		}
	})
}

// many returns clients that each demand so much. They begin one after another.
func many(n int, perSecond float64) []*client {
	clients := make([]*client, n)
	for i := range clients {
		clients[i] = &client{tenant: fmt.Sprint(i), perSecond: perSecond, due: float64(i) / float64(n)}
	}
	return clients
}

// No cap is below one token a second, and all small tenants together demand more than twice the rate.
func TestManySmallTenantsLeaveALargeOneItsShare(t *testing.T) {
	for name, small := range map[string]struct {
		tenants int
		demand  float64
	}{"below a cap of their own": {3 * rate, 0.95}, "beyond it": {rate / 2, 5}} {
		for place, r := range map[string]rules{"one": {}, "five": {nodes: 5}, "leases": {nodes: 5, leased: true}} {
			r.weight = int64(small.tenants) // of the large one, so its share is a half
			clients := many(small.tenants, small.demand)
			large := &client{tenant: "large", tier: "enterprise", perSecond: part(0.45)}
			newWorld(t, r).run(6, nil, append(clients, large)...)
			if lost := large.sent - large.total(0, 0); lost > share {
				t.Errorf("%s: beside tenants %s it gets %v, and demands %g", place, name, large.admitted, large.perSecond)
			}
			used := large.total(3, 0)
			for _, c := range clients {
				used += c.total(3, 0)
			}
			if used < 3*rate*97/100 {
				t.Errorf("%s: beside tenants %s, in three seconds %d of %d are admitted", place, name, used, 3*rate)
			}
		}
	}
}

func TestTenantsThatAreTooManyToCountLeaveTheOthersTheirShares(t *testing.T) {
	large := &client{tenant: "large", perSecond: part(0.45), due: 1} // the first request is its own
	newWorld(t, rules{tenants: 1}).run(6, nil, append([]*client{large}, many(50, part(0.1))...)...)
	lost := large.sent - large.total(0, 0)
	assert.True(t, lost <= share, "it gets %v, and demands %g", large.admitted, large.perSecond)
}

// Two limits apply to each request, and one allows half of what the other does. What one denies takes no share of the
// other.
func TestWhereTwoFairLimitsApplyTheSmallerOneIsDividedFairlyAndUsedAlmostInFull(t *testing.T) {
	for _, nodes := range []int{0, 5} {
		t.Run(fmt.Sprintf("%d nodes", nodes), func(t *testing.T) {
			const seconds = 10
			steady := &client{tenant: "steady", perSecond: part(0.25)}
			rush := &client{tenant: "rush", perSecond: rushing, from: 2 * limit.Second}
			w := newWorld(t, rules{nodes: nodes, second: int64(rate / 2)})
			w.run(seconds, nil, rush, steady)
			lost := steady.sent - steady.total(0, 0)
			assert.True(t, lost <= rate/4, "the steady tenant gets %v, and its share is %d", steady.admitted, rate/4)
			used, all := rush.total(6, 0)+steady.total(6, 0), (seconds-6)*rate/2
			assert.True(t, used >= all*97/100, "%d are admitted of %d: %v and %v", used, all, rush.admitted, steady.admitted)
		})
	}
}

func TestAFairLimitInShadowDoesNotChangeTheSharesOfAnother(t *testing.T) {
	alone, beside := &client{tenant: "rush", perSecond: rushing}, &client{tenant: "rush", perSecond: rushing}
	other, steady := &client{tenant: "steady", perSecond: part(0.5)}, &client{tenant: "steady", perSecond: part(0.5)}
	newWorld(t, rules{}).run(5, nil, alone, other)
	w := newWorld(t, rules{second: int64(rate / 4), secondMode: "shadow"})
	w.run(5, nil, beside, steady)
	if a, b := alone.total(0, 0), beside.total(0, 0); a != b || other.total(0, 0) != steady.total(0, 0) {
		t.Errorf("beside a limit in shadow %v and %v are admitted, alone %v and %v",
			beside.admitted, steady.admitted, alone.admitted, other.admitted)
	}
	d := &steady.exchange.Decision
	assert.True(t, !d.Denied() && d.ShadowDenied, "the last decision is %+v, want a denial in shadow", d.Statuses)
}
