package pgstore

import "context"

// NameKind is a kind of names that the database has.
type NameKind string

// The kinds of names.
const (
	TenantNames NameKind = "tenant" // with a row, a policy, an override or usage
	PolicyNames NameKind = "policy"
	TierNames   NameKind = "tier" // also those that only tenants or policies name
)

// nameQueries select the names of each kind that begin with $1.
var nameQueries = map[NameKind]string{
	TenantNames: `SELECT id AS name FROM rate_limiter.tenants WHERE starts_with(id, $1)
		UNION SELECT tenant FROM rate_limiter.policies WHERE starts_with(tenant, $1)
		UNION SELECT tenant FROM rate_limiter.overrides WHERE starts_with(tenant, $1)
		UNION SELECT name FROM rate_limiter.usage_names n WHERE starts_with(name, $1) AND ` + hasUsage,
	PolicyNames: `SELECT DISTINCT name FROM rate_limiter.policies WHERE starts_with(name, $1)`,
	TierNames: `SELECT name FROM rate_limiter.tiers WHERE starts_with(name, $1)
		UNION SELECT tier FROM rate_limiter.tenants WHERE starts_with(tier, $1)
		UNION SELECT tier FROM rate_limiter.policies WHERE "user" = '' AND starts_with(tier, $1)`,
}

// hasUsage reports whether a name n of usage is that of a tenant.
const hasUsage = `(EXISTS (SELECT FROM rate_limiter.usage_minutes WHERE tenant = n.id)
	OR EXISTS (SELECT FROM rate_limiter.usage_hours WHERE tenant = n.id)
	OR EXISTS (SELECT FROM rate_limiter.usage_days WHERE tenant = n.id))`

// Names returns the first names of a kind that begin with a text, in the order of bytes, at most so many.
func (s *Store) Names(ctx context.Context, kind NameKind, prefix string, most int) ([]string, error) {
	type row struct{ Name string }
	rows, err := collect[row](ctx, s.pool, `SELECT name FROM (`+nameQueries[kind]+`) AS found (name)
		WHERE name <> '' ORDER BY name COLLATE "C"`+limitTo(most), prefix)
	var names []string
	for _, r := range rows {
		names = append(names, r.Name)
	}
	return names, fail("list names of the kind "+string(kind), err)
}
