package rows

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	jsonv2 "github.com/go-json-experiment/json"
	jsonv1 "github.com/go-json-experiment/json/v1"
	"github.com/jackc/pgx/v5"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

// table describes a table whose rows callers write. Its statements take rows as JSON, and a deletion takes keys.
type table[R Row] struct {
	name   string   // in the schema rate_limiter
	kind   string   // of its rows, in words
	key    string   // the column that names a row, with its type; "": id::bigint
	first  string   // the columns that a row is read from, before those of its fields
	fields []column // the columns that a caller writes
	fixed  []string // of fields: what a row is about, which an update leaves as it is
	end    string   // what a deletion is called in errors; "": delete

	makesRoom string        // deletes what would be in the place of new rows; "": nothing
	check     func(R) error // of a row as it was put; nil: none

	selects, inserts, updates, deletes string
}

// Row is a row that callers write: a Policy, Cost, Price, Tenant, Tier or Override.
type Row interface {
	rowKey() any
	revision() int64
	table() any // its *table
}

func tableOf[R Row]() *table[R] {
	var none R
	return none.table().(*table[R])
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
		name: "policies", kind: "policy", first: "id, revision, ", fields: columnsOf(schema.Fields[schema.Policy]()),
		fixed: []string{"namespace", "name", "tier", "tenant", "user", "credential", "ip", "for"},
	}.complete()
	costTable = table[Cost]{
		name: "costs", kind: "cost", first: "id, revision, ", fields: columnsOf(schema.Fields[schema.Cost]()),
		fixed: []string{"namespace"},
	}.complete()
	priceTable = table[Price]{
		name: "prices", kind: "price", first: "id, revision, " + priceState + " AS state, ",
		fields: columnsOf(schema.Fields[schema.DatedPrice]()), fixed: []string{"namespace", "model", "starts_at"},
	}.complete()
	tenantTable = table[Tenant]{
		name: "tenants", kind: "tenant", key: "id::text", first: "revision, ", fixed: []string{"id"},
		fields: columnsOf(schema.Fields[schema.Tenant]()),
	}.complete()
	tierTable = table[Tier]{
		name: "tiers", kind: "tier", key: "name::text", first: "revision, ", fixed: []string{"name"},
		fields: []column{
			{"name", "name", "n.name"},
			{"description", "description", "coalesce(n.description, '')"},
			{"title", "title", "coalesce(n.title, '')"},
			{"price_text", "price_text", "coalesce(n.price_text, '')"},
		},
	}.complete()
	overrideTable = table[Override]{
		name: "overrides", kind: "override", first: stateColumn + " AS state, " + ownOverrideColumns,
		fields: columnsOf(schema.Fields[schema.Override]()),
		fixed:  []string{"kind", "tenant", "user", "credential", "ip", "tag", "policy", "author"},
		end:    "end", makesRoom: endExpiredOverrides, check: Override.hasNotEnded,
	}.complete()
)

func (t table[R]) complete() *table[R] {
	key, keyType, _ := strings.Cut(cmp.Or(t.key, "id::bigint"), "::")
	t.key, t.end = key, cmp.Or(t.end, "delete")
	from := fmt.Sprintf("jsonb_populate_recordset(NULL::rate_limiter.%s, $1) n", t.name)
	t.selects = fmt.Sprintf("SELECT %s%s FROM rate_limiter.%s", t.first, read(t.fields), t.name)
	t.inserts = fmt.Sprintf("INSERT INTO rate_limiter.%s (%s) SELECT %s FROM %s", t.name,
		joined(t.fields, func(c column) string { return c.name }),
		joined(t.fields, func(c column) string { return c.value }), from)
	written := slices.DeleteFunc(slices.Clone(t.fields), func(c column) bool {
		return slices.Contains(t.fixed, strings.Trim(c.name, `"`))
	})
	t.updates = fmt.Sprintf("UPDATE rate_limiter.%s o SET %s FROM %s WHERE o.%[4]s = n.%[4]s", t.name,
		joined(written, func(c column) string { return c.name + " = " + c.value }), from, key)
	t.deletes = fmt.Sprintf("DELETE FROM rate_limiter.%s WHERE %s = ANY ($1::text[]::%s[])", t.name, key, keyType)
	return &t
}

// byKey returns how a row is found by its key.
func (t *table[R]) byKey(what string, key any) func(context.Context, querier) (R, error) {
	return func(ctx context.Context, q querier) (R, error) {
		return one[R](ctx, q, what, t.selects+" WHERE "+t.key+" = $1", key)
	}
}

