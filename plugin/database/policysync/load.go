package policysync

import (
	"context"
	"fmt"
	"math"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

// versionRow holds the row of the version, and when it was read.
type versionRow struct {
	version int64
	takenAt time.Time // when the version was assigned, by the server's clock; it was committed later
	pruned  int64     // changes up to this version have been removed

	standby bool // the server is a standby, which follows another one

	serverTime time.Time // the server's clock
	localTime  time.Time // the node's clock at that moment
}

// readHead reads the version. It compares the server's clock with the middle of the round trip.
func readHead(ctx context.Context, from *pgx.Conn) (versionRow, error) {
	var h versionRow
	sent := time.Now()
	err := from.QueryRow(ctx, `SELECT version, at, pruned, pg_is_in_recovery(), clock_timestamp()
		FROM rate_limiter.version`).
		Scan(&h.version, &h.takenAt, &h.pruned, &h.standby, &h.serverTime)
	if err != nil {
		return h, fmt.Errorf("read the version: %w", err)
	}
	h.localTime = sent.Add(time.Since(sent) / 2)
	return h, nil
}

func (h versionRow) offset() time.Duration { return h.serverTime.Sub(h.localTime) }

// lag returns the time since the version was assigned, independent of the node's clock.
func (h versionRow) lag() time.Duration {
	return max(0, h.serverTime.Sub(h.takenAt)+time.Since(h.localTime))
}

type tooManyRowsError struct {
	version   int64
	rows, max int64
	tables    [len(tables)]int64
}

func (e *tooManyRowsError) Error() string {
	text := fmt.Sprintf("version %d has %d rows, more than snapshot_max_rows (%d):", e.version, e.rows, e.max)
	for i := range tables {
		if e.tables[i] > 0 {
			text += fmt.Sprintf(" %d %s", e.tables[i], tables[i].name)
		}
	}
	return text + "; delete rows that are not needed, or raise snapshot_max_rows if memory allows"
}

type loadedRows struct {
	head      versionRow
	rows      policy.Rows
	candidate *policy.CandidateSet // nil: none is open
}

type database interface {
	BeginTx(ctx context.Context, options pgx.TxOptions) (pgx.Tx, error)
}

// Load reads all rows at one version, as a node does, however many there are.
func Load(ctx context.Context, from database) (Saved, error) {
	a, err := loadAll(ctx, from, math.MaxInt)
	return Saved{Rows: a.rows, Candidate: a.candidate}, err
}

// loadAll reads all rows of interest in one transaction. If there are more than most, it reads none and returns
// a *tooManyRowsError.
func loadAll(ctx context.Context, from database, most int) (loadedRows, error) {
	var a loadedRows
	err := pgx.BeginTxFunc(ctx, from, snapshotRead, func(tx pgx.Tx) error {
		var err error
		if a.head, err = readHead(ctx, tx.Conn()); err != nil {
			return err
		}
		counts, err := countRows(ctx, tx, a.head.version, int64(most))
		if err != nil {
			return err
		}
		a.rows = policy.Rows{
			Version:   a.head.version,
			Tiers:     make([]policy.TierRow, 0, counts[tiersTable]),
			Tenants:   make([]schema.Tenant, 0, counts[tenantsTable]),
			Policies:  make([]policy.PolicyRow, 0, counts[policiesTable]),
			Overrides: make([]policy.Override, 0, counts[overridesTable]),
			Costs:     make([]policy.CostRow, 0, counts[costsTable]),
			Prices:    make([]policy.PriceRow, 0, counts[pricesTable]),
		}
		for i := range tables {
			if err := readTable(ctx, tx, &tables[i], &a.rows, tables[i].selectSQL()); err != nil {
				return fmt.Errorf("read %s: %w", tables[i].name, err)
			}
		}
		a.candidate, err = readCandidate(ctx, tx)
		return err
	})
	if err != nil {
		return loadedRows{}, fmt.Errorf("load all rows: %w", err)
	}
	return a, nil
}

// countRows counts the rows of each table. That takes little time compared with a load, and no memory.
func countRows(ctx context.Context, tx pgx.Tx, version, most int64) (counts [len(tables)]int64, err error) {
	var into [len(tables)]any
	sql := "SELECT "
	for i := range tables {
		into[i] = &counts[i]
		if i > 0 {
			sql += ", "
		}
		sql += fmt.Sprintf("(SELECT count(*) FROM rate_limiter.%s WHERE %s)", tables[i].name, tables[i].where)
	}
	if err := tx.QueryRow(ctx, sql).Scan(into[:]...); err != nil {
		return counts, fmt.Errorf("count the rows: %w", err)
	}
	var rows int64
	for _, n := range counts {
		rows += n
	}
	if rows > most {
		return counts, &tooManyRowsError{version: version, rows: rows, max: most, tables: counts}
	}
	return counts, nil
}

func readTable(
	ctx context.Context, tx pgx.Tx, t *table, rows *policy.Rows, sql string, args ...any,
) error {
	found, _ := tx.Query(ctx, sql, args...)
	to, appendRow := t.scan(rows)
	_, err := pgx.ForEachRow(found, to, func() error {
		appendRow()
		return nil
	})
	return err
}
