package share

import (
	"fmt"
	"testing"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/limit"
)

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
			if lost := steady.sent - steady.total(0, 0); lost > rate/4 {
				t.Errorf("the steady tenant gets %v, and its share is %d", steady.admitted, rate/4)
			}
			if used, all := rush.total(6, 0)+steady.total(6, 0), (seconds-6)*rate/2; used < all*97/100 {
				t.Errorf("%d are admitted of %d: %v and %v", used, all, rush.admitted, steady.admitted)
			}
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
	if d := &steady.exchange.Decision; d.Denied() || !d.ShadowDenied {
		t.Errorf("the last decision is %+v, want a denial in shadow", d.Statuses)
	}
}
