package policysync

import (
	"fmt"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
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

// tables lists the tables in the order of tiersTable to costsTable.
var tables = [...]table{
	{name: "tiers", kind: "tier", key: "name", where: "true", columns: "name", scan: scanTiers},
	{name: "tenants", kind: "tenant", key: "id", where: "true", columns: "id, tier, time_zone", scan: scanTenants},
	{
		name: "policies", kind: "policy", key: "id", numeric: true, where: "true",
		columns: columnsOf(policyFields),
		scan:    scanPolicies,
	},
	{
		name: "overrides", kind: "override", key: "id", numeric: true, where: "(expires_at IS NULL OR expires_at > now())",
		columns: columnsOf(overrideFields),
		scan:    scanOverrides,
	},
	{
		name: "costs", kind: "cost", key: "id", numeric: true, where: "true",
		columns: columnsOf(costFields),
		scan:    scanCosts,
	},
}

const (
	tiersTable = iota
	tenantsTable
	policiesTable
	overridesTable
	costsTable
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
	return []any{internedText{&r.Name, texts}}, func() { rows.Tiers = append(rows.Tiers, r) }
}

func scanTenants(texts internedTexts, rows *policy.Rows) ([]any, func()) {
	var r schema.Tenant
	to := []any{ownText{&r.ID}, internedText{&r.Tier, texts}, internedText{&r.TimeZone, texts}}
	return to, func() { rows.Tenants = append(rows.Tenants, r) }
}
