package outage

import (
	"context"
	"errors"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/bucket/store"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/decision"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/policy"
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

// Refund implements store.Store. What this process admitted is not charged to the shared store later.
func (v *View) Refund(ctx context.Context, bounds []policy.Bound, statuses []decision.Status) error {
	if err := store.CheckLengths("refund", bounds, statuses); err != nil {
		return err
	}
	if err := v.store.refundShared(ctx, bounds, statuses); err != nil {
		return err
	}
	v.store.ledger.cancel(bounds, statuses)
	return v.Local().Refund(ctx, bounds, statuses)
}

// Forget implements store.Store, also for what this process recorded of the buckets: what it admitted from them during
// an outage is not charged later.
func (v *View) Forget(ctx context.Context, keys []policy.Key) (int, error) {
	s := v.store
	for i := range keys {
		s.sightings.forget(&keys[i])
	}
	s.ledger.forget(keys)
	here, err := s.fallback.Forget(ctx, keys)
	there, failed := s.shared.Forget(ctx, keys)
	return here + there, errors.Join(err, failed)
}
