package metrics

import (
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/decision"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/identity"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/policy"
)

// Observe implements admit.Observer. It keeps names of tiers and policies, which are the configuration's, and nothing
// else of d.
func (m *Metrics) Observe(d *decision.Decision) {
	tier := d.Resolution.Tier
	m.requests.of(requestKey{tier, d.Result, d.Mode}).Inc()
	m.observeIdentity(d)
	switch {
	case d.ShadowReason != decision.Counted:
		m.shadowDenials.of(policyKey{reason: d.ShadowReason, tier: tier}).Inc()
	case d.Denied() && d.Reason != decision.Counted && d.Reason != decision.StoreAway:
		m.denials.of(policyKey{reason: d.Reason, tier: tier}).Inc()
	}
	for i := range d.Resolution.Bounds {
		m.observeBound(d, &d.Resolution.Bounds[i], &d.Statuses[i])
	}
}

func (m *Metrics) observeIdentity(d *decision.Decision) {
	id := &d.Identity
	if id.Stranger {
		m.missingTenants.Inc()
	}
	if id.UserMissing {
		m.missingUsers.Inc()
	}
	if id.Tenant.Kind == identity.Tenant && id.Tier != "" && id.Tier != d.Resolution.Tier {
		m.unknownTiers.Inc()
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
	case status.Source == decision.Local && bound.Enforced() && !d.Denied():
		m.unverified.of(unverifiedKey{p.Name, policy.FailLocal}).Inc()
	}
}
