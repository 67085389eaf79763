package policysync

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/migrations"
)

// UsageSink stores batches of usage in Postgres, over a connection of its own. It implements the Sink of package usage.
type UsageSink struct{ reportSession }

// NewUsageSink returns a sink that has not connected yet.
func NewUsageSink(source Source) *UsageSink { return &UsageSink{reportSession{source: source}} }

// reportSession is a connection over which a node reports. It connects when it is used.
type reportSession struct {
	source Source

	mu   sync.Mutex // held while a report is being stored
	conn *pgx.Conn  // nil: none
}

// usageParameters are the parameters of the sink's sessions. A batch is removed once it is stored, so commits wait for
// the disk.
var usageParameters = map[string]string{
	"application_name": "tenant-rate-limiting",
	"client_encoding":  "UTF8",
	"lock_timeout":     "2s",
}

// reportUsageSQL takes an age instead of an instant, so that all instants are the server's.
const reportUsageSQL = `SELECT rate_limiter.report_usage($1, $2, $3, $4, $5)`

// Report stores a batch that began age ago. A batch that is stored already stays as it is.
func (u *UsageSink) Report(
	ctx context.Context, node, epoch string, seq int64, age time.Duration, payload []byte,
) error {
	called := time.Now()
	return u.run(ctx, "report usage", func(conn *pgx.Conn) error {
		_, err := conn.Exec(ctx, reportUsageSQL, node, epoch, seq, age+time.Since(called), payload)
		return err
	})
}

// Backlog returns how long ago Postgres stored the oldest batch of all nodes that no process has unpacked; 0: none
// waits.
func (u *UsageSink) Backlog(ctx context.Context) (age time.Duration, err error) {
	err = u.run(ctx, "read the backlog of usage", func(conn *pgx.Conn) error {
		return conn.QueryRow(ctx, `SELECT rate_limiter.usage_backlog()`).Scan(&age)
	})
	return age, err
}

// run connects, unless there is a connection, and runs do. Its error has advice, and closes a connection that may be
// broken.
func (u *reportSession) run(ctx context.Context, doing string, do func(*pgx.Conn) error) (err error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.conn == nil || u.conn.IsClosed() {
		u.conn, err = u.source.connect(ctx, usageParameters)
	}
	if err == nil {
		err = do(u.conn)
	}
	if err == nil {
		return nil
	}
	failed := &usageError{err: fmt.Errorf("%s: %w", doing, err), advice: u.advice(ctx, err)}
	if answered := new(pgconn.PgError); !errors.As(err, &answered) {
		u.disconnect()
	}
	return failed
}

// disconnect closes the connection. u.mu is held.
func (u *reportSession) disconnect() {
	if u.conn != nil {
		closeConn(u.conn)
		u.conn = nil
	}
}

// Close closes the connection, unless a report is being stored.
func (u *reportSession) Close() {
	if u.mu.TryLock() {
		defer u.mu.Unlock()
		u.disconnect()
	}
}

// advice returns what an operator has to do about an error of Postgres, or "" if there is no advice. u.mu is held.
func (u *reportSession) advice(ctx context.Context, err error) string {
	if ahead := new(migrations.AheadError); migrations.Lacks(err) &&
		errors.As(migrations.CheckAhead(ctx, u.conn), &ahead) {
		return ahead.Error()
	}
	if answered := new(pgconn.PgError); errors.As(err, &answered) && migrations.Advice(err) == "" {
		return answered.Hint
	}
	return migrations.Advice(err)
}

// usageError is the error of a batch that is not stored.
type usageError struct {
	err    error
	advice string
}

func (e *usageError) Error() string { return e.err.Error() }
func (e *usageError) Unwrap() error { return e.err }

// Advice returns what an operator has to do, or "".
func (e *usageError) Advice() string { return e.advice }

// Rejects reports whether Postgres will never store the batch: its values break a rule (SQLSTATE classes 22 and 23).
func (e *usageError) Rejects() bool {
	answered := new(pgconn.PgError)
	return errors.As(e.err, &answered) && slices.Contains([]string{"22", "23"}, answered.Code[:min(2, len(answered.Code))])
}
