package engine

import (
	"log/slog"
	"sync/atomic"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/decision"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
)

// observer logs the requests that policies in log mode would have denied, and counts denials of the meta limit.
type observer struct {
	log        *slog.Logger
	metaDenied atomic.Uint64
}

// Observe implements admit.Observer.
func (o *observer) Observe(d *decision.Decision) {
	if d.Reason == decision.MetaLimited || d.ShadowReason == decision.MetaLimited {
		o.metaDenied.Add(1)
	}
	if d.ShadowDenied {
		o.logWouldDeny(d)
	}
}

// logWouldDeny logs each policy in log mode that would have denied.
func (o *observer) logWouldDeny(d *decision.Decision) {
	if d.ShadowReason != decision.Counted && d.Mode == policy.Log {
		o.log.Info("would deny",
			"reason", d.ShadowReason.String(), "tenant", d.Identity.Tenant.ID, "endpoint", d.Resolution.Endpoint)
	}
	for i := range d.Statuses {
		bound, status := &d.Resolution.Bounds[i], &d.Statuses[i]
		if bound.Policy.Mode != policy.Log || status.Source == decision.Unanswered || status.Admits() {
			continue
		}
		o.log.Info("would deny",
			"policy", bound.Policy.Name, "scope", bound.Policy.Scope.String(), "tenant", d.Identity.Tenant.ID,
			"tier", d.Resolution.Tier, "endpoint", d.Resolution.Endpoint,
			"cost", bound.Cost, "used", status.Used, "limit", bound.Policy.Describe())
	}
}
