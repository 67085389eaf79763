package outage

import (
	"context"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/bucket/store"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/decision"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
)

// Peek implements store.Store: it shows what fail modes decide where the shared store does not answer. A bucket of this
// process may then start with the usage that the shared store last reported, as it does for a Take.
func (v *View) Peek(ctx context.Context, bounds []policy.Bound, statuses []decision.Status) error {
	if err := store.CheckLengths("peek at", bounds, statuses); err != nil {
		return err
	}
	if len(bounds) == 0 {
		return nil
	}
	if ticket, ok := v.store.enter(bounds, statuses); ok {
		if err := v.store.peekShared(ctx, ticket, bounds, statuses); err != nil {
			return err
		}
	}
	if _, denied, _ := summarize(bounds, statuses); denied {
		return nil
	}
	_, err := v.decideLocally(ctx, bounds, statuses, false)
	return err
}

// peekShared peeks at the shared store for a request that was counted in.
func (s *Store) peekShared(
	ctx context.Context, ticket uint64, bounds []policy.Bound, statuses []decision.Status,
) error {
	defer s.bulkhead.leave(ticket)
	return s.shared.Peek(ctx, bounds, statuses)
}
