package policysync

import (
	"slices"
	"strings"

	"github.com/jackc/pgx/v5/pgtype/zeronull"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/policy"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

// policyFields are the fields of a policy that a snapshot keeps: all but the slot, because it has active policies only.
var policyFields = slices.DeleteFunc(slices.Clone(schema.PolicyFields()), func(f schema.Field[schema.Policy]) bool {
	return f.Name == "slot"
})

// savedFields are the fields of a policy in the order of their bytes in a file, and the format since which each is
// there.
var savedFields = func() (list []savedField) {
	addition := func(name string) int { // among fieldsSince; -1: it was there from the start
		for i, added := range fieldsSince {
			if added.name == name {
				return i
			}
		}
		return -1
	}
	for _, f := range policyFields {
		format := formatFirst
		if i := addition(f.Name); i >= 0 {
			format = fieldsSince[i].format
		}
		list = append(list, savedField{f, format})
	}
	slices.SortStableFunc(list, func(a, b savedField) int { return addition(a.Name) - addition(b.Name) })
	return list
}()

type savedField struct {
	schema.Field[schema.Policy]
	since uint32
}

// policy writes or reads a policy.
func (c *codec) policy(r *policy.Row) {
	c.number(&r.ID)
	for i := range savedFields {
		f := &savedFields[i]
		if c.reading && c.format < f.since {
			continue
		}
		switch to := f.In(&r.Policy).(type) {
		case *string:
			if isRare(f.Name) {
				c.name(to)
			} else {
				c.text(to)
			}
		case *int64:
			c.number(to)
		case **int64:
			c.optional(to)
		case *bool:
			c.boolean(to)
		}
	}
}

// isRare reports whether few policies share a value of the field.
func isRare(field string) bool { return field == "tenant" }

// policyColumns lists the columns of a policy as scanPolicies takes them.
func policyColumns() string {
	columns := []string{"id"}
	for _, f := range policyFields {
		columns = append(columns, `"`+f.Name+`"`)
	}
	return strings.Join(columns, ", ")
}

func scanPolicies(texts internedTexts, rows *policy.Rows) ([]any, func()) {
	row := new(policy.Row)
	to := []any{(*zeronull.Int8)(&row.ID)}
	for _, f := range policyFields {
		switch field := f.In(&row.Policy).(type) {
		case *string:
			if isRare(f.Name) {
				to = append(to, ownText{field})
			} else {
				to = append(to, sharedText{field, texts})
			}
		case *int64:
			to = append(to, (*zeronull.Int8)(field))
		case *bool:
			to = append(to, boolean{field})
		default: // **int64
			to = append(to, field)
		}
	}
	return to, func() { rows.Policies = append(rows.Policies, *row) }
}
