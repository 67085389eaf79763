package metrics

import (
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/decision"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/identity"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/policy"
)

// Observe implements admit.Observer. It keeps names of tenants, endpoints, tiers and policies, and no other of d's.
func (m *Metrics) Observe(d *decision.Decision) {
	who, tier := m.tenants.of(&d.Identity), d.Resolution.Tier
	m.tenants.count(who, laneKey{orNone(m.endpoint(d)), orNone(tier), d.Mode}, d.Result)
	m.observeIdentity(d)
	switch {
	case d.ShadowReason != decision.Counted:
		m.shadowDenials.of(policyKey{reason: d.ShadowReason, tier: tier}).Inc()
	case d.Denied() && d.Reason != decision.Counted && d.Reason != decision.StoreAway:
		m.denials.of(policyKey{reason: d.Reason, tier: tier}).Inc()
	}
	m.observeBounds(d, who)
}

// endpoint is the name of the request's endpoint; "" where that may not be a label.
func (m *Metrics) endpoint(d *decision.Decision) string {
	if d.Resolution.Endpoint == d.Identity.Route && m.invented(d) {
		return ""
	}
	return d.Resolution.Endpoint
}

// invented tells whether the request names a route that there is not.
func (m *Metrics) invented(d *decision.Decision) bool {
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
		m.overrides.of(overrideKey{effect: ban}).Inc()
	case d.Resolution.Exempt:
		m.overrides.of(overrideKey{effect: exemption}).Inc()
	}
}

func (m *Metrics) observeBounds(d *decision.Decision, who *tenant) {
	if len(d.Resolution.Bounds) == 0 {
		return
	}
	answered, owns := answerers(0), false
	for i := range d.Resolution.Bounds {
		bound, status := &d.Resolution.Bounds[i], &d.Statuses[i]
		if status.Source != decision.Unanswered || status.Failure != decision.NoFailure {
			answered = answered.with(status.Source) // others were not asked: a bound beside them is known to refuse
		}
		owns = owns || own(bound, status)
		m.observeBound(d, bound, status)
		if bound.Enforced() && exact(status) {
			m.fullness.observe(bound.Policy.Scope, status.Used, capacity(bound))
		}
		if bound.Override != 0 {
			m.overrides.of(overrideKey{otherLimit, bound.Policy.Scope}).Inc()
		}
		if bound.Penalty != 0 {
			m.overrides.of(overrideKey{penalty, bound.Policy.Scope}).Inc()
		}
	}
	m.durations.observe(answered, d.Took)
	if owns && who != m.tenants.other && who != m.tenants.strangers {
		who.see(d, m.invented(d))
	}
}

// observeBound counts what one bound did to the request. A bound that a node answered for, or nobody, vouches for
// nothing where the request was refused, or where it could not have refused.
func (m *Metrics) observeBound(d *decision.Decision, bound *policy.Bound, status *decision.Status) {
	p := bound.Policy
	if status.Failure != decision.NoFailure {
		m.fallbacks.of(failureKey(status.Failure)).Inc()
	}
	switch {
	case status.Source == decision.Unanswered:
		switch {
		case decision.Denies(bound, status):
			if d.Reason == decision.StoreAway {
				m.unavailable.of(unavailableKey(p.Name)).Inc()
			}
		case status.Failure != decision.NoFailure && bound.Enforced() && !d.Denied():
			m.unverified.of(unverifiedKey{p.Name, policy.FailOpen}).Inc()
		}
	case !status.Admits():
		by := &m.shadowDenials
		if bound.Enforced() {
			by = &m.denials
		}
		by.of(policyKey{policy: p.Name, scope: p.Scope, tier: d.Resolution.Tier}).Inc()
	case status.Source == decision.Local && status.Failure != decision.NoFailure && bound.Enforced() && !d.Denied():
		m.unverified.of(unverifiedKey{p.Name, policy.FailLocal}).Inc()
	}
}
