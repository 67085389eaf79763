// Package rows is the control plane's repository: tiers, tenants, policies, overrides, the audit, the nodes' reports
// and the tokens of the REST API, kept in Postgres. The operator's program and the REST API write through it.
//
// Every write is one transaction that records its actor and reason ([Change]) and takes one version, which
// nodes poll. Writes run one after the other, so what a write has read stays true until it commits. A write may name
// the revision of the row that it was made from, or [Absent] or [Present]. If the row has another revision, the write
// returns a [ConflictError]. A write with an [Idempotency] happens once, however often it is sent.
//
// The constraints of package migrations define which values a row may have. This package turns their errors into
// [InvalidError]. Package policysync loads the rows into nodes, and package policy compiles them.
package rows

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"golang.org/x/sync/singleflight"
)

// DB reads and writes the rows. It is safe for concurrent use. The zero value is not usable.
type DB struct {
	pool   *pgxpool.Pool
	writes chan struct{}      // bounds the writes that hold a connection, most of which wait for the lock of writes
	reads  singleflight.Group // of versions of nodes, for Await
}

// New returns a store on a pool, which the caller closes. The database must be migrated. Writes take at most half of
// the connections, so reads go on while writes wait for a slow one.
func New(pool *pgxpool.Pool) *DB {
	return &DB{pool: pool, writes: make(chan struct{}, max(1, pool.Config().MaxConns/2))}
}

// Change names who makes a write, and why. The audit records both; neither may be blank.
type Change struct {
	Actor  string
	Reason string

	Idempotency *Idempotency // nil: a write that is sent twice happens twice
	DryRun      bool         // the write is undone: its result is what it would be, and its version 0

	// Accept gets the revision of the candidate, webhook or token before the write. Its error declines the write, with a
	// DeclinedError. nil accepts any.
	Accept func(revision int64) error
}

