package share

import (
	"testing"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/soak"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/limit"
)

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
			if n := c.total(0, 0); n != c.sent {
				t.Errorf("after its rush the tenant gets %d of %d: %v", n, c.sent, c.admitted)
			}
		}
	})
}
