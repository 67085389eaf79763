package metrics

import (
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/bucket/reservation"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/limit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/settle"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
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
	got := testutil.ToFloat64(m.settlements.held.with("budget", "gold"))
	assert.True(t, got == 200+50+60_000, "%v token seconds, want 60250", got)
}

func TestTokensThatWereDueBackAndDidNotComeBackAreCounted(t *testing.T) {
	m := New("0.1.0", everySource())
	b := policy.Bound{Policy: &policy.Policy{Name: "budget"}, Cost: 100}
	for _, s := range []reservation.Settlement{
		{Outcome: reservation.Measured, Actual: 30, Change: -70},
		{Outcome: reservation.Measured, Actual: 130, Change: 30},
		{Outcome: reservation.Late, Actual: 30},              // by the rule
		{Outcome: reservation.Unmeasured},                    // by the rule
		{Outcome: reservation.Measured, Actual: 60},          // 40: the limit was changed
		{Outcome: reservation.Refunded, Change: -98},         // 2: the bucket had refilled
		{Outcome: reservation.Lost, Actual: 95},              // 5: the store did not answer
		{Outcome: reservation.Lost, Actual: 130},             // a charge that was lost
		{Outcome: reservation.Measured, Actual: 100},         // exactly the reservation
		{Outcome: reservation.Refunded, Change: -100},        // all of it
		{Outcome: reservation.TimedOut},                      // by the rule
		{Outcome: reservation.Late, Actual: 150, Change: 50}, // charged more
	} {
		m.Settlements().Settled(&b, s)
	}
	for kind, want := range map[string]float64{
		"unreturned": 40 + 2 + 5, "returned": 70 + 98 + 100, "overspent": 30 + 50,
	} {
		got := testutil.ToFloat64(m.settlements.tokens.with("budget", kind))
		assert.True(t, got == want, "%v tokens are %v, want %v", got, kind, want)
	}
}

func TestAStreamedAnswerIsCountedAsStreamed(t *testing.T) {
	rule, err := settle.New(schema.Settle{
		Sources: []schema.SettleSource{{From: "log.ai.*.usage.total_tokens"}}, Reserve: 20,
	}, nil)
	require.NoError(t, err)
	r := reservation.Record{Bounds: []policy.Bound{{Policy: &policy.Policy{Name: "budget", Settle: rule}, Cost: 20}}}
	a := settle.Answer{Status: 200, Source: settle.SourceService, Tried: true, Log: settle.ParseLog([]byte(
		`{"response":{"headers":{"content-type":"text/event-stream"}},"ai":{"proxy":{"usage":{"total_tokens":2}}}}`))}
	m := New("0.1.0", everySource())
	r.ReportSettled(m.Settlements(), r.Measure(&a, false), limit.Second)
	assert.EqualValues(t, 1, testutil.ToFloat64(m.settlements.settled.with("budget", "streamed")))
}
