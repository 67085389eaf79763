package migrations_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/pgtest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/migrations"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// files is the number of migrations.
var files = func() int {
	list, _ := filepath.Glob("*.sql") // the pattern is valid
	return len(list)
}()

func TestDownAndUpAgainRestoreTheSameTables(t *testing.T) {
	dsn := pgtest.Shared(t).Empty(t)
	config := parse(t, dsn)
	if applied := up(t, config); len(applied) != files {
		t.Fatalf("the first run applies %v, want %d migrations", applied, files)
	}
	before := description(t, dsn)
	pool := pgtest.Pool(t, dsn)
	tables := tableNames(t, pool)
	for want := int64(files); want >= 0; want-- {
		undone, err := migrations.Down(t.Context(), config)
		if err != nil || undone.Number != want {
			t.Fatalf("down reverts %v (%v), want number %d", undone, err, want)
		}
		left := tableNames(t, pool)
		for _, table := range migrations.Tables(undone.File) {
			if slices.Contains(left, table) {
				t.Errorf("%s is there after %s was reverted", table, undone.File)
			}
			left = append(left, table)
		}
		if slices.Sort(left); !slices.Equal(left, tables) {
			t.Errorf("%s drops other tables than it lists: %v became %v", undone.File, tables, left)
		}
		tables = tableNames(t, pool)
	}
	if left := description(t, dsn); len(left) != 0 {
		t.Errorf("after all downs there is %v", left)
	}
	up(t, config)
	after := description(t, dsn)
	if len(before) == 0 || len(before) != len(after) {
		t.Fatalf("%d objects before, %d after", len(before), len(after))
	}
	for i := range before {
		if before[i] != after[i] {
			t.Errorf("%s before, %s after", before[i], after[i])
		}
	}
}

func TestUpWithNothingToDoIsNoError(t *testing.T) {
	config := parse(t, pgtest.Shared(t).Database(t))
	if applied := up(t, config); len(applied) != 0 {
		t.Errorf("it applies %v again", applied)
	}
}

func TestStatusListsAppliedAndPendingMigrations(t *testing.T) {
	config := parse(t, pgtest.Shared(t).Database(t))
	if _, err := migrations.Down(t.Context(), config); err != nil {
		t.Fatal(err)
	}
	all, err := migrations.Status(t.Context(), config)
	if err != nil || len(all) != files {
		t.Fatalf("the state is %v (%v), want %d migrations", all, err, files)
	}
	for i, m := range all {
		if m.Number != int64(i+1) || m.AppliedAt.IsZero() != (i == files-1) || m.File == "" {
			t.Errorf("migration %d is %+v; all but the last are applied", i+1, m)
		}
	}
}

func TestLaterMigrationsKeepTheRows(t *testing.T) {
	dsn := pgtest.Shared(t).Database(t)
	config := parse(t, dsn)
	for range files - 2 { // until there are policies and no overrides
		if _, err := migrations.Down(t.Context(), config); err != nil {
			t.Fatal(err)
		}
	}
	pool := pgtest.Pool(t, dsn)
	exec(t, pool, `INSERT INTO rate_limiter.tenants (id, tier) VALUES ('acme', 'gold')`)
	exec(t, pool, `INSERT INTO rate_limiter.policies (name, tier, scope, "limit", window_size)
		VALUES ('daily', 'gold', 'tenant', 100, 86400)`)
	up(t, config)
	if tenants, policies := count(t, pool, "tenants"), count(t, pool, "policies"); tenants != 1 || policies != 1 {
		t.Errorf("%d tenants and %d policies remain, want 1 and 1", tenants, policies)
	}
	if got := version(t, pool); got != 2 {
		t.Errorf("the version is %d, want that of the two changes", got)
	}
}

func TestASecondRunWaitsAndFindsNothingToDo(t *testing.T) {
	config := parse(t, pgtest.Shared(t).Empty(t))
	applied := make([]int, 4)
	var nodes errgroup.Group
	for i := range applied {
		nodes.Go(func() error {
			done, err := migrations.Up(t.Context(), config)
			applied[i] = len(done)
			return err
		})
	}
	require.NoError(t, nodes.Wait())
	total, most := 0, 0
	for _, n := range applied {
		total, most = total+n, max(most, n)
	}
	if total != files || most != files {
		t.Errorf("the runs apply %v migrations, want %d by one of them", applied, files)
	}
}

func TestUpStopsWaitingWhenItsContextEnds(t *testing.T) {
	config := parse(t, pgtest.Shared(t).Database(t))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := migrations.Up(ctx, config); err == nil {
		t.Error("a run without time succeeds")
	}
}

func tableNames(t *testing.T, pool *pgxpool.Pool) []string {
	t.Helper()
	rows, err := pool.Query(t.Context(), `SELECT tablename::text FROM pg_tables
		WHERE schemaname = 'rate_limiter' AND tablename <> 'migrations' ORDER BY tablename::text COLLATE "C"`)
	require.NoError(t, err)
	list, err := pgx.CollectRows(rows, pgx.RowTo[string])
	require.NoError(t, err)
	return list
}

