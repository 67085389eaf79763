package lease

import (
	"context"
	"slices"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/bucket/store"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/decision"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
)

// Refund implements store.Store, for what the central store or this process has spent. What was drawn from a lease
// stays spent, because its grant may have ended.
func (v *Store) Refund(ctx context.Context, bounds []policy.Bound, statuses []decision.Status) error {
	if err := store.CheckLengths("refund", bounds, statuses); err != nil {
		return err
	}
	taken := slices.Clone(bounds)
	for i := range taken {
		if t := v.store.terms.get(taken[i].Policy); t != nil {
			taken[i].Policy = t.policy
		}
		if status := &statuses[i]; status.Charged && status.Source == source {
			status.Charged, status.Returned = false, 0
		}
	}
	return v.next.Refund(ctx, taken, statuses)
}
