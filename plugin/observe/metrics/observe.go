package metrics

import (
	"strconv"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/decision"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/identity"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
)

// Observe implements admit.Observer. Of d it keeps the names of tenants, endpoints, tiers and policies only.
func (m *Metrics) Observe(d *decision.Decision) {
	who, tier := m.tenants.byIdentity(&d.Identity), d.Resolution.Tier
	m.tenants.count(who, laneKey{orNone(m.endpoint(d)), orNone(tier), d.Mode}, d.Result)
	if d.ShadowDenied {
		who.shadowDenied.Add(1)
	}
	m.observeIdentity(d)
	switch {
	case d.ShadowReason != decision.Counted:
		m.shadowDenials.with(reasonLabels[d.ShadowReason], none, orNone(tier)).Inc()
	case d.Denied() && d.Reason != decision.Counted && d.Reason != decision.StoreAway:
		m.denials.with(reasonLabels[d.Reason], none, orNone(tier)).Inc()
	}
	m.observeBounds(d, who)
}

// CountUsageAnswer counts an answer of a config with usage_only, which is no decision.
func (m *Metrics) CountUsageAnswer(status int) { m.usageAnswers.with(strconv.Itoa(status)).Inc() }

// endpoint returns the name of the request's endpoint, or "" if that must not be a label.
func (m *Metrics) endpoint(d *decision.Decision) string {
	if d.Resolution.Endpoint == d.Identity.Route && m.unknownRoute(d) {
		return ""
	}
	return d.Resolution.Endpoint
}

// unknownRoute reports whether the request names a route that does not exist.
func (m *Metrics) unknownRoute(d *decision.Decision) bool {
	return m.Routes != nil && d.Identity.Route != "" && !m.Routes(d.Identity.Route)
}

func (m *Metrics) observeIdentity(d *decision.Decision) {
	id := &d.Identity
	if id.Anonymous {
		m.missingTenants.Inc()
	}
	if id.UserMissing {
		m.missingUsers.Inc()
	}
	if id.Tenant.Kind == identity.Tenant && id.Tier != "" && id.Tier != d.Resolution.Tier {
		m.unknownTiers.Inc()
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
			answered = answered.add(status.Source) // others were not read: another bound already denies
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
		case status.Failure != decision.NoFailure && bound.Enforced() && !d.Denied():
			m.unverified.with(p.Name, policy.FailOpen.String()).Inc()
		}
	case !status.Admits():
		by := &m.shadowDenials
		if bound.Enforced() {
			by = &m.denials
		}
		by.with(p.Name, p.Scope.String(), orNone(d.Resolution.Tier)).Inc()
		if status.Source == decision.FairShare {
			m.capped.with(p.Name, p.Mode.String()).Inc()
		}
	case status.Source == decision.Local && status.Failure != decision.NoFailure && bound.Enforced() && !d.Denied():
		m.unverified.with(p.Name, policy.FailLocal.String()).Inc()
	}
}
