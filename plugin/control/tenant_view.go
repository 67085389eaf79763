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

// readsScope reports whether the caller reads the numbers of limits of a scope. An address is no org's own: any org's token
// may name it.
func (v view) readsScope(scope policy.Scope) bool {
	return !v.tenant || scope != policy.IP && (v.showShared || !scope.Shared())
}

// bound reports whether the caller reads the numbers of a bound.
func (v view) readsBound(b *policy.Bound) bool {
	return v.readsScope(b.Policy.Scope) && (!v.tenant || b.Key.Group != policy.ByIP)
}

// bindingIndex returns the index of the bound whose numbers the caller reads as those of the decision; -1: of none.
func (v view) bindingIndex(d *decision.Decision) int {
	if !v.tenant {
		return d.Binding
	}
	return d.BindingWhere(v.readsBound)
}

// anyStatus reports whether a bound that the caller reads has a status for which is holds.
func (v view) anyStatus(d *decision.Decision, is func(*policy.Bound, *decision.Status) bool) bool {
	for i := range d.Statuses {
		if b := &d.Resolution.Bounds[i]; v.readsBound(b) && is(b, &d.Statuses[i]) {
			return true
		}
	}
	return false
}

// showsWarning, shadows and degrades are what the decision says of soft zones, shadow limits and Redis, as far as it comes
// from bounds that the caller reads.
func (v view) showsWarning(d *decision.Decision) bool {
	return d.Result == decision.SoftThrottled &&
		v.anyStatus(d, func(b *policy.Bound, s *decision.Status) bool { return b.Enforced() && s.Soft })
}

func (v view) showsShadow(d *decision.Decision) bool {
	return d.ShadowDenied && (d.ShadowReason != decision.Counted || v.anyStatus(d, func(b *policy.Bound, s *decision.Status) bool {
		return !b.Enforced() && s.Source != decision.Unanswered && !s.Admits()
	}))
}

func (v view) showsDegraded(d *decision.Decision) bool {
	return d.Degraded && (d.Reason == decision.StoreAway ||
		v.anyStatus(d, func(_ *policy.Bound, s *decision.Status) bool { return s.Failure != decision.NoFailure }))
}

// filter returns the decision as far as the caller may read it. Where a limit of the org denies, that is all: whether one
// that others spend from denies, too, would show how much is left there, at no cost. Else it is the whole decision.
func (v view) filter(d *decision.Decision) *decision.Decision {
	if !v.tenant || !v.anyStatus(d, decision.Denies) {
		return d
	}
	return d.Filter(v.readsBound)
}

// authorizeTier reports why the caller may not ask about requests that claim a tier: the answer would have the limits of
// other orgs, or show whether there is a tier of that name. The error is an answer.
func (s *Server) authorizeTier(ctx context.Context, policies *policy.Plan, id *identity.Identity, tier string) error {
	if callerOf(ctx).Role != Tenant || tier == "" {
		return nil
	}
	unclaimed := *id
	unclaimed.Tier = ""
	if own, _ := tierOf(policies, &unclaimed, s.now()); tier == own {
		return nil
	}
	return huma.Error403Forbidden("an org's token may claim only its own tier: omit tier")
}

// singleTokenBuckets takes one token for a request from buckets that are not the tenant's own, whatever the request says it costs.
// What a limit itself says that all requests cost there stays.
type singleTokenBuckets struct{ admit.Buckets }

// Take implements [admit.Buckets].
func (m singleTokenBuckets) Take(ctx context.Context, bounds []policy.Bound, statuses []decision.Status) error {
	for i := range bounds {
		if b := &bounds[i]; b.Key.Group != policy.ByTenant && b.Policy.Cost < 0 {
			b.Cost = min(b.Cost, 1)
		}
	}
	return m.Buckets.Take(ctx, bounds, statuses)
}

// withSingleTokens returns a path that decides as path does, but takes modestly from buckets that are not the tenant's own.
func withSingleTokens(path *admit.Path, policies *policy.Plan) *admit.Path {
	next := &admit.Path{
		Now: path.Now, Elapsed: path.Elapsed, Buckets: singleTokenBuckets{path.Buckets}, Meta: path.Meta, Renderer: path.Renderer,
		Observers: path.Observers, FailClosed: path.FailClosed,
	}
	next.Policies.Store(policies)
	return next
}
