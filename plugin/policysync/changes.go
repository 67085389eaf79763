package policysync

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strconv"

	"github.com/jackc/pgx/v5"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/policy"
)

// maxChanges is how many rows are fetched one by one; for more, all are loaded.
const maxChanges = 50_000

// errFar tells that what has changed cannot be fetched: too much has, or what it was is gone.
var errFar = errors.New("too far behind to catch up")

// rowKey is the key of a row, as the changes and the faults have it.
type rowKey struct{ table, key string }

// news is what has changed since a version.
type news struct {
	head    head
	changes policy.Changes
	changed map[rowKey]bool // the rows that the changes name
	looked  map[rowKey]bool // these, and those that were asked for again
}

// loadChanges reads the rows that have changed since a version, and once more the rows in again, in one transaction. It is
// errFar if that cannot be told.
func loadChanges(ctx context.Context, conn *pgx.Conn, since int64, again []rowKey) (news, error) {
	n := news{changed: map[rowKey]bool{}, looked: map[rowKey]bool{}}
	err := pgx.BeginTxFunc(ctx, conn, snapshotRead, func(tx pgx.Tx) error {
		var err error
		if n.head, err = readHead(ctx, tx); err != nil {
			return err
		}
		if n.head.version < since || n.head.pruned > since {
			return errFar
		}
		keys, err := readKeys(ctx, tx, since, n.changed)
		if err != nil {
			return err
		}
		maps.Copy(n.looked, n.changed)
		for _, k := range again {
			if !n.looked[k] {
				n.looked[k] = true
				keys.add(k)
			}
		}
		n.changes.Version = n.head.version
		return keys.fetch(ctx, tx, &n.changes)
	})
	if err != nil {
		return news{}, fmt.Errorf("fetch what changed since version %d: %w", since, err)
	}
	return n, nil
}

// keys are the keys of rows, by table.
type keys [len(tables)][]string

func (k *keys) add(key rowKey) {
	for i := range tables {
		if tables[i].name == key.table {
			k[i] = append(k[i], key.key)
		}
	}
}

// readKeys reads which rows have changed, each once.
func readKeys(ctx context.Context, tx pgx.Tx, since int64, changed map[rowKey]bool) (keys, error) {
	var (
		found     keys
		kind, key string
	)
	rows, err := tx.Query(ctx, `SELECT DISTINCT kind, key FROM rate_limiter.changes WHERE version > $1 LIMIT $2`, since, maxChanges+1)
	if err != nil {
		return found, fmt.Errorf("read the changes: %w", err)
	}
	_, err = pgx.ForEachRow(rows, []any{&kind, &key}, func() error {
		for i := range tables {
			if tables[i].kind == kind {
				found[i] = append(found[i], key)
				changed[rowKey{tables[i].name, key}] = true
				return nil
			}
		}
		return nil // a kind of a later version is nothing of ours
	})
	if err != nil {
		return found, fmt.Errorf("read the changes: %w", err)
	}
	if len(changed) > maxChanges {
		return found, errFar
	}
	return found, nil
}

// fetch reads the rows of the keys; those that are not there are gone.
func (k *keys) fetch(ctx context.Context, tx pgx.Tx, into *policy.Changes) error {
	record := record{texts: texts{}}
	for i := range tables {
		if len(k[i]) == 0 {
			continue
		}
		if err := fetchTable(ctx, tx, &tables[i], k[i], &record, &into.Rows); err != nil {
			return fmt.Errorf("fetch %s: %w", tables[i].name, err)
		}
	}
	into.Gone.Tiers = missing(k[ofTiers], into.Tiers, func(r policy.TierRow) string { return r.Name })
	into.Gone.Tenants = missing(k[ofTenants], into.Tenants, func(r policy.TenantRow) string { return r.ID })
	var err, also error
	into.Gone.Policies, err = numbers(missing(k[ofPolicies], into.Policies, func(r policy.Row) string { return strconv.FormatInt(r.ID, 10) }))
	into.Gone.Overrides, also = numbers(missing(k[ofOverrides], into.Overrides, func(o policy.Override) string { return strconv.FormatInt(o.ID, 10) }))
	return errors.Join(err, also)
}

// fetchTable reads rows in the form in which a copy has them.
func fetchTable(ctx context.Context, tx pgx.Tx, t *table, keys []string, record *record, into *policy.Rows) error {
	var argument any = keys
	if t.numeric {
		ids, err := numbers(keys)
		if err != nil {
			return err
		}
		argument = ids
	}
	rows, err := tx.Query(ctx, t.some(), pgx.QueryResultFormats{pgx.BinaryFormatCode}, argument)
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		record.fields = rows.RawValues()
		t.read(record, into)
		if err := record.finish(); err != nil {
			return err
		}
	}
	return rows.Err()
}

// missing are the keys that no row has.
func missing[R any](keys []string, rows []R, key func(R) string) []string {
	there := make(map[string]bool, len(rows))
	for _, r := range rows {
		there[key(r)] = true
	}
	var gone []string
	for _, k := range keys {
		if !there[k] {
			gone = append(gone, k)
		}
	}
	return gone
}

// numbers are keys that are numbers.
func numbers(keys []string) ([]int64, error) {
	list := make([]int64, len(keys))
	for i, key := range keys {
		n, err := strconv.ParseInt(key, 10, 64)
		if err != nil {
			return nil, fmt.Errorf("the key %q of a change is no number: %w", key, errFar)
		}
		list[i] = n
	}
	return list, nil
}
