package outage

import (
	"context"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/bucket/store"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/decision"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
)

// Refund implements store.Store. What this process admitted is not charged to the shared store later.
func (v *View) Refund(ctx context.Context, bounds []policy.Bound, statuses []decision.Status) error {
	if err := store.CheckLengths("refund", bounds, statuses); err != nil {
		return err
	}
	if err := v.store.refundShared(ctx, bounds, statuses); err != nil {
		return err
	}
	v.store.debts.cancel(bounds, statuses)
	return v.Local().Refund(ctx, bounds, statuses)
}
