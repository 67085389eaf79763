package policysync

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
)

// maxChanges is the number of rows that are fetched one by one; for more, all are loaded.
const maxChanges = 50_000

// errTooFarBehind reports that the changes cannot be fetched: there are too many, or they have been pruned.
var errTooFarBehind = errors.New("too far behind to catch up")

type rowKey struct{ table, key string }

type changeSet struct {
	head    versionRow
	changes policy.Changes
	changed map[rowKey]bool // rows that the changes name
	fetched map[rowKey]bool // these, and those that were fetched again

	candidateChanged bool
	candidate        *policy.CandidateSet // the open one, if that has changed; nil: none is
}

// loadChanges reads the rows that have changed since a version, and again the rows in again, in one transaction. It
// returns errTooFarBehind if the changes are incomplete.
func loadChanges(ctx context.Context, conn *pgx.Conn, since int64, again []rowKey) (changeSet, error) {
	n := changeSet{changed: map[rowKey]bool{}, fetched: map[rowKey]bool{}}
	err := pgx.BeginTxFunc(ctx, conn, snapshotRead, func(tx pgx.Tx) error {
		var err error
		if n.head, err = readHead(ctx, tx.Conn()); err != nil {
			return err
		}
		if n.head.version < since || n.head.pruned > since {
			return errTooFarBehind
		}
		keys, err := readKeys(ctx, tx, since, &n)
		if err != nil {
			return err
		}
		if n.candidateChanged {
			if n.candidate, err = readCandidate(ctx, tx); err != nil {
				return err
			}
		}
		maps.Copy(n.fetched, n.changed)
		for _, k := range again {
			if !n.fetched[k] {
				n.fetched[k] = true
				keys.addKey(k)
			}
		}
		n.changes.Version = n.head.version
		return keys.fetch(ctx, tx, &n.changes)
	})
	if err != nil {
		return changeSet{}, fmt.Errorf("fetch what changed since version %d: %w", since, err)
	}
	return n, nil
}

type tableKeys [len(tables)][]string

func (k *tableKeys) addKey(key rowKey) {
	for i := range tables {
		if tables[i].name == key.table {
			k[i] = append(k[i], key.key)
		}
	}
}

// readKeys reads which rows have changed, each once, and whether a candidate has.
func readKeys(ctx context.Context, tx pgx.Tx, since int64, n *changeSet) (tableKeys, error) {
	var (
		found     tableKeys
		kind, key string
	)
	rows, _ := tx.Query(ctx,
		`SELECT DISTINCT kind, key FROM rate_limiter.changes WHERE version > $1 LIMIT $2`, since, maxChanges+1)
	_, err := pgx.ForEachRow(rows, []any{&kind, &key}, func() error {
		for i := range tables {
			if tables[i].kind == kind {
				found[i] = append(found[i], key)
				n.changed[rowKey{tables[i].name, key}] = true
				return nil
			}
		}
		n.candidateChanged = n.candidateChanged || strings.HasPrefix(kind, candidateKind)
		return nil // skip a kind of a later version
	})
	if err != nil {
		return found, fmt.Errorf("read the changes: %w", err)
	}
	if len(n.changed) > maxChanges {
		return found, errTooFarBehind
	}
	return found, nil
}

// fetch reads the rows of the keys. All keys count as removed: the rows that are there still are put back.
func (k *tableKeys) fetch(ctx context.Context, tx pgx.Tx, into *policy.Changes) error {
	into.Removed.Tiers, into.Removed.Tenants = k[tiersTable], k[tenantsTable]
	ids := [len(tables)]*[]int64{
		policiesTable: &into.Removed.Policies, overridesTable: &into.Removed.Overrides, costsTable: &into.Removed.Costs,
		pricesTable: &into.Removed.Prices,
	}
	for i := range tables {
		if len(k[i]) == 0 {
			continue
		}
		var keys any = k[i]
		if ids[i] != nil {
			parsed, err := parseIDs(k[i])
			if err != nil {
				return fmt.Errorf("fetch %s: %w", tables[i].name, err)
			}
			*ids[i], keys = parsed, parsed
		}
		sql := tables[i].selectSQL() + " AND " + tables[i].key + " = ANY($1)"
		if err := readTable(ctx, tx, &tables[i], &into.Rows, sql, keys); err != nil {
			return fmt.Errorf("fetch %s: %w", tables[i].name, err)
		}
	}
	return nil
}

func parseIDs(keys []string) ([]int64, error) {
	list := make([]int64, len(keys))
	for i, key := range keys {
		n, err := strconv.ParseInt(key, 10, 64)
		if err != nil {
			return nil, fmt.Errorf("the key %q of a change is not a number: %w", key, errTooFarBehind)
		}
		list[i] = n
	}
	return list, nil
}
