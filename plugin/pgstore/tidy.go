package pgstore

import (
	"context"
	"errors"
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
	Left      int64 `json:"left"` // rows that are due and still there, because Tidy was ended or another process took over
}

const (
	// tidier is the advisory lock of the database that is held for each batch: of many processes one tidies at a time.
	tidier = 0x726c_7469_6479
	// TidyBatch is how many rows of a table one transaction of Tidy takes. Writers wait for it, so it is short.
	TidyBatch = 1_000
	// countTime bounds counting what is left by a Tidy that was ended.
	countTime = 5 * time.Second
)

// tidying is the change that moves expired overrides.
var tidying = Change{Actor: "retention", Reason: "expired"}

// Tidy moves expired overrides to the history and drops what is older than its retention, batch by batch until nothing
// is left or ctx ends. All processes may call it from time to time. Beside an error it returns what was done before.
func (s *Store) Tidy(ctx context.Context, keep Retention) (Tidied, error) {
	return s.TidyInBatches(ctx, keep, TidyBatch, func(Tidied) {})
}

// TidyInBatches tidies as Tidy does, in batches of so many rows of a table. It calls progress with what was done so far
// after each batch that others follow.
func (s *Store) TidyInBatches(ctx context.Context, keep Retention, rows int64, progress func(Tidied)) (Tidied, error) {
	var done Tidied
	for {
		batch, err := s.tidyBatch(ctx, keep, rows)
		done.Overrides += batch.Overrides
		done.Changes += batch.Changes
		done.Nodes += batch.Nodes
		done.Keys += batch.Keys
		done.Leader = done.Leader || batch.Leader
		if err == nil && batch.Leader && batch.Overrides+batch.Changes+batch.Nodes+batch.Keys > 0 {
			if max(batch.Overrides, batch.Changes, batch.Nodes, batch.Keys) >= rows {
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

// tidyBatch does one batch of each table in one transaction.
func (s *Store) tidyBatch(ctx context.Context, keep Retention, rows int64) (Tidied, error) {
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
			after time.Duration
			count *int64
		}{
			{retire, keep.Overrides, &done.Overrides},
			{prune, keep.Changes, &done.Changes},
			{forget, keep.Nodes, &done.Nodes},
			{forgetAnswers, KeysKept, &done.Keys},
		} {
			if err := tx.QueryRow(ctx, step.sql, step.after, rows).Scan(step.count); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return Tidied{}, err
	}
	return done, nil
}

// due returns how many rows are older than their retention.
func (s *Store) due(ctx context.Context, keep Retention) (left int64, err error) {
	err = s.pool.QueryRow(ctx, countDue, keep.Overrides, keep.Changes, keep.Nodes, KeysKept).Scan(&left)
	return left, err
}

const (
	retire = `WITH gone AS (
			DELETE FROM rate_limiter.overrides WHERE id IN (
				SELECT id FROM rate_limiter.overrides WHERE expires_at < clock_timestamp() - $1::interval
				ORDER BY expires_at LIMIT $2)
			RETURNING 1
		) SELECT count(*) FROM gone`

	// A version goes as a whole, and with all before it.
	prune = `WITH last AS (
			SELECT max(version) AS version FROM (
				SELECT version FROM rate_limiter.changes WHERE at < clock_timestamp() - $1::interval ORDER BY at LIMIT $2) due
		), gone AS (
			DELETE FROM rate_limiter.changes c USING last WHERE c.version <= last.version RETURNING 1
		), told AS (
			UPDATE rate_limiter.version v SET pruned = last.version FROM last WHERE last.version > v.pruned
		) SELECT count(*) FROM gone`

	forget = `WITH gone AS (
			DELETE FROM rate_limiter.nodes WHERE node IN (
				SELECT node FROM rate_limiter.nodes WHERE reported_at < clock_timestamp() - $1::interval LIMIT $2)
			RETURNING 1
		) SELECT count(*) FROM gone`

	forgetAnswers = `WITH gone AS (
			DELETE FROM rate_limiter.answers WHERE ctid IN (
				SELECT ctid FROM rate_limiter.answers WHERE at < clock_timestamp() - $1::interval ORDER BY at LIMIT $2)
			RETURNING 1
		) SELECT count(*) FROM gone`

	countDue = `SELECT (SELECT count(*) FROM rate_limiter.overrides WHERE expires_at < clock_timestamp() - $1::interval)
		+ (SELECT count(*) FROM rate_limiter.changes WHERE at < clock_timestamp() - $2::interval)
		+ (SELECT count(*) FROM rate_limiter.nodes WHERE reported_at < clock_timestamp() - $3::interval)
		+ (SELECT count(*) FROM rate_limiter.answers WHERE at < clock_timestamp() - $4::interval)`
)
