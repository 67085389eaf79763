package api

import (
	"context"

	"github.com/danielgtaylor/huma/v2"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/admit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/decision"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/identity"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/resolve"
)

// view selects the numbers of limits that a caller may read. Operators read all. The token of an org reads those of
// limits that count the org or its users, as the org's clients do. Of a limit shared with other orgs it reads the name
// only, and only if that limit denies and none of its own does.
type view struct {
	tenant     bool // an org's token
	showShared bool // the config's show_shared_limits
}

func (s *Server) viewOf(caller Caller) view {
	tenant := caller.Role == Tenant
	return view{tenant: tenant, showShared: tenant && s.Decider != nil && s.Decider.Renderer.ShowsShared()}
}

// readsScope reports whether the caller may read the numbers of limits of a scope. Addresses belong to no org: any
// org's token may name one.
func (v view) readsScope(scope policy.Scope) bool {
	return !v.tenant || scope != policy.IP && (v.showShared || !scope.Shared())
}

// readsBound reports whether the caller may read the numbers of a bound.
func (v view) readsBound(b *policy.Bound) bool {
	return v.readsScope(b.Policy.Scope) && (!v.tenant || b.Key.Group != policy.ByIP)
}

// bindingIndex returns the index of the binding bound among those that the caller may read, or -1.
func (v view) bindingIndex(d *decision.Decision) int {
	if !v.tenant {
		return d.Binding
	}
	return d.BindingWhere(v.readsBound)
}

// anyStatus reports whether is holds for the status of a bound that the caller may read.
func (v view) anyStatus(d *decision.Decision, is func(*policy.Bound, *decision.Status) bool) bool {
	for i := range d.Statuses {
		if b := &d.Resolution.Bounds[i]; v.readsBound(b) && is(b, &d.Statuses[i]) {
			return true
		}
	}
	return false
}

// showsWarning reports whether a bound that the caller may read is in its soft zone.
func (v view) showsWarning(d *decision.Decision) bool {
	return d.Result == decision.SoftThrottled &&
		v.anyStatus(d, func(b *policy.Bound, s *decision.Status) bool { return b.Decides() && s.Soft })
}

// showsShadow reports whether the request would be denied by a shadow limit that the caller may read, or for a reason
// other than a limit.
func (v view) showsShadow(d *decision.Decision) bool {
	return d.ShadowDenied &&
		(d.ShadowReason != decision.Counted || v.anyStatus(d, func(b *policy.Bound, s *decision.Status) bool {
			return !b.Enforced() && s.Source != decision.Unanswered && !s.Admits()
		}))
}

// showsDegraded reports whether Redis failed to answer for a bound that the caller may read.
func (v view) showsDegraded(d *decision.Decision) bool {
	return d.Degraded && (d.Reason == decision.StoreAway ||
		v.anyStatus(d, func(_ *policy.Bound, s *decision.Status) bool { return s.Failure != decision.NoFailure }))
}

// filter returns the part of a decision that the caller may read. If a limit of the org denies, that excludes limits
// shared with others: whether one of those denies too would reveal how much is left there, at no cost.
func (v view) filter(d *decision.Decision) *decision.Decision {
	if !v.tenant || !v.anyStatus(d, decision.Denies) {
		return d
	}
	return d.Filter(v.readsBound)
}

// authorizeTier returns why the caller may not claim a tier: the answer would show limits of other orgs, or whether the
// tier exists. The error is an answer.
func (s *Server) authorizeTier(ctx context.Context, policies *resolve.Plan, id *identity.Identity, tier string) error {
	if callerOf(ctx).Role != Tenant || tier == "" {
		return nil
	}
	unclaimed := *id
	unclaimed.Tier = s.Tiers.Trusted(id.Tenant.ID)
	if tier == policies.Explain(&unclaimed, s.now()).Tier {
		return nil
	}
	return huma.Error403Forbidden("an org's token may claim only its own tier: omit tier")
}

// singleTokenBuckets take one token from buckets that are not the tenant's own, whatever cost the request claims. A
// cost set by the policy itself still applies.
type singleTokenBuckets struct{ admit.Buckets }

func (m singleTokenBuckets) Take(ctx context.Context, bounds []policy.Bound, statuses []decision.Status) error {
	for i := range bounds {
		if b := &bounds[i]; b.Key.Group != policy.ByTenant && b.Policy.Cost < 0 {
			b.Cost = min(b.Cost, 1)
		}
	}
	return m.Buckets.Take(ctx, bounds, statuses)
}
