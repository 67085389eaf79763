package outage

import (
	"context"
	"errors"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
)

// Forget implements store.Store, also for what this process recorded of the buckets: what it admitted from them during
// an outage is not charged later.
func (v *View) Forget(ctx context.Context, keys []policy.Key) (int, error) {
	s := v.store
	for i := range keys {
		s.sightings.forget(&keys[i])
	}
	s.debts.forget(keys)
	here, err := s.fallback.Forget(ctx, keys)
	there, failed := s.shared.Forget(ctx, keys)
	return here + there, errors.Join(err, failed)
}
