package share

import (
	"testing"

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
