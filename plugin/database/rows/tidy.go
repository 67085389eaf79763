package rows

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// Retention holds the times for which rows without an effect stay.
type Retention struct {
	Overrides time.Duration // an expired override, before it moves to the history
	Changes   time.Duration // the keys that a version changed; a node without contact for longer loads all rows
	Nodes     time.Duration // the last report of a node that is silent
}

// Tidied reports what Tidy has done.
type Tidied struct {
	Leader    bool  `json:"leader"` // false: another process tidies, and this one did nothing
	Overrides int64 `json:"overrides"`
	Changes   int64 `json:"changes"`
	Nodes     int64 `json:"nodes"`
	Keys      int64 `json:"keys"` // of an Idempotency, after KeysKept
	Left      int64 `json:"left"` // rows that are still due, because Tidy was ended or another process took over
}

// DefaultRetention is the retention unless an operator chooses another one.
var DefaultRetention = Retention{Overrides: 7 * 24 * time.Hour, Changes: 7 * 24 * time.Hour, Nodes: 24 * time.Hour}

const (
	// TidyLock is the number of an advisory lock, which each batch of Tidy holds: one process tidies at a time. A process
	// that holds it in its session keeps others from it.
	TidyLock = 0x726c_7469_6479
	// TidyBatch is the number of rows of a table in one transaction of Tidy. Writers wait for it, so it is small.
	TidyBatch = 1_000
	// countTime bounds counting the rows that are due after a Tidy that was ended.
	countTime = 5 * time.Second
)

var tidyChange = Change{Actor: "retention", Reason: "expired"}

// Tidy moves expired overrides to the history and drops rows older than their retention, batch by batch until none is
// due or ctx ends. A batch has at most so many rows of a table; after each full one Tidy calls progress with the sum so
// far. Every process may call it from time to time. With an error it also returns what was done before.
func (s *DB) Tidy(ctx context.Context, keep Retention, rows int64, progress func(Tidied)) (Tidied, error) {
	var done Tidied
	for {
		most, err := done.batch(ctx, s.pool, keep, rows)
		if err == nil && most > 0 {
			if most >= rows {
				progress(done)
			}
			continue
		}
		counting, cancel := context.WithTimeout(context.WithoutCancel(ctx), countTime)
		defer cancel()
		left, errLeft := s.due(counting, keep)
		done.Left = left
		return done, fail("tidy", errors.Join(err, errLeft))
	}
}

// TidyOnce does one batch of Tidy in a session, which may hold TidyLock, and reports whether more rows may be due.
func TidyOnce(ctx context.Context, session *pgx.Conn, keep Retention) (more bool, err error) {
	most, err := new(Tidied).batch(ctx, session, keep, TidyBatch)
	return most >= TidyBatch, fail("tidy", err)
}

type beginner interface {
	Begin(ctx context.Context) (pgx.Tx, error)
}

// batch does one batch of each table in one transaction, and adds it to what was done. It returns the most rows of a
// table.
func (t *Tidied) batch(ctx context.Context, db beginner, keep Retention, rows int64) (most int64, err error) {
	done := *t
	err = pgx.BeginFunc(ctx, db, func(tx pgx.Tx) error {
		var leads bool
		err := tx.QueryRow(ctx, `SELECT pg_try_advisory_xact_lock($1)`, int64(TidyLock)).Scan(&leads)
		if err != nil || !leads {
			return err
		}
		done.Leader = true
		step := func(count *int64, sql string, after time.Duration) {
			var n int64
			if err == nil {
				err = tx.QueryRow(ctx, sql, after, rows).Scan(&n)
			}
			*count += n
			most = max(most, n)
		}
		// The nodes come before the lock of writes, because a node may lock its report, or their table.
		step(&done.Nodes, deleteOldest("nodes", "node", "reported_at"), keep.Nodes)
		if err == nil {
			err = beginWrite(ctx, tx, tidyChange)
		}
		step(&done.Overrides, deleteOldest("overrides", "id", "expires_at"), keep.Overrides)
		step(&done.Changes, deleteChanges, keep.Changes)
		step(&done.Keys, deleteOldest("answers", "ctid", "at"), KeysKept)
		return err
	})
	if err != nil {
		return 0, err
	}
	*t = done
	return most, nil
}

// deleteOldest returns the statement that deletes the oldest rows of a table, by the time in one of its columns.
func deleteOldest(table, key, at string) string {
	return fmt.Sprintf(`WITH deleted AS (
			DELETE FROM rate_limiter.%[1]s WHERE %[2]s IN (
				SELECT %[2]s FROM rate_limiter.%[1]s WHERE %[3]s < clock_timestamp() - $1::interval ORDER BY %[3]s LIMIT $2)
			RETURNING 1
		) SELECT count(*) FROM deleted`, table, key, at)
}

func (s *DB) due(ctx context.Context, keep Retention) (left int64, err error) {
	err = s.pool.QueryRow(ctx, countDue, keep.Overrides, keep.Changes, keep.Nodes, KeysKept).Scan(&left)
	return left, err
}

const (
	// deleteChanges deletes the changes of whole versions, with all earlier ones.
	deleteChanges = `WITH last AS (
			SELECT max(version) AS version FROM (
				SELECT version FROM rate_limiter.changes WHERE at < clock_timestamp() - $1::interval ORDER BY at LIMIT $2) due
		), deleted AS (
			DELETE FROM rate_limiter.changes c USING last WHERE c.version <= last.version RETURNING 1
		), marked AS (
			UPDATE rate_limiter.version v SET pruned = last.version FROM last WHERE last.version > v.pruned
		) SELECT count(*) FROM deleted`

	countDue = `SELECT (SELECT count(*) FROM rate_limiter.overrides WHERE expires_at < clock_timestamp() - $1::interval)
		+ (SELECT count(*) FROM rate_limiter.changes WHERE at < clock_timestamp() - $2::interval)
		+ (SELECT count(*) FROM rate_limiter.nodes WHERE reported_at < clock_timestamp() - $3::interval)
		+ (SELECT count(*) FROM rate_limiter.answers WHERE at < clock_timestamp() - $4::interval)`
)
