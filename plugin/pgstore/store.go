// Package pgstore is the control plane's repository: tiers, tenants, policies, overrides, the audit, the nodes' reports
// and the tokens of the REST API, kept in Postgres. The operator's program and the REST API write through it.
//
// Every write is one transaction that carries who and why ([Change]), takes one version, and is told to the listening
// nodes with its commit. Writes queue, so what one of them has read stays true until it commits. Optimistic concurrency
// is by the revision of a row: a write that names a revision that is no more, or [Absent] or [Present] where that is
// not so, is a [ConflictError]. A write that carries an [Idempotency] happens once, however often it is sent.
//
// What a row may hold is for the constraints of package migrations to say; this package puts their errors into words
// ([InvalidError]). How nodes load rows is package policysync's, what rows mean for a request is package policy's.
package pgstore

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// Store reads and writes the rows. It is safe for concurrent use. The zero value is not usable.
type Store struct {
	pool  *pgxpool.Pool
	turns chan struct{} // one for each write that may wait for its turn in the database

	actions chan struct{} // one for each action under an Idempotency that may be done at a time
	looks   *looks
}

// New is a store on a pool, which the caller keeps and closes. The database is migrated. Writes take at most half of
// the connections: they queue, perhaps behind somebody who is slow, and reads go on meanwhile. Actions under an
// Idempotency take at most a quarter beside, each while it is done; for these the pool has at least two.
func New(pool *pgxpool.Pool) *Store {
	most := pool.Config().MaxConns
	return &Store{
		pool:    pool,
		turns:   make(chan struct{}, max(1, most/2)),
		actions: make(chan struct{}, max(1, most/4)),
		looks:   newLooks(),
	}
}

// Change is who writes, and why. Both are told in the audit and must not be blank.
type Change struct {
	Actor  string
	Reason string

	Idempotency *Idempotency // nil: a write that is sent twice happens twice
}

func (c Change) check() error {
	if strings.TrimSpace(c.Actor) == "" {
		return &InvalidError{Field: "actor", Problem: "must be given: who makes this change?"}
	}
	if strings.TrimSpace(c.Reason) == "" {
		return &InvalidError{Field: "reason", Problem: "must be given: why is this change made?"}
	}
	return nil
}

// write runs do in one transaction for c, after all writes that were there before. It returns what do does, and the
// version in which that is in force: the one that do made, or the last one when it changed nothing. A replay by
// c.Idempotency returns what the first write did, and does not run do.
func write[T any](
	ctx context.Context,
	s *Store,
	doing string,
	c Change,
	do func(pgx.Tx) (T, error),
) (done T, version int64, err error) {
	var none T
	if err := c.check(); err != nil {
		return none, 0, err
	}
	select {
	case s.turns <- struct{}{}:
		defer func() { <-s.turns }()
	case <-ctx.Done():
		return none, 0, fail(doing, ctx.Err())
	}
	replayed, committing := false, false
	err = pgx.BeginFunc(ctx, s.pool, func(tx pgx.Tx) error {
		err := enter(ctx, tx, c)
		if err == nil {
			replayed, err = c.Idempotency.replay(ctx, tx, &done, &version)
		}
		if err != nil || replayed {
			return err
		}
		if done, err = do(tx); err != nil {
			return err
		}
		if err := tx.QueryRow(ctx, `SELECT version FROM rate_limiter.version`).Scan(&version); err != nil {
			return err
		}
		err = c.Idempotency.remember(ctx, tx, done, version)
		committing = err == nil
		return err
	})
	if err != nil {
		if committing {
			err = uncertain(err)
		}
		return none, 0, fail(doing, err)
	}
	if c.Idempotency != nil {
		c.Idempotency.Replayed = replayed
	}
	return done, version, nil
}

// nothing is what a write returns that has only a version to tell.
type nothing struct{}

