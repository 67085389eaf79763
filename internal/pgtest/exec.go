package pgtest

import (
	"context"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"
)

// Execer is a pool, a connection or a transaction.
type Execer interface {
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
}

// Exec runs statements.
func Exec(t testing.TB, by Execer, sql string, args ...any) {
	t.Helper()
	_, err := by.Exec(context.Background(), sql, args...)
	must(t, "run statements", err)
}
