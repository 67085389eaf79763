package outage

import (
	"context"
	"fmt"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/bucket/store"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/decision"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/limit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
)

// Local returns the buckets of this process with this node's shares of the limits, whatever the state of the central
// store and the fail modes: for subjects that must not leave anything there. Nothing is charged later. Statuses have
// the source Local and no failure.
func (v *Store) Local() store.Refunder { return local{v} }

// local is the store of [Store.Local].
type local struct{ view *Store }

// Take implements store.Store.
func (l local) Take(ctx context.Context, bounds []policy.Bound, statuses []decision.Status) error {
	shares, err := l.limited(bounds)
	if err != nil {
		return err
	}
	if err := l.view.store.fallback.Take(ctx, shares, statuses); err != nil {
		return fmt.Errorf("take %d bounds locally: %w", len(bounds), err)
	}
	markLocal(bounds, statuses)
	return nil
}

// Peek implements store.Store.
func (l local) Peek(ctx context.Context, bounds []policy.Bound, statuses []decision.Status) error {
	shares, err := l.limited(bounds)
	if err != nil {
		return err
	}
	if err := l.view.store.fallback.Peek(ctx, shares, statuses); err != nil {
		return fmt.Errorf("peek at %d bounds locally: %w", len(bounds), err)
	}
	markLocal(bounds, statuses)
	return nil
}

// Refund implements store.Refunder.
func (l local) Refund(ctx context.Context, bounds []policy.Bound, statuses []decision.Status) error {
	shares, err := l.limited(bounds)
	if err != nil {
		return err
	}
	if err := l.view.store.fallback.Refund(ctx, shares, statuses); err != nil {
		return fmt.Errorf("refund %d bounds locally: %w", len(bounds), err)
	}
	return nil
}

// limited returns bounds with this node's shares of their limits.
func (l local) limited(bounds []policy.Bound) ([]policy.Bound, error) {
	live, all := l.view.live(), make([]policy.Bound, len(bounds))
	for i := range bounds {
		share, err := l.view.shares.get(bounds[i].Policy, live)
		if err != nil {
			return nil, err
		}
		all[i] = policy.Bound{Policy: share, Key: bounds[i].Key, Cost: bounds[i].Cost}
	}
	return all, nil
}

// markLocal marks statuses as answers of this node's shares.
func markLocal(bounds []policy.Bound, statuses []decision.Status) {
	for i := range statuses {
		statuses[i].Source = decision.Local
		statuses[i].Wait = localWait(&bounds[i], statuses[i].Wait, 0)
	}
}

// localWait returns the wait of a client that this node's share of a limit denies. If the cost exceeds the share but
// not the limit, it is the time that the central store is expected to be unavailable, a second at least.
func localWait(b *policy.Bound, wait, outage limit.Micros) limit.Micros {
	if wait == limit.Never && b.Cost <= b.Policy.Limit.Capacity() {
		return max(outage, limit.Second)
	}
	return wait
}
