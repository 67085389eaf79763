package outage

import (
	"context"
	"fmt"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/decision"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/limit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/policy"
)

// TakeLocally decides bounds by this node's shares of their limits, whatever the state of the shared store and their
// fail modes: for subjects that must not leave anything there. Nothing is charged later. It implements admit.Buckets;
// the statuses have the source Local and no failure.
func (v *View) TakeLocally(ctx context.Context, bounds []policy.Bound, statuses []decision.Status) error {
	shares, err := v.sharesOf(bounds)
	if err != nil {
		return err
	}
	if err := v.store.fallback.Take(ctx, shares, statuses); err != nil {
		return fmt.Errorf("take %d bounds locally: %w", len(bounds), err)
	}
	for i := range statuses {
		statuses[i].Source = decision.Local
		statuses[i].Wait = localWait(&bounds[i], statuses[i].Wait, 0)
	}
	return nil
}

// RefundLocally returns what TakeLocally spent for the statuses that are Charged, and clears Charged.
func (v *View) RefundLocally(bounds []policy.Bound, statuses []decision.Status) error {
	shares, err := v.sharesOf(bounds)
	if err != nil {
		return err
	}
	if err := v.store.fallback.Refund(shares, statuses); err != nil {
		return fmt.Errorf("refund %d bounds locally: %w", len(bounds), err)
	}
	return nil
}

// sharesOf returns bounds with this node's shares of their limits.
func (v *View) sharesOf(bounds []policy.Bound) ([]policy.Bound, error) {
	live, all := v.live(), make([]policy.Bound, len(bounds))
	for i := range bounds {
		share, err := v.shares.get(bounds[i].Policy, live)
		if err != nil {
			return nil, err
		}
		all[i] = policy.Bound{Policy: share, Key: bounds[i].Key, Cost: bounds[i].Cost}
	}
	return all, nil
}

// localWait returns the wait of a client that this node's share of a limit denies. If the cost exceeds the share but
// not the limit, it is the time that the shared store is expected to be unavailable, a second at least.
func localWait(b *policy.Bound, wait, away limit.Micros) limit.Micros {
	if wait == limit.Never && b.Cost <= b.Policy.Limit.Capacity() {
		return max(away, limit.Second)
	}
	return wait
}
