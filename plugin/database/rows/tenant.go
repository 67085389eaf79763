package rows

import (
	"context"
	"fmt"
	"iter"
	"slices"
	"time"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

// Tenant is a tenant as the database has it.
type Tenant struct {
	schema.Tenant

	Revision int64 `json:"revision,omitempty"` // as in Policy
}

// Faults returns everything that is wrong with t by itself, as every way to write a tenant reports it.
func (t Tenant) Faults() []schema.Fault { return t.Tenant.Faults(hasTimeZone) }

// hasTimeZone returns an error, as schema.Faults, unless the time zone of a tenant exists.
func hasTimeZone(t schema.Tenant) error {
	if policy.IsZone(t.TimeZone) {
		return nil
	}
	return schema.Faults{{Path: "time_zone", Message: schema.FieldNamed[schema.Tenant]("time_zone").Must()}}
}

// Tier is a plan of tenants. The plugin's config may have others.
type Tier struct {
	Name        string `json:"name"`
	Description string `json:"description,omitempty"`
	Title       string `json:"title,omitempty"       doc:"What tenants read in place of the name."`
	PriceText   string `json:"price_text,omitempty"  doc:"The price in words, for tenants to read."`
	Revision    int64  `json:"revision,omitempty"` // as in Policy
}

// TenantFilter selects tenants. The zero value selects all that have a row.
type TenantFilter struct {
	Prefix string `query:"prefix" maxLength:"128" doc:"Only names that begin with this."`
	Tier   string `query:"tier"   maxLength:"64"  doc:"Only orgs whose row has this tier."`
	Usage  bool   `query:"usage"                  doc:"Also orgs that have usage, and neither a tier nor a time zone set."`

	After string // only tenants with a larger ID, in the order of bytes: the last one of the page before
	Max   int    // at most so many; 0: all
}

// usedTenants selects the names of tenants that have usage. There are names of endpoints and policies too: a row of
// usage shows which one is a tenant's. It is looked up by an index, first in the table that most tenants have rows in.
const usedTenants = `SELECT 0::bigint AS revision, id, '' AS tier, '' AS time_zone FROM (
		SELECT name AS id FROM rate_limiter.usage_names n WHERE name <> '' AND coalesce(
			(SELECT true FROM rate_limiter.usage_days u WHERE u.tenant = n.id LIMIT 1),
			(SELECT true FROM rate_limiter.usage_hours u WHERE u.tenant = n.id LIMIT 1),
			(SELECT true FROM rate_limiter.usage_minutes u WHERE u.tenant = n.id LIMIT 1), false)
	) used`

// withUsedTenants returns the statement for a page of tenants with a row, and of those with usage alone. It reads a
// page of each kind, and then leaves out what is in both.
func withUsedTenants(page, limit string) string {
	return `SELECT * FROM ((` + tenantTable.selects + page + `) UNION ALL (
			SELECT * FROM (` + usedTenants + page + `) used
			WHERE (SELECT id FROM rate_limiter.tenants t WHERE t.id = used.id COLLATE "C") IS NULL
		)) listed ORDER BY id COLLATE "C"` + limit
}

// Tenants returns the tenants that a filter selects, in the order of their IDs.
func (s *DB) Tenants(ctx context.Context, f TenantFilter) ([]Tenant, error) {
	var w where
	w.equal("tier", f.Tier)
	given(&w, `starts_with(id COLLATE "C", %s)`, f.Prefix)
	given(&w, `id COLLATE "C" > %s`, f.After)
	page := w.String() + ` ORDER BY id COLLATE "C"` + limitTo(f.Max)
	sql := tenantTable.selects + page
	if f.Usage && f.Tier == "" {
		sql = withUsedTenants(page, limitTo(f.Max))
	}
	return readAll[Tenant](ctx, s.pool, "list tenants", sql, w.args...)
}

// SetTenant sets the tier and the time zone of an existing or new tenant. It returns the row after the write, and the
// version in which it is in force.
func (s *DB) SetTenant(ctx context.Context, c Change, t Tenant) (Tenant, int64, error) {
	what := t.String()
	if err := invalid(what, t.Faults()); err != nil {
		return Tenant{}, 0, err
	}
	return tenantTable.put(ctx, s, c, what, t.Revision, tenantTable.byKey(what, t.ID),
		func(Tenant) (Tenant, error) { return t, nil })
}

// TierFilter selects tiers. The zero value selects all.
type TierFilter struct {
	Prefix string `query:"prefix" maxLength:"128" doc:"Only names that begin with this."`

	After string // only tiers with a larger name, in the order of bytes: the last one of the page before
	Max   int    // at most so many; 0: all
}

// Tiers returns the tiers that a filter selects, in the order of their names.
func (s *DB) Tiers(ctx context.Context, f TierFilter) ([]Tier, error) {
	var w where
	given(&w, "starts_with(name, %s)", f.Prefix)
	given(&w, `name COLLATE "C" > %s`, f.After)
	return readAll[Tier](ctx, s.pool, "list tiers",
		tierTable.selects+w.String()+` ORDER BY name COLLATE "C"`+limitTo(f.Max), w.args...)
}

// PutTier writes an existing or new tier. It returns the row after the write, and the version in which it is in force.
func (s *DB) PutTier(ctx context.Context, c Change, t Tier) (Tier, int64, error) {
	what := "tier " + t.Name
	return tierTable.put(ctx, s, c, what, t.Revision, tierTable.byKey(what, t.Name),
		func(Tier) (Tier, error) { return t, nil })
}

func (t Tenant) rowKey() any     { return t.ID }
func (t Tenant) revision() int64 { return t.Revision }
func (t Tier) rowKey() any       { return t.Name }
func (t Tier) revision() int64   { return t.Revision }
func (Tenant) table() any        { return tenantTable }
func (Tier) table() any          { return tierTable }

// unseen returns the warning about tenants of overrides that were never seen: no usage of them is recorded, they have
// no row, and no consumer has their name; "" if there are none. A nil isConsumer knows no consumers.
func unseen(ctx context.Context, q querier, isConsumer func(name string) bool, tenants ...string) (string, error) {
	tenants = slices.DeleteFunc(tenants, func(name string) bool {
		return name == "" || isConsumer != nil && isConsumer(name)
	})
	if len(tenants) == 0 {
		return "", nil
	}
	found, err := scalars[string](ctx, q, unseenTenants, tenants)
	if err != nil || len(found) == 0 {
		return "", err
	}
	text := "tenant " + found[0]
	if more := len(found) - 1; more > 0 {
		text += fmt.Sprintf(" (and %d more)", more)
	}
	return text + " was never seen: no usage of it is recorded, it has no row, and no known consumer has its name; check " +
		"the spelling", nil
}

const unseenTenants = `SELECT DISTINCT t.name FROM unnest($1::text[]) AS t (name)
	WHERE NOT EXISTS (SELECT FROM rate_limiter.tenants WHERE id = t.name)
	AND NOT EXISTS (SELECT FROM rate_limiter.usage_names n WHERE n.name = t.name
		AND (EXISTS (SELECT FROM rate_limiter.usage_minutes WHERE tenant = n.id)
			OR EXISTS (SELECT FROM rate_limiter.usage_hours WHERE tenant = n.id)
			OR EXISTS (SELECT FROM rate_limiter.usage_days WHERE tenant = n.id)))
	ORDER BY t.name`

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
func (s *DB) SeenTiers(ctx context.Context, tenant string, after time.Time) iter.Seq2[SeenTier, error] {
	return each[SeenTier](ctx, s.pool, "read the tiers that nodes have seen", `
		SELECT n.name AS tenant, t.namespace, t.tier, t.source, t.since, t.seen_at, t.stored_at
		FROM rate_limiter.tenant_tiers t JOIN rate_limiter.usage_names n ON n.id = t.tenant
		WHERE ($1 = '' OR n.name = $1) AND t.stored_at > $2 ORDER BY t.stored_at`, tenant, after)
}
