package migrations_test

import (
	"errors"
	"fmt"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/pgtest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/soak"
)

// recorded holds the fields of an audit row that tests read.
type recorded struct {
	Version                                     int64
	Actor, Reason, Kind, Operation, Key, Tenant string
	Before, After                               map[string]any
}

func TestTokensAreAuditedWithoutTheirHashAndMakeNoVersion(t *testing.T) {
	pool := pgtest.Pool(t, pgtest.Shared(t).Database(t))
	insertGood(t, pool, "policies", "tokens")
	exec(t, pool, `UPDATE rate_limiter.tokens SET last_used_at = now()`)
	as(t, pool, "ann", "it leaked", `UPDATE rate_limiter.tokens SET revoked_at = now(), revoked_by = rate_limiter.actor()`)
	all := audit(t, pool)
	if len(all) != 3 || version(t, pool) != 1 {
		t.Fatalf("%d audit rows in version %d, want 3 in 1: creation and revocation are recorded, use is not",
			len(all), version(t, pool))
	}
	made, revoked := all[1], all[2]
	if made.Kind != "token" || made.Operation != "insert" || made.Key != "ci" || made.Actor != "postgres" ||
		made.Before != nil || made.After["role"] != "admin" {
		t.Errorf("the creation of a token is recorded as %+v", made)
	}
	if revoked.Operation != "update" || revoked.Actor != "ann" || revoked.Reason != "it leaked" ||
		revoked.Before["revoked_by"] != "" || revoked.After["revoked_by"] != "ann" {
		t.Errorf("the revocation of a token is recorded as %+v", revoked)
	}
	for _, row := range []map[string]any{made.After, revoked.Before, revoked.After} {
		if _, ok := row["hash"]; ok {
			t.Errorf("the audit has the hash: %v", row)
		}
	}
}

func TestATokenCannotBeChangedDeletedOrMadeLiveAgain(t *testing.T) {
	pool := pgtest.Pool(t, pgtest.Shared(t).Database(t))
	insertGood(t, pool, "tokens")
	forbidden := []string{
		`UPDATE rate_limiter.tokens SET role = 'viewer'`, `UPDATE rate_limiter.tokens SET expires_at = '2100-01-01'`,
		`UPDATE rate_limiter.tokens SET hash = sha256('other')`, `DELETE FROM rate_limiter.tokens`,
		`TRUNCATE rate_limiter.tokens`,
	}
	for _, statement := range forbidden {
		if _, err := pool.Exec(t.Context(), statement); err == nil {
			t.Errorf("%s is possible", statement)
		}
	}
	exec(t, pool, `UPDATE rate_limiter.tokens SET revoked_at = now(), revoked_by = 'ann'`)
	if _, err := pool.Exec(t.Context(), `UPDATE rate_limiter.tokens SET revoked_at = NULL, revoked_by = ''`); err == nil {
		t.Error("a revoked token is live again")
	}
}

func TestAnUpdateWithoutAChangeIsNotRecorded(t *testing.T) {
	pool := pgtest.Pool(t, pgtest.Shared(t).Database(t))
	insertGood(t, pool, "policies")
	exec(t, pool, `UPDATE rate_limiter.policies SET "limit" = "limit"`)
	exec(t, pool, `UPDATE rate_limiter.policies SET "limit" = 7 WHERE name = 'none'`)
	exec(t, pool, `DELETE FROM rate_limiter.tenants`)
	if v, rows := version(t, pool), count(t, pool, "audit"); v != 1 || rows != 1 {
		t.Errorf("version %d with %d audit rows, want 1 and 1", v, rows)
	}
}

