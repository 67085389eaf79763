package policysync

import (
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgtype/zeronull"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

// table describes one of the tables of a snapshot.
type table struct {
	name    string // in the schema rate_limiter, and in faults
	kind    string // of its rows in the table of changes
	columns string // in the order of scan
	key     string // the column of the key
	where   string // which rows are of interest

	// scan returns a destination for each column, and a function that appends the row scanned there to rows.
	scan func(rows *policy.Rows) (to []any, appendRow func())
}

// tables lists the tables in the order of tiersTable to pricesTable.
var tables = [...]table{
	{name: "tiers", kind: "tier", key: "name", where: "true", columns: "name, title, price_text", scan: scanTiers},
	tableOf("tenants", "tenant", "", "true", func(r *policy.Rows) *[]schema.Tenant { return &r.Tenants },
		func(r *schema.Tenant) ([]any, *schema.Tenant) { return nil, r }),
	tableOf("policies", "policy", "id", "true", func(r *policy.Rows) *[]policy.PolicyRow { return &r.Policies },
		func(r *policy.PolicyRow) ([]any, *schema.Policy) { return []any{&r.ID}, &r.Policy }),
	tableOf("overrides", "override", "id", "(expires_at IS NULL OR expires_at > now())",
		func(r *policy.Rows) *[]policy.Override { return &r.Overrides },
		func(r *policy.Override) ([]any, *schema.Override) { return []any{&r.ID}, &r.Override }),
	tableOf("costs", "cost", "id", "true", func(r *policy.Rows) *[]policy.CostRow { return &r.Costs },
		func(r *policy.CostRow) ([]any, *schema.Cost) { return []any{&r.ID}, &r.Cost }),
	tableOf("prices", "price", "id", "true", func(r *policy.Rows) *[]policy.PriceRow { return &r.Prices },
		func(r *policy.PriceRow) ([]any, *schema.DatedPrice) { return []any{&r.ID}, &r.DatedPrice }),
}

const (
	tiersTable = iota
	tenantsTable
	policiesTable
	overridesTable
	costsTable
	pricesTable
)

func (t *table) selectSQL() string {
	return fmt.Sprintf("SELECT %s FROM rate_limiter.%s WHERE %s", t.columns, t.name, t.where)
}

func scanTiers(rows *policy.Rows) ([]any, func()) {
	row := new(policy.TierRow)
	return []any{&row.Name, &row.Title, &row.PriceText}, func() { rows.Tiers = append(rows.Tiers, *row) }
}

// tableOf describes a table whose rows R have the fields of F, all of them declared. first is a column before those; ""
// is none. columns returns where that one of a row is scanned, and what has the fields.
func tableOf[R, F any](
	name, kind, first, where string, list func(*policy.Rows) *[]R, columns func(*R) ([]any, *F),
) table {
	fields := schema.Fields[F]()
	t := table{name: name, kind: kind, columns: first, key: "id", where: where}
	for _, f := range fields {
		t.columns += `, "` + f.Name + `"`
	}
	t.columns = strings.TrimPrefix(t.columns, ", ")
	t.scan = func(rows *policy.Rows) ([]any, func()) {
		row, to := new(R), list(rows)
		first, of := columns(row)
		return scanFields(first, fields, of), func() { *to = append(*to, *row) }
	}
	return t
}

// scanFields appends destinations for the fields of a row. A NULL becomes the zero value; package policy checks whether
// that is valid.
func scanFields[T any](to []any, fields []schema.Field[T], row *T) []any {
	for _, f := range fields {
		switch field := f.In(row).(type) {
		case *string:
			to = append(to, (*zeronull.Text)(field))
		case *int64:
			to = append(to, (*zeronull.Int8)(field))
		case *schema.Factor:
			to = append(to, (*zeronull.Int8)(field))
		case *schema.Price:
			to = append(to, (*zeronull.Int8)(field))
		case *time.Time:
			to = append(to, (*zeronull.Timestamptz)(field))
		case *bool, **int64:
			to = append(to, field)
		default:
			to = append(to, record{schema.RecordIn(field)})
		}
	}
	return to
}

// record scans a record. What cannot be decoded becomes a faulty record, which is a fault of its row and of no other.
type record struct{ to *schema.RecordField }

// ScanBytes implements pgtype.BytesScanner.
func (r record) ScanBytes(text []byte) error {
	_ = r.to.Decode(text) // the row's own check reports it
	return nil
}