// Read returns the row of a key, its id or name, or a NotFoundError.
func Read[R Row](ctx context.Context, s *DB, key any) (R, error) {
	t := tableOf[R]()
	what := fmt.Sprint(t.kind, " ", key)
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

// Delete deletes the row of a key, its id or name, and returns the version of the deletion, or a NotFoundError. What
// names the row stays. A revision other than AnyRevision must be that of the row. An override moves to the history.
func Delete[R Row](ctx context.Context, s *DB, c Change, key any, revision int64) (int64, error) {
	t := tableOf[R]()
	what := fmt.Sprint(t.kind, " ", key)
	_, version, err := write(ctx, s, t.end+" "+what, c, func(tx pgx.Tx) (noResult, error) {
		current, err := t.byKey(what, key)(ctx, tx)
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

func (t *table[R]) write(ctx context.Context, tx pgx.Tx, d *RowDiff[R]) error {
	if d == nil {
		return nil
	}
	err := t.remove(ctx, tx, d.Delete)
	for _, step := range [...]struct {
		sql  string
		rows []R
	}{{t.updates, d.updated()}, {t.makesRoom, d.Create}, {t.inserts, d.Create}} {
		if err == nil && step.sql != "" {
			err = t.run(ctx, tx, step.sql, step.rows)
		}
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

const rowBatch = 5_000

// run runs a statement with the rows of a list, in batches.
func (t *table[R]) run(ctx context.Context, tx pgx.Tx, sql string, list []R) error {
	for part := range slices.Chunk(list, rowBatch) {
		rows, err := encode(part)
		if err == nil {
			_, err = tx.Exec(ctx, sql, rows)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// encode returns rows as JSON of their table, which has factors in thousandths, and prices in millionths of a dollar.
func encode[R any](list []R) ([]byte, error) {
	return jsonv2.Marshal(list, jsonv1.DefaultOptionsV1(), jsonv2.WithMarshalers(jsonv2.JoinMarshalers(
		jsonv2.MarshalFunc(func(f schema.Factor) ([]byte, error) { return strconv.AppendInt(nil, int64(f), 10), nil }),
		jsonv2.MarshalFunc(func(p schema.Price) ([]byte, error) { return strconv.AppendInt(nil, int64(p), 10), nil }),
	)))
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

// column describes the column of a declared field. An absent text is empty, and an absent boolean false. An absent
// number or time is NULL, which is read as its zero, unless the field distinguishes 0 from absent.
type column struct {
	name  string // quoted
	read  string // in a SELECT into a row
	value string // in a row n decoded from JSON, where an absent field is NULL
}

func columnsOf[T any](fields []schema.Field[T]) []column {
	list := make([]column, len(fields))
	for i, f := range fields {
		name := `"` + f.Name + `"`
		c := column{name, name, "n." + name}
		switch f.In(new(T)).(type) {
		case *string:
			c.value = "coalesce(n." + name + ", '')"
		case *bool:
			c.value = "coalesce(n." + name + ", false)"
		case *int64, *schema.Factor:
			c.read = "coalesce(" + name + ", 0) AS " + name
		case *time.Time:
			c.read = "coalesce(" + name + ", " + zeroTime + ") AS " + name
		}
		list[i] = c
	}
	return list
}

// joined lists a text of each column.
func joined(columns []column, text func(column) string) string {
	list := make([]string, len(columns))
	for i, c := range columns {
		list[i] = text(c)
	}
	return strings.Join(list, ", ")
}

// read lists columns for a SELECT into a row.
func read(columns []column) string { return joined(columns, func(c column) string { return c.read }) }

// mustStay returns an InvalidError if a write changes a text that a row is about. Names of parameters in an endpoint do
// not matter.
func mustStay[T any](what, advice string, about []string, current, next T) error {
	for _, f := range schema.Fields[T]() {
		if f.Name != "endpoint" && !slices.Contains(about, f.Name) {
			continue
		}
		was, is := *f.In(&current).(*string), *f.In(&next).(*string)
		if f.Name == "endpoint" {
			was, is = schema.CanonicalEndpoint(was), schema.CanonicalEndpoint(is)
		}
		if was != is {
			return &InvalidError{what, f.Name, fmt.Sprintf("must stay %q: %s", was, advice)}
		}
	}
	return nil
}
