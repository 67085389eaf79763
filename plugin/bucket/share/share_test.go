package share

import (
	"testing"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/limit"
)

// places are where a limit can be shared: in one process, and through Redis by one node or several, with and without
// leases, and with clocks that differ by hours.
var places = map[string]rules{
	"in one process":               {},
	"one node":                     {nodes: 1},
	"five nodes":                   {nodes: 5},
	"five nodes with leases":       {nodes: 5, leased: true},
	"five nodes, clocks apart":     {nodes: 5, spread: true},
	"five nodes, a minute's burst": {nodes: 5, burst: 60 * rate},
}

func TestATenantWithinItsShareLosesAtMostASecondOfItWhenAnotherRushes(t *testing.T) {
	for name, r := range places {
		t.Run(name, func(t *testing.T) {
			const share, seconds = rate / 2, 12
			steady := &client{tenant: "steady", perSecond: share}
			rush := &client{tenant: "rush", perSecond: 50 * share, from: 2 * limit.Second}
			newWorld(t, r).run(seconds, nil, steady, rush)
			if lost := seconds*share - steady.total(0, 0); lost > share {
				t.Errorf("the steady tenant lost %d requests of %d a second: %v", lost, share, steady.admitted)
			}
			t.Logf("steady %v, rush %v", steady.admitted, rush.admitted)
		})
	}
}

func TestTheLimitIsUsedAlmostInFullWhileDemandExceedsIt(t *testing.T) {
	for name, r := range places {
		t.Run(name, func(t *testing.T) {
			used := map[bool]int{}
			for _, unfair := range []bool{true, false} {
				r.unfair = unfair
				a, b := &client{tenant: "a", perSecond: 900}, &client{tenant: "b", perSecond: 4000}
				c := &client{tenant: "c", tier: "enterprise", perSecond: 300}
				newWorld(t, r).run(60, nil, a, b, c)
				used[unfair] = a.total(0, 0) + b.total(0, 0) + c.total(0, 0)
			}
			if used[false] < used[true]*97/100 || used[false] > used[true]*101/100 {
				t.Errorf("with shares %d are admitted, without %d", used[false], used[true])
			}
			t.Logf("with shares %d, without %d", used[false], used[true])
		})
	}
}
