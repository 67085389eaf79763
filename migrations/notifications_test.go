package migrations_test

import (
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/pgtest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/soak"
)

func TestNoWriteSendsANotification(t *testing.T) {
	dsn := pgtest.Shared(t).Database(t)
	pool := pgtest.Pool(t, dsn)
	listener, err := pgx.Connect(t.Context(), dsn)
	require.NoError(t, err)
	defer listener.Close(t.Context())
	if _, err := listener.Exec(t.Context(), `LISTEN rate_limiter_changes; LISTEN the_end`); err != nil {
		t.Fatal(err)
	}
	insertGood(t, pool, "tiers", "tenants", "policies", "overrides", "costs")
	exec(t, pool, `NOTIFY the_end`)
	if n, err := listener.WaitForNotification(t.Context()); err != nil || n.Channel != "the_end" {
		t.Errorf("the listener receives %v (%v), want only the end", n, err)
	}
}

// Postgres denies a commit with a notification while its queue is full. Any role can fill the queue: a session that
// listens in an open transaction keeps it from being emptied. The long form fills the 8 GB of Postgres 15.
func TestSoakANodeThatFillsTheQueueOfNotificationsStopsNoWriter(t *testing.T) {
	s := pgtest.Granted(t)
	pool := pgtest.Pool(t, s.RoleDSN(pgtest.Operator))
	listener, node := connect(t, s, pgtest.Node), connect(t, s, pgtest.Node)
	for _, statement := range []string{`LISTEN a`, `BEGIN`} {
		if _, err := listener.Exec(t.Context(), statement); err != nil {
			t.Fatal(err)
		}
	}
	var full error
	for range soak.Count(1, 110) {
		_, full = node.Exec(t.Context(), `SELECT pg_notify('a', i || repeat('x', 7900)) FROM generate_series(1, 10000) i`)
		if full != nil {
			break
		}
	}
	if wanted := soak.Count(0, 1) == 1; wanted != (full != nil) {
		t.Fatalf("the queue is full: %v, want that: %v", full, wanted)
	}
	t.Logf("the queue: %v", full)
	exec(t, pool, `INSERT INTO rate_limiter.tiers (name) VALUES ('gold')`)
}
