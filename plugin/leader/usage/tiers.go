package usage

import (
	"context"
	"fmt"
	"time"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/observe/usage"
)

// tiersKept bounds the tiers of a tenant: the ones that were seen last.
const tiersKept = 8

// tiers holds when tiers were seen last.
type tiers map[usage.Tier]time.Time

// addBatch adds the tiers of a batch, which ended at an instant: the last one was seen then, the others just before.
func (t tiers) addBatch(end time.Time, seen []usage.Tier) {
	for i := range seen {
		before := time.Duration(len(seen)-1-i) * time.Microsecond
		t[seen[i]] = later(t[seen[i]], end.Add(-before))
	}
}

// writeTiers stores the tiers, except those of tenants that have no name in the database.
func (u *unpacking) writeTiers(ctx context.Context) error {
	type row struct {
		Tenant, Namespace, Tier, Source string
		SeenAt                          time.Time
	}
	var rows []row
	for t, at := range u.tiers {
		rows = append(rows, row{t.Tenant, t.Namespace, t.Tier, t.Source, at})
	}
	if len(rows) == 0 {
		return nil
	}
	columns := columnsOf(rows)
	if _, err := u.tx.Exec(ctx, upsertTiers, columns...); err != nil {
		return fmt.Errorf("write tiers: %w", err)
	}
	if _, err := u.tx.Exec(ctx, deleteTiers, columns[0], tiersKept); err != nil {
		return fmt.Errorf("delete old tiers: %w", err)
	}
	return nil
}

const (
	upsertTiers = `INSERT INTO rate_limiter.tenant_tiers AS t (tenant, namespace, tier, source, seen_at, since, stored_at)
		SELECT n.id, k.namespace, k.tier, k.source, k.seen_at, k.seen_at, clock_timestamp()
		FROM unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::timestamptz[])
			k (name, namespace, tier, source, seen_at) JOIN rate_limiter.usage_names n USING (name)
		ON CONFLICT (tenant, namespace, tier, source) DO UPDATE
		SET seen_at = excluded.seen_at, stored_at = excluded.stored_at,
			since = CASE WHEN excluded.seen_at - t.seen_at < interval '10 minutes' THEN t.since ELSE excluded.since END
		WHERE t.seen_at < excluded.seen_at`

	deleteTiers = `DELETE FROM rate_limiter.tenant_tiers WHERE ctid IN (SELECT ctid FROM (
			SELECT ctid, row_number() OVER (PARTITION BY tenant ORDER BY seen_at DESC) AS place
			FROM rate_limiter.tenant_tiers
			WHERE tenant IN (SELECT id FROM rate_limiter.usage_names WHERE name = ANY ($1::text[]))) t
		WHERE place > $2)`
)
