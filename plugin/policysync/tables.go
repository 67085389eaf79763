package policysync

import (
	"fmt"

	"github.com/jackc/pgx/v5/pgtype/zeronull"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/policy"
)

// table describes one of the tables of a snapshot.
type table struct {
	name    string // in the schema rate_limiter, and in faults
	kind    string // of its rows in the table of changes
	columns string // in the order of scan
	key     string // the column of the key
	numeric bool   // the key is a number
	where   string // which rows are of interest

	// scan returns a destination for each column, and a function that appends the row scanned there to rows.
	scan func(texts internedTexts, rows *policy.Rows) (to []any, appendRow func())
}

// tables lists the tables in the order of ofTiers to ofOverrides.
var tables = [...]table{
	{name: "tiers", kind: "tier", key: "name", where: "true", columns: "name", scan: scanTiers},
	{name: "tenants", kind: "tenant", key: "id", where: "true", columns: "id, tier, time_zone", scan: scanTenants},
	{
		name: "policies", kind: "policy", key: "id", numeric: true, where: "slot = 'active'",
		columns: policyColumns(),
		scan:    scanPolicies,
	},
	{
		name: "overrides", kind: "override", key: "id", numeric: true, where: "(expires_at IS NULL OR expires_at > now())",
		columns: `id, kind, tenant, "user", endpoint, credential, ip, policy, "limit", window_size, burst, factor,
			reason, author, expires_at, permanent, source, public_note`,
		scan: scanOverrides,
	},
}

const (
	ofTiers = iota
	ofTenants
	ofPolicies
	ofOverrides
)

// selectSQL returns the statement that reads the rows of interest.
func (t *table) selectSQL() string {
	return fmt.Sprintf("SELECT %s FROM rate_limiter.%s WHERE %s", t.columns, t.name, t.where)
}

// selectByKeySQL returns the statement that reads those whose keys are in a list.
func (t *table) selectByKeySQL() string {
	return fmt.Sprintf("%s AND %s = ANY($1)", t.selectSQL(), t.key)
}

func scanTiers(texts internedTexts, rows *policy.Rows) ([]any, func()) {
	var r policy.TierRow
	return []any{sharedText{&r.Name, texts}}, func() { rows.Tiers = append(rows.Tiers, r) }
}

func scanTenants(texts internedTexts, rows *policy.Rows) ([]any, func()) {
	var r policy.TenantRow
	to := []any{ownText{&r.ID}, sharedText{&r.Tier, texts}, sharedText{&r.TimeZone, texts}}
	return to, func() { rows.Tenants = append(rows.Tenants, r) }
}

func scanOverrides(texts internedTexts, rows *policy.Rows) ([]any, func()) {
	var (
		o         policy.Override
		permanent bool
	)
	number := func(n *int64) *zeronull.Int8 { return (*zeronull.Int8)(n) }
	to := []any{
		number(&o.ID), sharedText{&o.Kind, texts},
		ownText{&o.Tenant}, ownText{&o.User}, sharedText{&o.Endpoint, texts}, ownText{&o.Credential}, ownText{&o.IP},
		sharedText{&o.Policy, texts}, number(&o.Limit), number(&o.WindowSize), number(&o.Burst), number(&o.Factor),
		ownText{&o.Reason}, sharedText{&o.Author, texts},
		instant{&o.ExpiresAt}, boolean{&permanent}, sharedText{&o.Source, texts}, sharedText{&o.PublicNote, texts},
	}
	return to, func() {
		if o.ExpiresAt == 0 && !permanent {
			o.ExpiresAt = -1 // an override without an end must be marked permanent: package policy reports it as a fault
		}
		rows.Overrides = append(rows.Overrides, o)
	}
}
