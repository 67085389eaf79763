package rows

import (
	"context"
	"iter"
	"time"
)

// SeenTier is a tier that a node decided requests of a tenant by.
type SeenTier struct {
	Tenant    string
	Namespace string // of the config that decided
	Tier      string
	Source    string    // row, default, or as the config names it: consumer.tag.tier
	Since     time.Time // since when it is reported again and again
	SeenAt    time.Time // when it was last reported
	StoredAt  time.Time // when this was written: it never decreases from one write to the next
}

// SeenTiers yields the tiers of a tenant, or of all tenants if its name is empty, that were written after an instant,
// in the order in which they were written. It holds a connection until it ends.
func (s *Store) SeenTiers(ctx context.Context, tenant string, after time.Time) iter.Seq2[SeenTier, error] {
	return each[SeenTier](ctx, s.pool, "read the tiers that nodes have seen", `
		SELECT n.name AS tenant, t.namespace, t.tier, t.source, t.since, t.seen_at, t.stored_at
		FROM rate_limiter.tenant_tiers t JOIN rate_limiter.usage_names n ON n.id = t.tenant
		WHERE ($1 = '' OR n.name = $1) AND t.stored_at > $2 ORDER BY t.stored_at`, tenant, after)
}
