// Package leadership chooses the one process that does a kind of work: the one whose session of Postgres holds an
// advisory lock. The leader works in that session, so a process that has lost the lock cannot write.
package leadership

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
)

const (
	// tryTime bounds one try to take the lock, so that a server that does not answer costs the session.
	tryTime = time.Minute
	// closeTime bounds Close.
	closeTime = time.Second
)

// Wait takes the lock for the session. While another session has it, Wait calls waiting, unless it is nil, and tries
// again after the time every. It returns an error of Postgres, or that of ctx.
func Wait(ctx context.Context, conn *pgx.Conn, lock int64, every time.Duration, waiting func()) error {
	for {
		leads, err := TryLock(ctx, conn, lock)
		if leads || err != nil {
			return err
		}
		if waiting != nil {
			waiting()
		}
		Pause(ctx, every)
	}
}

// TryLock takes the lock for the session, and reports false if another session has it.
func TryLock(ctx context.Context, conn *pgx.Conn, lock int64) (leads bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, tryTime)
	defer cancel()
	if err := conn.QueryRow(ctx, `SELECT pg_try_advisory_lock($1)`, lock).Scan(&leads); err != nil {
		return false, fmt.Errorf("take the lock: %w", err)
	}
	return leads, nil
}

// Close releases the locks of the session and ends it. The end of the session would release them too, a moment later.
func Close(conn *pgx.Conn) {
	ctx, cancel := context.WithTimeout(context.Background(), closeTime)
	defer cancel()
	_, _ = conn.Exec(ctx, `SELECT pg_advisory_unlock_all()`) // the session is over: an error changes nothing
	_ = conn.Close(ctx)
	select {
	case <-conn.PgConn().CleanupDone():
	case <-ctx.Done():
	}
}

// Pause waits for a time, or until ctx ends.
func Pause(ctx context.Context, length time.Duration) {
	select {
	case <-time.After(length):
	case <-ctx.Done():
	}
}

// Job is work that one process at a time does: the one that holds the lock.
type Job struct {
	// Connect opens a session of its own, as a role with the rights of keeper.
	Connect func(ctx context.Context) (*pgx.Conn, error)
	// SetUp sets parameters of a new session, and checks its rights; nil: there are none.
	SetUp func(ctx context.Context, conn *pgx.Conn) error
	Lock  int64         // the number of the advisory lock
	Every time.Duration // between two tries to take it
	Retry time.Duration // before a new session; 0: Every
	// Waiting is called while another process has the lock; nil: nothing is.
	Waiting func()
	// Lead does the work in the session that holds the lock, until there is an error or ctx ends.
	Lead  func(ctx context.Context, conn *pgx.Conn) error
	Fault *Fault // records the errors of sessions; Lead records successes
}

// Run does a job, or waits for its lock, until ctx ends. After an error it starts a new session, so it always returns
// nil.
func Run(ctx context.Context, j Job) error {
	for ctx.Err() == nil {
		if err := j.session(ctx); err != nil && ctx.Err() == nil {
			j.Fault.Record(err)
		}
		Pause(ctx, cmp.Or(j.Retry, j.Every))
	}
	return nil
}

func (j Job) session(ctx context.Context) error {
	conn, err := j.Open(ctx)
	if err != nil {
		return err
	}
	defer Close(conn)
	if err := Wait(ctx, conn, j.Lock, j.Every, j.Waiting); err != nil {
		return err
	}
	return j.Lead(ctx, conn)
}

// Open opens a session for the job, which does not hold the lock.
func (j Job) Open(ctx context.Context) (*pgx.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, tryTime)
	defer cancel()
	conn, err := j.Connect(ctx)
	if err != nil {
		return nil, fmt.Errorf("connect: %w", err)
	}
	if j.SetUp != nil {
		if err := j.SetUp(ctx, conn); err != nil {
			Close(conn)
			return nil, err
		}
	}
	return conn, nil
}

// Fault logs the first error of some work, and the first success after it. It is safe for concurrent use.
type Fault struct {
	Log    *slog.Logger
	Level  slog.Level // of Begins
	Begins string
	Ends   string             // "": the success is not logged
	Advice func(error) string // what an operator has to do about an error, or ""; nil: there is no advice

	failing atomic.Bool
}

// Failing reports whether the last work failed.
func (f *Fault) Failing() bool { return f.failing.Load() }

// Record records an error of the work, or a success.
func (f *Fault) Record(err error) {
	before := f.failing.Swap(err != nil)
	switch {
	case err != nil && !before:
		args := []any{"error", err}
		if f.Advice != nil {
			args = append(args, "advice", f.Advice(err))
		}
		f.Log.Log(context.Background(), f.Level, f.Begins, args...)
	case err == nil && before && f.Ends != "":
		f.Log.Info(f.Ends)
	}
}

// Wrap returns an error with what could not be done, or nil for nil.
func Wrap(doing string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s: %w", doing, err)
}
