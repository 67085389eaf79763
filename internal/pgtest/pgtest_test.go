package pgtest_test

import (
	"context"
	"testing"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/pgtest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

func TestDatabasesOfOneServerShareNoRows(t *testing.T) {
	s := pgtest.Shared(t)
	ctx := context.Background()
	first, second := pgtest.Pool(t, s.Database(t)), pgtest.Pool(t, s.Database(t))
	pgtest.Exec(t, first, `INSERT INTO rate_limiter.tenants (id, tier) VALUES ('acme', 'gold')`)
	var rows int
	if err := second.QueryRow(ctx, `SELECT count(*) FROM rate_limiter.tenants`).Scan(&rows); err != nil || rows != 0 {
		t.Errorf("the other database has %d tenants (%v), want 0", rows, err)
	}
}

func TestAKilledOrStoppedServerRestartsWithItsData(t *testing.T) {
	s := pgtest.Start(t)
	ctx := context.Background()
	pool := pgtest.Pool(t, s.Empty(t))
	pgtest.Exec(t, pool, `CREATE TABLE kept (word text); INSERT INTO kept VALUES ('before')`)
	address := s.Address()
	for name, end := range map[string]func(testing.TB){"kill": s.Kill, "stop": s.Stop} {
		end(t)
		if pool.Ping(ctx) == nil {
			t.Errorf("after %s the server still answers", name)
		}
		s.Start(t)
		pool.Reset()
		var word string
		if err := pool.QueryRow(ctx, `SELECT word FROM kept`).Scan(&word); err != nil || word != "before" {
			t.Errorf("after %s it has %q (%v), want the row from before", name, word, err)
		}
	}
	if s.Address() != address {
		t.Errorf("it restarted on %s, want %s", s.Address(), address)
	}
}

func TestServersStartWithTheGrantsAndShareNoRoles(t *testing.T) {
	ctx := context.Background()
	for range 2 { // the second starts with a copy of the data that the first started with
		s := pgtest.Granted(t)
		if _, err := pgtest.Pool(t, s.RoleDSN("postgres")).Exec(ctx, `CREATE ROLE ann`); err != nil {
			t.Error(err)
		}
		node := pgtest.Pool(t, s.RoleDSN(pgtest.Node))
		if _, err := node.Exec(ctx, `SELECT FROM rate_limiter.policies`); err != nil {
			t.Errorf("a node may not read policies: %v", err)
		}
		if _, err := node.Exec(ctx, `DELETE FROM rate_limiter.policies`); err == nil {
			t.Error("a node may delete policies")
		}
	}
}
