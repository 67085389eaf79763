package addresses

import (
	"context"
	"errors"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
)

// Forget implements store.Store.
func (v *View) Forget(ctx context.Context, keys []policy.Key) (int, error) {
	here, err := v.local.Forget(ctx, keys)
	there, failed := v.next.Forget(ctx, keys)
	return here + there, errors.Join(err, failed)
}
