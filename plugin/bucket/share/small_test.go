package share

import (
	"fmt"
	"testing"
)

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
	if lost := large.sent - large.total(0, 0); lost > share {
		t.Errorf("it gets %v, and demands %g", large.admitted, large.perSecond)
	}
}
