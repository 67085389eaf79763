package metrics

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/bucket/reservation"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/limit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
)

// settlements counts what becomes of reservations. It is a reservation.Observer, safe for concurrent use.
type settlements struct {
	tokens  counters
	settled counters
	held    counters
	delay   prometheus.Histogram
}

// settleDelays are from 10 ms to an hour, in seconds.
var settleDelays = []float64{0.01, 0.05, 0.1, 0.5, 1, 5, 10, 30, 60, 300, 600, 3600}

func (r *settlements) init(to prometheus.Registerer) {
	r.tokens.init(to, "settled_tokens_total",
		"Tokens of limits that settle: reserved (taken from the bucket when the request came), used (what measured requests "+
			"really used), returned (to the bucket), unreturned (due back, but the bucket had refilled or begun a window, the "+
			"limit was changed, or the store did not answer), overspent (charged beyond the reservation).",
		"policy", "kind")
	r.settled.init(to, "settlements_total",
		"Reservations by what became of them: measured, refunded (the request used nothing), unmeasured, timed_out and "+
			"dropped (they stay charged), late (measured after the timeout, when it was counted as timed_out), lost (the store "+
			"did not answer, or the limit was changed).",
		"policy", "outcome")
	r.held.init(to, "reserved_token_seconds_total",
		"Tokens of limits that settle times the seconds for which requests had them reserved. Its rate is the number of "+
			"tokens that requests in flight hold on average.",
		"policy", "tier")
	r.delay = prometheus.NewHistogram(prometheus.HistogramOpts{
		Name:    prefix + "settle_delay_seconds",
		Help:    "Seconds from a reservation until it was settled or given up.",
		Buckets: settleDelays,
	})
	to.MustRegister(r.delay)
}

// Settlements returns the observer that counts what becomes of reservations.
func (m *Metrics) Settlements() reservation.Observer { return &m.settlements }

// Reserved implements reservation.Observer.
func (r *settlements) Reserved(b *policy.Bound) {
	r.tokens.with(b.Policy.Name, "reserved").Add(float64(b.Cost))
}

// Settled implements reservation.Observer.
func (r *settlements) Settled(b *policy.Bound, s reservation.Settlement) {
	name := b.Policy.Name
	r.settled.with(name, s.Outcome.String()).Inc()
	if s.Outcome == reservation.Measured || s.Outcome == reservation.Late {
		r.tokens.with(name, "used").Add(float64(s.Actual))
	}
	switch {
	case s.Change < 0:
		r.tokens.with(name, "returned").Add(float64(-s.Change))
	case s.Change > 0:
		r.tokens.with(name, "overspent").Add(float64(s.Change))
	}
	if lacking := unreturned(b, s); lacking > 0 {
		r.tokens.with(name, "unreturned").Add(float64(lacking))
	}
	seconds := float64(s.Delay) / float64(limit.Second)
	r.delay.Observe(seconds)
	if s.Outcome != reservation.Late { // which was held until it timed out
		r.held.with(name, orNone(b.Policy.Tier)).Add(max(float64(b.Cost)*seconds, 0))
	}
}

// unreturned returns how many tokens of a reservation were due back and did not come back.
func unreturned(b *policy.Bound, s reservation.Settlement) int64 {
	switch s.Outcome {
	case reservation.Measured, reservation.Refunded, reservation.Lost:
		return b.Cost - s.Actual + min(s.Change, 0)
	default: // the reservation stays charged
		return 0
	}
}
