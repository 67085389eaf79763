package metrics

import (
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/limit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/policy"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/reservation"
)

func TestReservedTokensAreHeldUntilTheyAreSettledOrGivenUp(t *testing.T) {
	m := New("0.1.0", everySource())
	b := policy.Bound{Policy: &policy.Policy{Name: "budget", Tier: "gold"}, Cost: 100}
	for _, s := range []reservation.Settlement{
		{Outcome: reservation.Measured, Actual: 30, Change: -70, Delay: 2 * limit.Second},
		{Outcome: reservation.Unmeasured, Delay: limit.Second / 2},
		{Outcome: reservation.TimedOut, Delay: 600 * limit.Second},
		{Outcome: reservation.Late, Actual: 150, Change: 50, Delay: 700 * limit.Second}, // timed out before
		{Outcome: reservation.Measured, Delay: -limit.Second},                           // by the clocks of two nodes
	} {
		m.Settlements().Settled(&b, s)
	}
	if got := testutil.ToFloat64(m.settlements.held.with(heldKey{"budget", "gold"})); got != 200+50+60_000 {
		t.Errorf("%v token seconds, want 60250", got)
	}
}
