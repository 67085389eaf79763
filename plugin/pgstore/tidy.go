package pgstore

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"
)

// Retention is how long what is over stays.
type Retention struct {
	Overrides time.Duration // an expired override, before it moves to the history
	Changes   time.Duration // the keys that a version changed; a node that was away for longer loads everything
	Nodes     time.Duration // the last report of a node that is silent
}

// Tidied is what Tidy has done.
type Tidied struct {
	Leader    bool  `json:"leader"` // false: another process is at it, and nothing was done here
	Overrides int64 `json:"overrides"`
	Changes   int64 `json:"changes"`
	Nodes     int64 `json:"nodes"`
	Keys      int64 `json:"keys"` // of an Idempotency, after KeysKept
}

const (
	// tidier is the advisory lock of the database that is held while tidying: of many processes one does.
	tidier = 0x726c_7469_6479
	// tidyBatch is how many overrides move in one transaction; the writers wait for so long.
	tidyBatch = 10_000
)

// tidying is the change that moves expired overrides.
var tidying = Change{Actor: "retention", Reason: "expired"}

// Tidy moves expired overrides to the history and drops what is older than its retention. All processes may call it from
// time to time.
func (s *Store) Tidy(ctx context.Context, keep Retention) (Tidied, error) {
	var done Tidied
	err := pgx.BeginFunc(ctx, s.pool, func(tx pgx.Tx) error {
		err := tx.QueryRow(ctx, `SELECT pg_try_advisory_xact_lock($1)`, int64(tidier)).Scan(&done.Leader)
		if err != nil || !done.Leader {
			return err
		}
		if err := enter(ctx, tx, tidying); err != nil {
			return err
		}
		for _, step := range []struct {
			sql   string
			args  []any
			count *int64
		}{
			{retire, []any{keep.Overrides, tidyBatch}, &done.Overrides},
			{prune, []any{keep.Changes}, &done.Changes},
			{forget, []any{keep.Nodes}, &done.Nodes},
			{forgetAnswers, []any{KeysKept}, &done.Keys},
		} {
			if err := tx.QueryRow(ctx, step.sql, step.args...).Scan(step.count); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return Tidied{}, fail("tidy", err)
	}
	return done, nil
}

const (
	retire = `WITH gone AS (
			DELETE FROM rate_limiter.overrides WHERE id IN (
				SELECT id FROM rate_limiter.overrides WHERE expires_at < clock_timestamp() - $1::interval ORDER BY expires_at LIMIT $2)
			RETURNING 1
		) SELECT count(*) FROM gone`

	// A version goes as a whole, and with all before it.
	prune = `WITH last AS (
			SELECT max(version) AS version FROM rate_limiter.changes WHERE at < clock_timestamp() - $1::interval
		), gone AS (
			DELETE FROM rate_limiter.changes c USING last WHERE c.version <= last.version RETURNING 1
		), told AS (
			UPDATE rate_limiter.version v SET pruned = last.version FROM last WHERE last.version > v.pruned
		) SELECT count(*) FROM gone`

	forget = `WITH gone AS (
			DELETE FROM rate_limiter.nodes WHERE reported_at < clock_timestamp() - $1::interval RETURNING 1
		) SELECT count(*) FROM gone`

	forgetAnswers = `WITH gone AS (
			DELETE FROM rate_limiter.answers WHERE at < clock_timestamp() - $1::interval RETURNING 1
		) SELECT count(*) FROM gone`
)
