package api

import (
	"context"
	"slices"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/admit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/decision"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/limit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/resolve"
)

// dryRunDecider returns a decider that peeks. It uses the given policies, and the shared buckets without leases or
// remembered denials in front of them. Its decisions reach no observer and spend no meta limit.
func (s *Server) dryRunDecider(policies *resolve.Plan) *admit.Decider {
	decider := &admit.Decider{
		Now:        s.Decider.Now,
		Elapsed:    s.Decider.Elapsed,
		Buckets:    peekingBuckets{s.Buckets, s.RequestPolicy},
		Renderer:   s.Decider.Renderer,
		FailClosed: s.Decider.FailClosed,
	}
	decider.Policies.Store(policies)
	return decider
}

// peekingBuckets peeks at buckets where a path takes from them.
type peekingBuckets struct {
	shared        Buckets
	requestPolicy func(*policy.Policy) *policy.Policy // see [Options]
}

// Take implements [admit.Buckets], without spending. Statuses show the buckets as they are, for the policies that
// requests use.
func (p peekingBuckets) Take(ctx context.Context, bounds []policy.Bound, statuses []decision.Status) error {
	requested := slices.Clone(bounds)
	for i := range requested {
		requested[i].Policy = p.requestPolicy(bounds[i].Policy)
	}
	err := p.shared.Peek(ctx, requested, statuses)
	for i := range statuses {
		if used := requested[i].Policy; used != bounds[i].Policy && statuses[i].Wait == limit.Never {
			statuses[i].Capacity = used.Limit.Capacity()
		}
	}
	return err
}
