package policysync

import (
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgtype/zeronull"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

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
