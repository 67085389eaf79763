// Package leadership chooses the one process that does a kind of work: the one whose session of Postgres holds an
// advisory lock. The leader works in that session, so a process that has lost the lock cannot write.
package leadership

import (
	"context"
	"fmt"
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
