package policysync

import (
	"fmt"
	"math"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/jackc/pgx/v5/pgtype"
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
	scan func(texts internedTexts, rows *policy.Rows) (to []any, appendRow func())
}

// tables lists the tables in the order of tiersTable to costsTable.
var tables = [...]table{
	{name: "tiers", kind: "tier", key: "name", where: "true", columns: "name", scan: scanTiers},
	{name: "tenants", kind: "tenant", key: "id", where: "true", columns: "id, tier, time_zone", scan: scanTenants},
	{
		name: "policies", kind: "policy", key: "id", where: "true",
		columns: columnsOf(policyFields),
		scan:    scanPolicies,
	},
	{
		name: "overrides", kind: "override", key: "id", where: "(expires_at IS NULL OR expires_at > now())",
		columns: columnsOf(overrideFields),
		scan:    scanOverrides,
	},
	{
		name: "costs", kind: "cost", key: "id", where: "true",
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

// The fields of rows that nodes read.
var (
	policyFields   = schema.PolicyFields()
	overrideFields = schema.OverrideFields()
	costFields     = schema.CostFields()
)

// isRare reports whether few rows share a value of the field.
func isRare(field string) bool {
	switch field {
	case "tenant", "user", "credential", "ip", "reason":
		return true
	}
	return false
}

// columnsOf lists the columns of a row as scanFields scans them, after its id.
func columnsOf[T any](fields []schema.Field[T]) string {
	columns := []string{"id"}
	for _, f := range fields {
		columns = append(columns, `"`+f.Name+`"`)
	}
	return strings.Join(columns, ", ")
}

func scanPolicies(texts internedTexts, rows *policy.Rows) ([]any, func()) {
	row := new(policy.PolicyRow)
	to := scanFields(texts, &row.ID, policyFields, &row.Policy)
	return to, func() { rows.Policies = append(rows.Policies, *row) }
}

func scanOverrides(texts internedTexts, rows *policy.Rows) ([]any, func()) {
	row := new(policy.Override)
	to := scanFields(texts, &row.ID, overrideFields, &row.Override)
	return to, func() { rows.Overrides = append(rows.Overrides, *row) }
}

func scanCosts(texts internedTexts, rows *policy.Rows) ([]any, func()) {
	row := new(policy.CostRow)
	to := scanFields(texts, &row.ID, costFields, &row.Cost)
	return to, func() { rows.Costs = append(rows.Costs, *row) }
}

// scanFields returns destinations for the id and the fields of a row.
func scanFields[T any](texts internedTexts, id *int64, fields []schema.Field[T], row *T) []any {
	to := []any{(*zeronull.Int8)(id)}
	for _, f := range fields {
		switch field := f.In(row).(type) {
		case *string:
			if isRare(f.Name) {
				to = append(to, ownText{field})
			} else {
				to = append(to, internedText{field, texts})
			}
		case *int64:
			to = append(to, (*zeronull.Int8)(field))
		case *bool:
			to = append(to, boolean{field})
		case *time.Time:
			to = append(to, instant{field})
		case **int64:
			to = append(to, field)
		default:
			to = append(to, record{schema.RecordIn(field)})
		}
	}
	return to
}

// The destinations of columns. A NULL becomes the zero value; package policy checks whether that is valid.

// internedText scans a text that many rows may share, and keeps one copy of it.
type internedText struct {
	to    *string
	texts internedTexts
}

// ScanBytes implements pgtype.BytesScanner.
func (t internedText) ScanBytes(text []byte) error {
	*t.to = t.texts.intern(clip(text))
	return nil
}

// ownText scans a text that few rows share.
type ownText struct{ to *string }

// ScanBytes implements pgtype.BytesScanner.
func (t ownText) ScanBytes(text []byte) error {
	*t.to = string(clip(text))
	return nil
}

// maxText bounds the kept part of a text, in bytes. Package policy reports a fault for longer texts.
const maxText = 4096

func clip(text []byte) []byte {
	if len(text) <= maxText {
		return text
	}
	text = text[:maxText]
	for len(text) > maxText-utf8.UTFMax && !utf8.Valid(text) {
		text = text[:len(text)-1]
	}
	return text
}

// boolean scans a boolean.
type boolean struct{ to *bool }

// ScanBool implements pgtype.BoolScanner.
func (b boolean) ScanBool(v pgtype.Bool) error {
	*b.to = v.Bool
	return nil
}

// record scans a record. What cannot be decoded becomes a faulty record, which is a fault of its row and of no other.
type record struct{ to *schema.RecordField }

// ScanBytes implements pgtype.BytesScanner.
func (r record) ScanBytes(text []byte) error {
	_ = r.to.Decode(text) // the row's own check reports it
	return nil
}

// instant scans a timestamp with time zone; infinity becomes the largest instant.
type instant struct{ to *time.Time }

// earliest and latest are the first and the last instant of nodes. Postgres has timestamps before and after them.
var earliest, latest = time.UnixMicro(math.MinInt64).UTC(), time.UnixMicro(math.MaxInt64).UTC()

// ScanTimestamptz implements pgtype.TimestamptzScanner.
func (i instant) ScanTimestamptz(v pgtype.Timestamptz) error {
	switch {
	case !v.Valid:
		*i.to = time.Time{}
	case v.InfinityModifier == pgtype.Infinity || v.Time.After(latest):
		*i.to = latest
	case v.InfinityModifier == pgtype.NegativeInfinity:
		*i.to = earliest
	default:
		*i.to = v.Time.UTC()
	}
	return nil
}

// internedTexts keeps one copy of texts that many rows share.
type internedTexts map[string]string

// maxTexts bounds the number of interned texts. Few texts are shared by many rows.
const maxTexts = 8192

func (t internedTexts) intern(text []byte) string {
	if shared, ok := t[string(text)]; ok {
		return shared
	}
	s := string(text)
	if len(t) < maxTexts {
		t[s] = s
	}
	return s
}