func (c Change) accept(revision int64) error {
	if c.Accept == nil {
		return nil
	}
	if err := c.Accept(revision); err != nil {
		return &DeclinedError{err}
	}
	return nil
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

// errUndone ends the transaction of a dry run.
var errUndone = errors.New("the write is undone")

// write runs do in one transaction for c, after all earlier writes. It returns the result of do and the version in
// which that is in force: the one that do made, or the last one if do changed nothing. A replay by c.Idempotency
// returns the result of the first write, and does not run do.
func write[T any](
	ctx context.Context,
	s *DB,
	doing string,
	c Change,
	do func(pgx.Tx) (T, error),
) (done T, version int64, err error) {
	var none T
	if err := c.check(); err != nil {
		return none, 0, err
	}
	select {
	case s.writes <- struct{}{}:
		defer func() { <-s.writes }()
	case <-ctx.Done():
		return none, 0, fail(doing, ctx.Err())
	}
	replayed, committing := false, false
	err = pgx.BeginFunc(ctx, s.pool, func(tx pgx.Tx) error {
		err := beginWrite(ctx, tx, c)
		if err == nil {
			replayed, err = c.Idempotency.replay(ctx, tx, &done, &version)
		}
		if err != nil || replayed {
			return err
		}
		if done, err = do(tx); err != nil {
			return err
		}
		if c.DryRun {
			return errUndone
		}
		if err := tx.QueryRow(ctx, `SELECT version FROM rate_limiter.version`).Scan(&version); err != nil {
			return err
		}
		err = c.Idempotency.remember(ctx, tx, done, version)
		committing = err == nil
		return err
	})
	if errors.Is(err, errUndone) {
		return done, 0, nil
	}
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

// noResult is the result of a write that returns only a version.
type noResult struct{}

// lockWrites takes the lock of writes until the end of the transaction. It changes no row: the trigger of the table
// takes the lock, so every role that may write can take it.
const lockWrites = `DELETE FROM rate_limiter.overrides WHERE false`

// beginWrite sets the actor and the reason of the transaction, and waits for the lock of writes.
func beginWrite(ctx context.Context, tx pgx.Tx, c Change) error {
	_, err := tx.Exec(ctx,
		`SELECT set_config('rate_limiter.actor', $1, true), set_config('rate_limiter.reason', $2, true)`, c.Actor, c.Reason)
	if err == nil {
		_, err = tx.Exec(ctx, lockWrites)
	}
	return err
}

type querier interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
}

// collect reads all rows of a query into structs, each column into the field of its name.
func collect[T any](ctx context.Context, q querier, sql string, args ...any) ([]T, error) {
	rows, _ := q.Query(ctx, sql, args...)
	return pgx.CollectRows(rows, pgx.RowToStructByName[T])
}

// each yields the rows of a query one after another, so a list of any length takes the memory of one row. An error ends
// it, wrapped with the operation. It holds a connection until it ends.
func each[T any](ctx context.Context, q querier, doing, sql string, args ...any) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		var none T
		rows, _ := q.Query(ctx, sql, args...)
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

// readAll returns all rows of a query, in a list that is never nil. An error is wrapped with the operation.
func readAll[T any](ctx context.Context, q querier, doing, sql string, args ...any) ([]T, error) {
	rows, err := collect[T](ctx, q, sql, args...)
	return rows, fail(doing, err)
}

// scalars returns the only column of all rows of a query.
func scalars[V any](ctx context.Context, q querier, sql string, args ...any) ([]V, error) {
	rows, _ := q.Query(ctx, sql, args...)
	return pgx.CollectRows(rows, pgx.RowTo[V])
}

// readClock reads the clock of the database, by which overrides begin and end.
func readClock(ctx context.Context, q querier) (time.Time, error) {
	rows, _ := q.Query(ctx, `SELECT clock_timestamp()`)
	return pgx.CollectExactlyOneRow(rows, pgx.RowTo[time.Time])
}

// one reads the row of a query, or returns a NotFoundError.
func one[T any](ctx context.Context, q querier, what, sql string, args ...any) (T, error) {
	rows, err := collect[T](ctx, q, sql, args...)
	if len(rows) == 0 {
		var none T
		if err == nil {
			err = &NotFoundError{What: what}
		}
		return none, err
	}
	return rows[0], err
}

// mustChange runs a statement, and returns a NotFoundError if it has changed no row.
func mustChange(ctx context.Context, tx pgx.Tx, what, sql string, args ...any) error {
	done, err := tx.Exec(ctx, sql, args...)
	if err == nil && done.RowsAffected() == 0 {
		err = &NotFoundError{What: what}
	}
	return err
}

// where collects the conditions of a query.
type where struct {
	conditions []string
	args       []any
}

// add adds a condition with one argument in the place of %s.
func (w *where) add(condition string, arg any) {
	w.args = append(w.args, arg)
	w.conditions = append(w.conditions, fmt.Sprintf(condition, fmt.Sprint("$", len(w.args))))
}

// given adds a condition with one argument in the place of %s, unless the argument is zero.
func given[T comparable](w *where, condition string, arg T) {
	if arg != *new(T) {
		w.add(condition, arg)
	}
}

// equal adds the condition that a column has a value, unless the value is empty.
func (w *where) equal(column, value string) { given(w, column+" = %s", value) }

// endpoint adds the condition that the endpoint is a pattern, whatever its parameters are called, unless it is empty.
func (w *where) endpoint(pattern string) {
	given(w, "rate_limiter.canonical_endpoint(endpoint) = rate_limiter.canonical_endpoint(%s)", pattern)
}

// plannedArgs returns the arguments for a query that Postgres plans for their values each time. After a few executions
// it would otherwise use one plan for all values, which reads the whole table to find few rows of a rare one.
func (w *where) plannedArgs() []any { return append([]any{pgx.QueryExecModeCacheDescribe}, w.args...) }

func (w *where) String() string {
	if len(w.conditions) == 0 {
		return ""
	}
	return " WHERE " + strings.Join(w.conditions, " AND ")
}

// limitTo returns the end of a query that returns at most so many rows; 0: all.
func limitTo(rows int) string {
	if rows <= 0 {
		return ""
	}
	return fmt.Sprint(" LIMIT ", rows)
}

// ReadOnly returns why the database takes no writes, in words that follow "it is", or "" if it takes them.
func (s *DB) ReadOnly(ctx context.Context) (why string, err error) {
	var readOnly, standby bool
	err = s.pool.QueryRow(ctx, `SELECT current_setting('transaction_read_only')::boolean, pg_is_in_recovery()
		FROM rate_limiter.version`).
		Scan(&readOnly, &standby)
	switch {
	case err != nil:
		return "", fail("check whether the database takes writes", err)
	case standby:
		return "a standby", nil
	case readOnly:
		return "set to default_transaction_read_only", nil
	}
	return "", nil
}
