package rows

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

// columns lists the columns of a row, one for each declared field.
type columns []column

// column describes a column and its value for an absent field. An absent text is empty, and an absent boolean false. An
// absent number or time is NULL, which is read as its zero, unless the field distinguishes 0 from absent.
type column struct {
	name   string // quoted
	absent string // of a field that JSON leaves out; empty: NULL
	zero   string // what NULL is read as; empty: NULL
}

func columnsOf[T any](fields []schema.Field[T]) columns {
	list := make(columns, len(fields))
	for i, f := range fields {
		c := column{name: `"` + f.Name + `"`}
		switch f.In(new(T)).(type) {
		case *string:
			c.absent = "''"
		case *bool:
			c.absent = "false"
		case *int64:
			c.zero = "0"
		case *time.Time:
			c.zero = "'0001-01-01 00:00:00+00'"
		}
		list[i] = c
	}
	return list
}

// without returns the columns except those with the given names.
func (c columns) without(names ...string) columns {
	return slices.DeleteFunc(slices.Clone(c), func(c column) bool {
		return slices.Contains(names, strings.Trim(c.name, `"`))
	})
}

// names lists the columns.
func (c columns) names() string {
	return c.each(func(c column) string { return c.name })
}

// read lists the columns for a SELECT into a row.
func (c columns) read() string {
	return c.each(func(c column) string {
		if c.zero == "" {
			return c.name
		}
		return fmt.Sprintf("coalesce(%[1]s, %[2]s) AS %[1]s", c.name, c.zero)
	})
}

// values lists the values of the columns in rows decoded from JSON, where an absent field is NULL; from names these
// rows in the statement.
func (c columns) values(from string) string {
	return c.each(func(c column) string { return c.value(from) })
}

// set lists the assignments of an UPDATE from rows decoded from JSON.
func (c columns) set(from string) string {
	return c.each(func(c column) string { return c.name + " = " + c.value(from) })
}

func (c column) value(from string) string {
	if c.absent == "" {
		return from + "." + c.name
	}
	return fmt.Sprintf("coalesce(%s.%s, %s)", from, c.name, c.absent)
}

func (c columns) each(text func(column) string) string {
	list := make([]string, len(c))
	for i, column := range c {
		list[i] = text(column)
	}
	return strings.Join(list, ", ")
}