func TestOneTransactionHasOneVersion(t *testing.T) {
	pool := pgtest.Pool(t, pgtest.Shared(t).Database(t))
	err := pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
		for i := range 3 {
			if _, err := tx.Exec(t.Context(), `INSERT INTO rate_limiter.tenants (id) VALUES ($1)`,
				fmt.Sprint("t", i)); err != nil {
				return err
			}
		}
		_, err := tx.Exec(t.Context(), `UPDATE rate_limiter.tenants SET id = 'renamed' WHERE id = 't0'`)
		return err
	})
	require.NoError(t, err)
	rows, err := pool.Query(t.Context(), `SELECT version || ' ' || operation || ' ' || key
		FROM rate_limiter.changes ORDER BY number`)
	require.NoError(t, err)
	changes, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil || len(changes) != 5 {
		t.Fatalf("the changes are %q (%v), want 3 inserts, and a delete and an insert for a key that changed", changes, err)
	}
	for _, change := range changes {
		if change[0] != '1' {
			t.Errorf("%q is not of version 1", change)
		}
	}
}

func TestAnOverrideMovesToTheHistoryOnlyWithAReason(t *testing.T) {
	pool := pgtest.Pool(t, pgtest.Shared(t).Database(t))
	insertGood(t, pool, "overrides")
	for _, statement := range []string{
		`DELETE FROM rate_limiter.overrides`, `UPDATE rate_limiter.overrides SET "limit" = 7`,
	} {
		_, err := pool.Exec(t.Context(), statement)
		if violated := new(pgconn.PgError); !errors.As(err, &violated) ||
			violated.ConstraintName != "overrides_change_reason" {
			t.Errorf("%s: %v, want an error without a reason", statement, err)
		}
	}
	as(t, pool, "ann", "the launch is over", `DELETE FROM rate_limiter.overrides`)
	var by, why, reason string
	err := pool.QueryRow(t.Context(), `SELECT ended_by, end_reason, reason FROM rate_limiter.override_history`).Scan(&by,
		&why, &reason)
	if err != nil || by != "ann" || why != "the launch is over" || reason != "launch" {
		t.Errorf("the history has %q, %q, %q (%v)", by, why, reason, err)
	}
}

func TestTheRecordCannotBeChanged(t *testing.T) {
	pool := pgtest.Pool(t, pgtest.Shared(t).Database(t))
	insertGood(t, pool, "policies")
	for _, statement := range []string{
		`UPDATE rate_limiter.audit SET actor = 'bob'`, `DELETE FROM rate_limiter.audit`, `TRUNCATE rate_limiter.audit`,
		`TRUNCATE rate_limiter.policies`, `TRUNCATE rate_limiter.overrides`,
	} {
		if _, err := pool.Exec(t.Context(), statement); err == nil {
			t.Errorf("%s is possible", statement)
		}
	}
}

func insertGood(t *testing.T, pool *pgxpool.Pool, tables ...string) {
	t.Helper()
	for _, table := range tables {
		if err := insert(t, pool, table, good[table]); err != nil {
			t.Fatalf("%s: %v", table, err)
		}
	}
}

// as runs a statement with an actor and a reason.
func as(t *testing.T, pool *pgxpool.Pool, actor, reason, statement string) {
	t.Helper()
	err := pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
		_, err := tx.Exec(t.Context(), `SELECT set_config('rate_limiter.actor', $1, true),
			set_config('rate_limiter.reason', $2, true)`, actor, reason)
		if err == nil {
			_, err = tx.Exec(t.Context(), statement)
		}
		return err
	})
	if err != nil {
		t.Fatalf("%s: %v", statement, err)
	}
}

func audit(t *testing.T, pool *pgxpool.Pool) []recorded {
	t.Helper()
	rows, err := pool.Query(t.Context(), `SELECT version, actor, reason, kind, operation, key, tenant, before, after
		FROM rate_limiter.audit ORDER BY id`)
	require.NoError(t, err)
	all, err := pgx.CollectRows(rows, pgx.RowToStructByPos[recorded])
	require.NoError(t, err)
	return all
}

func TestNoWriteSendsANotification(t *testing.T) {
	dsn := pgtest.Shared(t).Database(t)
	pool := pgtest.Pool(t, dsn)
	listener, err := pgx.Connect(t.Context(), dsn)
	require.NoError(t, err)
	defer listener.Close(t.Context())
	if _, err := listener.Exec(t.Context(), `LISTEN rate_limiter_changes; LISTEN the_end`); err != nil {
		t.Fatal(err)
	}
	insertGood(t, pool, "tiers", "tenants", "policies", "overrides", "costs", "prices")
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