// turn waits until no other transaction writes, and keeps others from it until the end of this one. It changes nothing:
// the trigger of the table takes the turn, so every writer may wait for it, and needs no right of its own for
// that.
const turn = `DELETE FROM rate_limiter.overrides WHERE false`

// enter tells the transaction who writes and why, and waits for the turn to write.
func enter(ctx context.Context, tx pgx.Tx, c Change) error {
	_, err := tx.Exec(
		ctx,
		`SELECT set_config('rate_limiter.actor', $1, true), set_config('rate_limiter.reason', $2, true)`,
		c.Actor,
		c.Reason,
	)
	if err == nil {
		_, err = tx.Exec(ctx, turn)
	}
	return err
}

// query is what the pool and a transaction have in common.
type query interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
}

// collect reads all rows of a query into structs, column by column of the same name.
func collect[T any](ctx context.Context, q query, sql string, args ...any) ([]T, error) {
	rows, err := q.Query(ctx, sql, args...)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowToStructByName[T])
}

// each yields the rows of a query one after another, so that a list of any length takes the memory of one row. An error
// ends it, wrapped with what was being done. It holds a connection until it ends.
func each[T any](ctx context.Context, q query, doing, sql string, args ...any) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		var none T
		rows, err := q.Query(ctx, sql, args...)
		if err != nil {
			yield(none, fail(doing, err))
			return
		}
		defer rows.Close()
		for rows.Next() {
			row, err := pgx.RowToStructByName[T](rows)
			if err != nil {
				yield(none, fail(doing, err))
				return
			}
			if !yield(row, nil) {
				return
			}
		}
		if err := rows.Err(); err != nil {
			yield(none, fail(doing, err))
		}
	}
}

// all returns the rows of a sequence, or its error.
func all[T any](rows iter.Seq2[T, error]) ([]T, error) {
	list := []T{} // which JSON shows as [], not as null
	for row, err := range rows {
		if err != nil {
			return nil, err
		}
		list = append(list, row)
	}
	return list, nil
}

// one reads the one row of a query; without it, it is a NotFoundError.
func one[T any](ctx context.Context, q query, what, sql string, args ...any) (T, error) {
	rows, err := collect[T](ctx, q, sql, args...)
	if len(rows) == 0 {
		var none T
		if err == nil {
			err = &NotFoundError{what}
		}
		return none, err
	}
	return rows[0], err
}

func isMissing(err error) bool {
	missing := new(NotFoundError)
	return errors.As(err, &missing)
}

// deleteOne runs a statement that deletes one row; without it, it is a NotFoundError.
func deleteOne(ctx context.Context, tx pgx.Tx, what, sql string, args ...any) error {
	done, err := tx.Exec(ctx, sql, args...)
	if err == nil && done.RowsAffected() == 0 {
		err = &NotFoundError{what}
	}
	return err
}

// where collects the conditions of a query.
type where struct {
	conditions []string
	args       []any
}

// add adds a condition with one argument, which stands in it as %s.
func (w *where) add(condition string, arg any) {
	w.args = append(w.args, arg)
	w.conditions = append(w.conditions, fmt.Sprintf(condition, fmt.Sprint("$", len(w.args))))
}

// equal asks for a column to have a value, if there is one.
func (w *where) equal(column, value string) {
	if value != "" {
		w.add(column+" = %s", value)
	}
}

// endpoint asks for a pattern, whatever its parameters are called, if there is one.
func (w *where) endpoint(pattern string) {
	if pattern != "" {
		w.add("rate_limiter.canonical_endpoint(endpoint) = rate_limiter.canonical_endpoint(%s)", pattern)
	}
}

func (w *where) String() string {
	if len(w.conditions) == 0 {
		return ""
	}
	return " WHERE " + strings.Join(w.conditions, " AND ")
}

// most is the end of a query that returns at most so many rows; 0: all.
func most(rows int) string {
	if rows <= 0 {
		return ""
	}
	return fmt.Sprint(" LIMIT ", rows)
}