// description lists all tables, columns, constraints, indexes, functions and triggers of the schema but goose's.
func description(t *testing.T, dsn string) []string {
	t.Helper()
	connection, err := pgx.Connect(t.Context(), dsn)
	require.NoError(t, err)
	defer connection.Close(t.Context())
	rows, err := connection.Query(t.Context(), `
		SELECT 'column ' || table_name || '.' || column_name || ' ' || data_type AS what
		FROM information_schema.columns WHERE table_schema = 'rate_limiter' AND table_name <> 'migrations'
		UNION ALL SELECT 'constraint ' || conname || ' ' || pg_get_constraintdef(oid)
		FROM pg_constraint WHERE connamespace = 'rate_limiter'::regnamespace
		AND conrelid <> 'rate_limiter.migrations'::regclass
		UNION ALL SELECT 'index ' || indexdef FROM pg_indexes WHERE schemaname = 'rate_limiter' AND tablename <> 'migrations'
		UNION ALL SELECT 'function ' || pg_get_functiondef(oid) FROM pg_proc WHERE pronamespace = 'rate_limiter'::regnamespace
		UNION ALL SELECT 'trigger ' || pg_get_triggerdef(g.oid) FROM pg_trigger g JOIN pg_class c ON c.oid = g.tgrelid
		WHERE c.relnamespace = 'rate_limiter'::regnamespace AND NOT g.tgisinternal
		ORDER BY what`)
	require.NoError(t, err)
	all, err := pgx.CollectRows(rows, pgx.RowTo[string])
	require.NoError(t, err)
	return all
}

func parse(t *testing.T, dsn string) *pgx.ConnConfig {
	t.Helper()
	config, err := pgx.ParseConfig(dsn)
	require.NoError(t, err)
	return config
}

func up(t *testing.T, config *pgx.ConnConfig) []migrations.Migration {
	t.Helper()
	applied, err := migrations.Up(t.Context(), config)
	require.NoError(t, err)
	return applied
}

func exec(t *testing.T, pool *pgxpool.Pool, statement string, args ...any) {
	t.Helper()
	if _, err := pool.Exec(t.Context(), statement, args...); err != nil {
		t.Fatalf("%s: %v", statement, err)
	}
}

func count(t *testing.T, pool *pgxpool.Pool, table string) (rows int) {
	t.Helper()
	if err := pool.QueryRow(t.Context(), `SELECT count(*) FROM rate_limiter.`+table).Scan(&rows); err != nil {
		t.Fatalf("count the rows of %s: %v", table, err)
	}
	return rows
}

func version(t *testing.T, pool *pgxpool.Pool) (version int64) {
	t.Helper()
	if err := pool.QueryRow(t.Context(), `SELECT version FROM rate_limiter.version`).Scan(&version); err != nil {
		t.Fatalf("read the version: %v", err)
	}
	return version
}

func TestAdviceIsForErrorsThatOnlyAnOperatorCanResolve(t *testing.T) {
	t.Parallel()
	for code, want := range map[string]string{
		"42703": "migrate up", "42P01": "migrate up", "42883": "migrate up",
		"42501": "migrations/README.md", "25006": "read-only",
		"28P01": "connection string", "28000": "connection string", "3D000": "connection string", "40001": "", "57P01": "",
	} {
		got := migrations.Advice(fmt.Errorf("load: %w", &pgconn.PgError{Code: code}))
		if !strings.Contains(got, want) || (want == "") != (got == "") {
			t.Errorf("the advice about %s is %q, want %q in it", code, got, want)
		}
	}
	if got := migrations.Advice(errors.New("42703")); got != "" {
		t.Errorf("the advice about another error is %q", got)
	}
}

var update = flag.Bool("update", false, "rewrite testdata/schema.sql")

// TestTheSchemaIsAsPublished compares the dump of a migrated database, with its grants, with testdata/schema.sql.
func TestTheSchemaIsAsPublished(t *testing.T) {
	const file = "testdata/schema.sql"
	dump := pgtest.Granted(t).Dump(t)
	if *update {
		require.NoError(t, os.WriteFile(file, []byte(dump), 0o666))
	}
	published, err := os.ReadFile(file)
	require.NoError(t, err)
	got, want := strings.Split(dump, "\n"), strings.Split(string(published), "\n")
	for i := range min(len(got), len(want)) {
		if got[i] != want[i] {
			t.Fatalf("%s:%d is %q, and the database has %q; -update rewrites the file", file, i+1, want[i], got[i])
		}
	}
	if len(got) != len(want) {
		t.Errorf("%s has %d lines, and the database %d; -update rewrites the file", file, len(want), len(got))
	}
}
