package metrics

import (
	"cmp"
	"strconv"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/bucket/reservation"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/decision"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/identity"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/limit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
)

// Observe implements admit.Observer. Of d it keeps the names of tenants, endpoints, tiers and policies only.
func (m *Metrics) Observe(d *decision.Decision) {
	who, tier := m.tenants.byIdentity(&d.Identity), d.Resolution.Tier
	m.tenants.count(who, laneKey{cmp.Or(d.KnownEndpoint(m.Routes), none), cmp.Or(tier, none), d.Mode}, d.Result)
	if d.ShadowDenied {
		who.shadowDenied.Add(1)
	}
	m.observeIdentity(d)
	switch {
	case d.ShadowReason != decision.Counted:
		m.shadowDenials.with(reasonLabels[d.ShadowReason], none, cmp.Or(tier, none)).Inc()
	case d.Denied() && d.Reason != decision.Counted && d.Reason != decision.StoreAway:
		m.denials.with(reasonLabels[d.Reason], none, cmp.Or(tier, none)).Inc()
	}
	m.observeBounds(d, who)
}

// CountUsageAnswer counts an answer of a config with usage_only, which is no decision.
func (m *Metrics) CountUsageAnswer(status int) { m.usageAnswers.with(strconv.Itoa(status)).Inc() }

// unknownRoute reports whether the request names a route that does not exist.
func (m *Metrics) unknownRoute(d *decision.Decision) bool {
	return m.Routes != nil && d.Identity.Route != "" && !m.Routes(d.Identity.Route)
}

func (m *Metrics) observeIdentity(d *decision.Decision) {
	id := &d.Identity
	if id.Anonymous {
		m.missing.with("tenant").Inc()
	}
	if id.UserMissing {
		m.missing.with("user").Inc()
	}
	if id.Tenant.Kind == identity.Tenant && id.Tier != "" && id.Tier != d.Resolution.Tier {
		m.missing.with("tier").Inc()
	}
	switch {
	case d.Resolution.Banned:
		m.overrides.with("ban", none).Inc()
	case d.Resolution.Exemption.Override != 0:
		m.overrides.with("exempt", none).Inc()
	}
	if by := d.Resolution.Exemption; d.Result == decision.Exempted {
		source := "config"
		if by.Override != 0 {
			source = "row"
		}
		m.exempt.with(by.By, source).Inc()
	}
}

func (m *Metrics) observeBounds(d *decision.Decision, who *tenant) {
	if len(d.Resolution.Bounds) == 0 {
		return
	}
	answered, owns := sourceSet(0), false
	for i := range d.Resolution.Bounds {
		bound, status := &d.Resolution.Bounds[i], &d.Statuses[i]
		if status.Source != decision.Unanswered || status.Failure != decision.NoFailure {
			answered |= 1 << status.Source // others were not read: another bound already denies
		}
		owns = owns || ownBucket(bound, status)
		m.observeBound(d, bound, status)
		if bound.Enforced() && countsWhole(status) {
			m.fullness.observe(bound.Policy.Scope, status.Used, capacity(bound))
		}
		if bound.Override != 0 {
			m.overrides.with("limit", bound.Policy.Scope.String()).Inc()
		}
		if bound.Penalty != 0 {
			m.overrides.with("penalty", bound.Policy.Scope.String()).Inc()
		}
	}
	m.durations.observe(answered, d.Took)
	if owns && who != m.tenants.other && who != m.tenants.anonymous {
		who.updateBuckets(d, m.unknownRoute(d))
	}
}

// observeBound counts what one bound did to the request. A bound that the central store did not answer counts as
// unverified only if the request was admitted and the bound could have denied it.
func (m *Metrics) observeBound(d *decision.Decision, bound *policy.Bound, status *decision.Status) {
	p := bound.Policy
	if status.Failure != decision.NoFailure {
		m.fallbacks.with(status.Failure.String()).Inc()
	}
	switch {
	case status.Source == decision.Unanswered:
		switch {
		case decision.Denies(bound, status):
			if d.Reason == decision.StoreAway {
				m.unavailable.with(p.Name).Inc()
			}
		case status.Failure != decision.NoFailure && bound.Decides() && !d.Denied():
			m.unverified.with(p.Name, policy.FailOpen.String()).Inc()
		}
	case !status.Admits():
		by := &m.shadowDenials
		if bound.Enforced() {
			by = &m.denials
		}
		by.with(p.Name, p.Scope.String(), cmp.Or(d.Resolution.Tier, none)).Inc()
		if status.Source == decision.FairShare {
			m.capped.with(p.Name, p.Mode.String()).Inc()
		}
	case status.Source == decision.Local && status.Failure != decision.NoFailure && bound.Decides() && !d.Denied():
		m.unverified.with(p.Name, policy.FailLocal.String()).Inc()
	}
}

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
		"Reservations by what became of them: measured, refunded (the request used nothing), unmeasured, streamed "+
			"(Kong counts the tokens of streams wrongly), timed_out and dropped (they stay charged), late (measured after "+
			"the timeout, when it was counted as timed_out), lost (the store did not answer, or the limit was changed). Of "+
			"concurrency limits the slots of requests: released at the end of the request, ended_by_deadline (after "+
			"max_duration), late or lost.",
		"policy", "outcome")
	r.held.init(to, "reserved_token_seconds_total",
		"Tokens of limits that settle, and slots of concurrency limits, times the seconds for which requests had them "+
			"reserved. Its rate is the number of tokens or slots that requests in flight hold on average.",
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

func (r *settlements) Reserved(b *policy.Bound) {
	if !b.Key.Slots {
		r.tokens.with(b.Policy.Name, "reserved").Add(float64(b.Cost))
	}
}

func (r *settlements) Settled(b *policy.Bound, s reservation.Settlement) {
	name := b.Policy.Name
	r.settled.with(name, s.Outcome.String()).Inc()
	if !b.Key.Slots {
		r.countTokens(b, s)
	}
	seconds := float64(s.Delay) / float64(limit.Second)
	r.delay.Observe(seconds)
	if s.Outcome != reservation.Late { // which was held until it timed out
		r.held.with(name, cmp.Or(b.Policy.Tier, none)).Add(max(float64(b.Cost)*seconds, 0))
	}
}

func (r *settlements) countTokens(b *policy.Bound, s reservation.Settlement) {
	name := b.Policy.Name
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
