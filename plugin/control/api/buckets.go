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

// Buckets are the buckets that all nodes share, without leases or remembered denials in front of them: what the API
// needs of a store.Keeper.
type Buckets interface {
	// Peek shows how buckets stand, and how long each bound would wait, and spends nothing.
	Peek(ctx context.Context, bounds []policy.Bound, statuses []decision.Status) error
	// Forget empties buckets, which restores the full limits of their tenants, and returns how many there were.
	Forget(ctx context.Context, keys []policy.Key) (int, error)
}

// operatorBuckets returns the buckets for operators, who can wait longer than requests.
func (s *Server) operatorBuckets() Buckets {
	if s.OperatorBuckets != nil {
		return s.OperatorBuckets
	}
	return s.Buckets
}

// dryRunDecider returns a decider that peeks. It uses the given policies, and the shared buckets without leases or
// remembered denials in front of them. Its decisions reach no observer, and spend no meta
// limit and no fair share.
func (s *Server) dryRunDecider(policies *resolve.Plan) *admit.Decider {
	decider := s.Decider.With(policies, admit.TakeFunc(s.peek))
	decider.Observers, decider.Meta, decider.Shares = nil, nil, nil
	return decider
}

// peek fills in the statuses as a take would, and spends nothing. Statuses show the buckets as they are, for the
// policies that requests use.
func (s *Server) peek(ctx context.Context, bounds []policy.Bound, statuses []decision.Status) error {
	requested := slices.Clone(bounds)
	for i := range requested {
		requested[i].Policy = s.RequestPolicy(bounds[i].Policy)
	}
	err := s.Buckets.Peek(ctx, requested, statuses)
	for i := range statuses {
		if used := requested[i].Policy; used != bounds[i].Policy && statuses[i].Wait == limit.Never {
			statuses[i].Capacity = used.Limit.Capacity()
		}
	}
	return err
}
