package control

import (
	"context"

	"github.com/danielgtaylor/huma/v2"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/admit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/decision"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/identity"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/policy"
)

// view says what a caller reads of limits. An operator reads everything. The token of an org reads the numbers of the
// limits that are counted for the org or for someone in it, as the org's clients do; of a limit that others spend from,
// too, it reads the name, and only where that limit denies and none of its own does.
type view struct {
	tenant     bool // an org's token
	showShared bool // the config's show_shared_limits
}

func (s *Server) viewOf(caller Caller) view {
	return view{tenant: caller.Role == Tenant, showShared: s.Path != nil && s.Path.Renderer.ShowsShared()}
}

// scope reports whether the caller reads the numbers of limits of a scope. An address is no org's own: any org's token
// may name it.
func (v view) scope(scope policy.Scope) bool {
	return !v.tenant || scope != policy.IP && (v.showShared || !scope.Shared())
}

// bound reports whether the caller reads the numbers of a bound.
func (v view) bound(b *policy.Bound) bool {
	return v.scope(b.Policy.Scope) && (!v.tenant || b.Key.Group != policy.ByIP)
}

// binding returns the index of the bound whose numbers the caller reads as those of the decision; -1: of none.
func (v view) binding(d *decision.Decision) int {
	if !v.tenant {
		return d.Binding
	}
	return d.BindingWhere(v.bound)
}

// any reports whether a bound that the caller reads has a status for which is holds.
func (v view) any(d *decision.Decision, is func(*policy.Bound, *decision.Status) bool) bool {
	for i := range d.Statuses {
		if b := &d.Resolution.Bounds[i]; v.bound(b) && is(b, &d.Statuses[i]) {
			return true
		}
	}
	return false
}

// warns, shadows and degrades are what the decision says of soft zones, shadow limits and Redis, as far as it comes
// from bounds that the caller reads.
func (v view) warns(d *decision.Decision) bool {
	return d.Result == decision.SoftThrottled &&
		v.any(d, func(b *policy.Bound, s *decision.Status) bool { return b.Enforced() && s.Soft })
}

func (v view) shadows(d *decision.Decision) bool {
	return d.ShadowDenied && (d.ShadowReason != decision.Counted || v.any(d, func(b *policy.Bound, s *decision.Status) bool {
		return !b.Enforced() && s.Source != decision.Unanswered && !s.Admits()
	}))
}

func (v view) degrades(d *decision.Decision) bool {
	return d.Degraded && (d.Reason == decision.StoreAway ||
		v.any(d, func(_ *policy.Bound, s *decision.Status) bool { return s.Failure != decision.NoFailure }))
}

// own returns the decision as far as the caller may read it. Where a limit of the org denies, that is all: whether one
// that others spend from denies, too, would show how much is left there, at no cost. Else it is the whole decision.
func (v view) own(d *decision.Decision) *decision.Decision {
	if !v.tenant || !v.any(d, decision.Denies) {
		return d
	}
	return d.Filter(v.bound)
}

// mayClaim reports why the caller may not ask about requests that claim a tier: the answer would have the limits of
// other orgs, or show whether there is a tier of that name. The error is an answer.
func (s *Server) mayClaim(ctx context.Context, policies *policy.Plan, id *identity.Identity, tier string) error {
	if callerOf(ctx).Role != Tenant || tier == "" {
		return nil
	}
	unclaimed := *id
	unclaimed.Tier = ""
	if own, _ := tierOf(policies, &unclaimed, s.instant()); tier == own {
		return nil
	}
	return huma.Error403Forbidden("an org's token may claim only its own tier: omit tier")
}

// modest takes one token for a request from buckets that are not the tenant's own, whatever the request says it costs.
// What a limit itself says that all requests cost there stays.
type modest struct{ admit.Buckets }

// Take implements [admit.Buckets].
func (m modest) Take(ctx context.Context, bounds []policy.Bound, statuses []decision.Status) error {
	for i := range bounds {
		if b := &bounds[i]; b.Key.Group != policy.ByTenant && b.Policy.Cost < 0 {
			b.Cost = min(b.Cost, 1)
		}
	}
	return m.Buckets.Take(ctx, bounds, statuses)
}

// modestly returns a path that decides as path does, but takes modestly from buckets that are not the tenant's own.
func modestly(path *admit.Path, policies *policy.Plan) *admit.Path {
	next := &admit.Path{
		Now: path.Now, Elapsed: path.Elapsed, Buckets: modest{path.Buckets}, Meta: path.Meta, Renderer: path.Renderer,
		Observers: path.Observers, FailClosed: path.FailClosed,
	}
	next.Policies.Store(policies)
	return next
}
