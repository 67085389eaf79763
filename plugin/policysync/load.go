package policysync

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/policy"
)

// head is what the row of the version says, and when.
type head struct {
	version int64
	at      time.Time // when the version was taken, by the server's clock; it was committed after that
	pruned  int64     // changes up to this version are gone

	standby bool // the server is a standby, which follows another one

	now  time.Time // the server's clock
	seen time.Time // the node's, at that moment
}

// asker is a connection or a transaction.
type asker interface {
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// readHead reads the version. The server's clock is compared with the middle of the time that asking took.
func readHead(ctx context.Context, from asker) (head, error) {
	var h head
	asked := time.Now()
	err := from.QueryRow(ctx, `SELECT version, at, pruned, pg_is_in_recovery(), clock_timestamp() FROM rate_limiter.version`).
		Scan(&h.version, &h.at, &h.pruned, &h.standby, &h.now)
	if err != nil {
		return h, fmt.Errorf("read the version: %w", err)
	}
	h.seen = asked.Add(time.Since(asked) / 2)
	return h, nil
}

// offset is the server's clock less the node's.
func (h head) offset() time.Duration { return h.now.Sub(h.seen) }

// lag is how long it has been since the version was taken, whatever the node's clock says.
func (h head) lag() time.Duration { return max(0, h.now.Sub(h.at)+time.Since(h.seen)) }

// crowdError tells that there are more rows than this node takes.
type crowdError struct {
	version   int64
	rows, max int64
	tables    [len(tables)]int64
}

func (e *crowdError) Error() string {
	text := fmt.Sprintf("version %d has %d rows, more than snapshot_max_rows (%d):", e.version, e.rows, e.max)
	for i := range tables {
		if e.tables[i] > 0 {
			text += fmt.Sprintf(" %d %s", e.tables[i], tables[i].name)
		}
	}
	return text + "; end what is not needed, or raise snapshot_max_rows where the memory allows"
}

// all are all rows at one version.
type all struct {
	head  head
	rows  policy.Rows
	bytes int64 // of the copies

	candidates candidates
}

// loadAll reads all rows of interest in one transaction. Of more than most rows it reads none: *crowdError.
func loadAll(ctx context.Context, conn *pgx.Conn, most int) (all, error) {
	var a all
	err := pgx.BeginTxFunc(ctx, conn, snapshotRead, func(tx pgx.Tx) error {
		var err error
		if a.head, err = readHead(ctx, tx); err != nil {
			return err
		}
		counts, err := countRows(ctx, tx, a.head.version, int64(most))
		if err != nil {
			return err
		}
		a.rows = policy.Rows{
			Version:   a.head.version,
			Tiers:     make([]policy.TierRow, 0, counts[ofTiers]),
			Tenants:   make([]policy.TenantRow, 0, counts[ofTenants]),
			Policies:  make([]policy.Row, 0, counts[ofPolicies]),
			Overrides: make([]policy.Override, 0, counts[ofOverrides]),
		}
		record := record{texts: texts{}}
		for i := range tables {
			n, err := copyTable(ctx, conn, &tables[i], &record, &a.rows)
			if err != nil {
				return fmt.Errorf("copy %s: %w", tables[i].name, err)
			}
			a.bytes += n
		}
		a.candidates, err = readCandidates(ctx, tx)
		return err
	})
	if err != nil {
		return all{}, fmt.Errorf("load all rows: %w", err)
	}
	return a, nil
}

// countRows counts before anything is copied: that takes a small part of the time, and no memory.
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
		return counts, &crowdError{version: version, rows: rows, max: most, tables: counts}
	}
	return counts, nil
}

// copyTable reads a table in the transaction that conn is in, and tells how many bytes that was.
func copyTable(ctx context.Context, conn *pgx.Conn, t *table, record *record, rows *policy.Rows) (int64, error) {
	stream := tuples{columns: t.width(), row: func(fields [][]byte) error {
		record.fields = fields
		t.read(record, rows)
		return record.finish()
	}}
	if _, err := conn.PgConn().CopyTo(ctx, &stream, t.all()); err != nil {
		return 0, err
	}
	return stream.bytes, stream.end()
}
