package rows

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

// table describes a table whose rows callers write. Its statements take rows as JSON, and a deletion takes keys.
type table[R row] struct {
	name   string   // in the schema rate_limiter
	key    string   // the column that names a row, with its type; "": id::bigint
	first  string   // the columns that a row is read from, before those of its fields
	fields columns  // the columns that a caller writes
	fixed  []string // of fields: what a row is about, which an update leaves as it is
	end    string   // what a deletion is called in errors; "": delete

	makesRoom string        // deletes what would be in the place of new rows; "": nothing
	check     func(R) error // of a row as it was put; nil: none

	selects, inserts, updates, deletes string
}

type row interface {
	rowKey() any
	revision() int64
}

// Values of the Revision of a write, besides the revision that the row must have.
const (
	AnyRevision int64 = 0  // with or without a row, of any revision
	Absent      int64 = -1 // there must be no row
	Present     int64 = -2 // there must be a row, of any revision
)

// The endpoint is not fixed: the names of its parameters may change.
var (
	policyTable = table[Policy]{
		name: "policies", first: "id, revision, ", fields: columnsOf(schema.PolicyFields()),
		fixed: []string{"namespace", "name", "tier", "tenant", "user", "credential", "ip", "for"},
	}.complete()
	costTable = table[Cost]{
		name: "costs", first: "id, revision, ", fields: columnsOf(schema.CostFields()), fixed: []string{"namespace"},
	}.complete()
	tenantTable = table[Tenant]{
		name: "tenants", key: "id::text", first: "revision, ", fields: columnsOf(schema.TenantFields()),
		fixed: []string{"id"},
	}.complete()
	tierTable = table[Tier]{
		name: "tiers", key: "name::text", first: "revision, ", fixed: []string{"name"},
		fields: columns{{name: `"name"`}, {name: `"description"`, absent: "''"}},
	}.complete()
	overrideTable = table[Override]{
		name: "overrides", first: stateColumn + " AS state, " + ownOverrideColumns,
		fields: columnsOf(schema.OverrideFields()),
		fixed:  []string{"kind", "tenant", "user", "credential", "ip", "tag", "policy", "author"},
		end:    "end", makesRoom: endExpiredOverrides, check: Override.hasNotEnded,
	}.complete()
)

// complete sets the statements.
func (t table[R]) complete() *table[R] {
	key, keyType, _ := strings.Cut(cmp.Or(t.key, "id::bigint"), "::")
	t.key, t.end = key, cmp.Or(t.end, "delete")
	from := fmt.Sprintf("jsonb_populate_recordset(NULL::rate_limiter.%s, $1) n", t.name)
	t.selects = fmt.Sprintf("SELECT %s%s FROM rate_limiter.%s", t.first, t.fields.read(), t.name)
	t.inserts = fmt.Sprintf("INSERT INTO rate_limiter.%s (%s) SELECT %s FROM %s", t.name, t.fields.names(),
		t.fields.values("n"), from)
	t.updates = fmt.Sprintf("UPDATE rate_limiter.%s o SET %s FROM %s WHERE o.%[4]s = n.%[4]s", t.name,
		t.fields.without(t.fixed...).set("n"), from, key)
	t.deletes = fmt.Sprintf("DELETE FROM rate_limiter.%s WHERE %s = ANY ($1::text[]::%s[])", t.name, key, keyType)
	return &t
}

// byKey returns how a row is found by its key.
func (t *table[R]) byKey(what string, key any) func(context.Context, querier) (R, error) {
	return func(ctx context.Context, q querier) (R, error) {
		return one[R](ctx, q, what, t.selects+" WHERE "+t.key+" = $1", key)
	}
}

// read returns the row of a key, or a NotFoundError.
func (t *table[R]) read(ctx context.Context, s *DB, what string, key any) (R, error) {
	found, err := t.byKey(what, key)(ctx, s.pool)
	return found, fail("read "+what, err)
}

// put writes a row in place of the one that find returns, or adds it, as the wanted revision allows. next returns
// the row to write in place of the current one. put returns the row after the write, and the version in which it is
// in force.
func (t *table[R]) put(
	ctx context.Context, s *DB, c Change, what string, wanted int64,
	find func(context.Context, querier) (R, error), next func(current R) (R, error),
) (R, int64, error) {
	return write(ctx, s, "put "+what, c, func(tx pgx.Tx) (changed R, err error) {
		sql := t.updates
		current, err := find(ctx, tx)
		if IsMissing(err) && (wanted == AnyRevision || wanted == Absent) {
			sql, err = t.inserts, nil
		}
		if err == nil {
			err = sameRevision(what, wanted, current.revision())
		}
		if err == nil {
			changed, err = next(current)
		}
		if err == nil {
			err = t.run(ctx, tx, sql, []R{changed})
		}
		if err != nil {
			return changed, err
		}
		changed, err = find(ctx, tx)
		if err == nil && t.check != nil {
			err = t.check(changed)
		}
		return changed, err
	})
}

// delete deletes the row that find returns, and returns the version of the deletion. A revision other than
// AnyRevision must be that of the row.
func (t *table[R]) delete(
	ctx context.Context, s *DB, c Change, what string, revision int64, find func(context.Context, querier) (R, error),
) (int64, error) {
	_, version, err := write(ctx, s, t.end+" "+what, c, func(tx pgx.Tx) (noResult, error) {
		current, err := find(ctx, tx)
		if err == nil {
			err = sameRevision(what, revision, current.revision())
		}
		if err == nil {
			err = t.remove(ctx, tx, []R{current})
		}
		return noResult{}, err
	})
	return version, err
}

// write writes the changes of a set.
func (t *table[R]) write(ctx context.Context, tx pgx.Tx, d *RowDiff[R]) error {
	if d == nil {
		return nil
	}
	err := t.remove(ctx, tx, d.Delete)
	if err == nil {
		err = t.run(ctx, tx, t.updates, d.written())
	}
	if err == nil && t.makesRoom != "" {
		err = t.run(ctx, tx, t.makesRoom, d.Create)
	}
	if err == nil {
		err = t.run(ctx, tx, t.inserts, d.Create)
	}
	return err
}

// remove deletes rows by their keys: JSON cannot hold each instant that a row may have.
func (t *table[R]) remove(ctx context.Context, tx pgx.Tx, list []R) error {
	keys := make([]string, len(list))
	for i, row := range list {
		keys[i] = fmt.Sprint(row.rowKey())
	}
	_, err := tx.Exec(ctx, t.deletes, keys)
	return err
}

// rowBatch is how many rows one statement writes.
const rowBatch = 5_000

// run runs a statement with the rows of a list, in batches.
func (t *table[R]) run(ctx context.Context, tx pgx.Tx, sql string, list []R) error {
	for part := range slices.Chunk(list, rowBatch) {
		rows, err := json.Marshal(part)
		if err == nil {
			_, err = tx.Exec(ctx, sql, rows)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// sameRevision returns a ConflictError if a write was made from another revision than the current one; a current
// revision of 0 means that there is no row.
func sameRevision(what string, wanted, current int64) error {
	switch {
	case wanted == AnyRevision, wanted == current, wanted == Present && current > 0, wanted == Absent && current == 0:
		return nil
	case wanted == Absent:
		return &ConflictError{what, "it exists already", current}
	}
	return &ConflictError{
		what,
		fmt.Sprintf("it has revision %d, not %d: it was changed in the meantime: read it again", current, wanted),
		current,
	}
}

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
