package policysync

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
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

// Report stores a batch that began age ago. A batch that is stored already stays as it is.
func (u *UsageSink) Report(
	ctx context.Context, node, epoch string, seq int64, age time.Duration, payload []byte,
) error {
	const sql = `SELECT rate_limiter.report_usage($1, $2, $3, $4, $5)`
	return u.reportBatch(ctx, "report usage", sql, node, epoch, seq, age, payload)
}

// Backlog returns how long ago Postgres stored the oldest batch of all nodes that no process has unpacked; 0: none
// waits.
func (u *UsageSink) Backlog(ctx context.Context) (age time.Duration, err error) {
	err = u.run(ctx, "read the backlog of usage", func(conn *pgx.Conn) error {
		return conn.QueryRow(ctx, `SELECT rate_limiter.usage_backlog()`).Scan(&age)
	})
	return age, err
}

// reportBatch runs a statement that stores a batch. It gives an age instead of an instant, so that all instants are the
// server's.
func (u *reportSession) reportBatch(
	ctx context.Context, doing, sql, source, name string, seq int64, age time.Duration, payload any,
) error {
	called := time.Now()
	return u.run(ctx, doing, func(conn *pgx.Conn) error {
		_, err := conn.Exec(ctx, sql, source, name, seq, age+time.Since(called), payload)
		return err
	})
}

// run connects, unless there is a connection, and runs do. Its error has advice, and closes a connection that may be
// broken.
func (u *reportSession) run(ctx context.Context, doing string, do func(*pgx.Conn) error) (err error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.conn == nil || u.conn.IsClosed() {
		u.conn, err = u.source.connect(ctx, nil) // a batch is removed once it is stored: commits wait for the disk
	}
	if err == nil {
		err = do(u.conn)
	}
	if err == nil {
		return nil
	}
	failed := &advisedError{err: fmt.Errorf("%s: %w", doing, err), advice: adviceOn(ctx, u.conn, err)}
	if answered := new(pgconn.PgError); errors.As(err, &answered) {
		failed.advice = cmp.Or(failed.advice, answered.Hint)
	} else {
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

// adviceOn returns what an operator has to do about an error over a connection, or "" if there is no advice.
func adviceOn(ctx context.Context, conn *pgx.Conn, err error) string {
	if ahead := new(migrations.AheadError); migrations.Lacks(err) &&
		errors.As(migrations.CheckAhead(ctx, conn), &ahead) {
		return ahead.Error()
	}
	return migrations.Advice(err)
}

func adviceOf(err error) string {
	if advised := new(advisedError); errors.As(err, &advised) {
		return advised.advice
	}
	return migrations.Advice(err)
}

// advisedError is an error of Postgres, such as that of a batch that is not stored.
type advisedError struct {
	err    error
	advice string
}

func (e *advisedError) Error() string { return e.err.Error() }
func (e *advisedError) Unwrap() error { return e.err }

// Advice returns what an operator has to do, or "".
func (e *advisedError) Advice() string { return e.advice }

// Rejects reports whether Postgres will never store the batch: its values break a rule (SQLSTATE classes 22 and 23).
func (e *advisedError) Rejects() bool {
	answered := new(pgconn.PgError)
	return errors.As(e.err, &answered) && slices.Contains([]string{"22", "23"}, answered.Code[:min(2, len(answered.Code))])
}

// DenialSink stores recent denials in Postgres and offers denials to webhooks, over a connection of its own. Postgres
// keeps those that a webhook wants.
type DenialSink struct{ reportSession }

// NewDenialSink returns a sink that has not connected yet.
func NewDenialSink(source Source) *DenialSink { return &DenialSink{reportSession{source: source}} }

// DenialEvent is an event about denials.
type DenialEvent struct {
	ID     string          `json:"event"` // unique within the node
	Time   time.Time       `json:"at"`
	Tenant string          `json:"tenant"` // UTF-8 without NUL
	Data   json.RawMessage `json:"data"`
}

// NotWanted is what Report returns where no webhook wants denials.
const NotWanted = -1

// Report offers denials. It returns how many were added, and the IDs of those that were dropped because too many of
// their tenant wait. One that waits already stays as it is.
func (d *DenialSink) Report(
	ctx context.Context, node string, all []DenialEvent,
) (kept int, dropped []string, err error) {
	err = d.report(ctx, `SELECT kept, dropped FROM rate_limiter.report_denials($1, $2)`, node, all, &kept, &dropped)
	return kept, dropped, err
}

// report runs a statement that takes rows as JSON. Its error has the advice in its text.
func (d *DenialSink) report(ctx context.Context, sql, node string, rows any, into ...any) error {
	err := d.run(ctx, "report denials", func(conn *pgx.Conn) error {
		text, err := json.Marshal(rows)
		if err != nil {
			return err
		}
		return conn.QueryRow(ctx, sql, node, string(text)).Scan(into...)
	})
	if advice := adviceOf(err); advice != "" {
		return fmt.Errorf("%w: %s", err, advice)
	}
	return err
}

// ReportRecent adds recent denials, rows of report_recent_denials as JSON, and returns how many. Those of a tenant with
// too many are left out, and one that was added before stays as it is.
func (d *DenialSink) ReportRecent(ctx context.Context, node string, rows any) (added int, err error) {
	err = d.report(ctx, `SELECT rate_limiter.report_recent_denials($1, $2)`, node, rows, &added)
	return added, err
}

// IsStorable reports whether a later try can store what a report has not: its error is neither about the values of the
// report, nor about a bound.
func IsStorable(err error) bool {
	answered := new(pgconn.PgError)
	return !errors.As(err, &answered) || !strings.HasPrefix(answered.Code, "22") && answered.Code != "53400"
}
