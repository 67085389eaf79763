package cli

import (
	"context"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/pgtest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/migrations"
)

// TestMigrateDownListsWhatEveryMigrationMade reverts all migrations, one after the other, and compares what is gone.
func TestMigrateDownListsWhatEveryMigrationMade(t *testing.T) {
	dsn := pgtest.Shared(t).Empty(t)
	config, err := pgx.ParseConfig(dsn)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := migrations.Up(t.Context(), config); err != nil {
		t.Fatal(err)
	}
	pool := pgtest.Pool(t, dsn)
	for before := made(t, pool); ; {
		undone, err := migrations.Down(t.Context(), config)
		if err != nil {
			t.Fatal(err)
		}
		if undone.Number == 0 {
			break
		}
		after := made(t, pool)
		gone := slices.DeleteFunc(before, func(l loss) bool {
			withItsTable := l.column != "" && !slices.Contains(after, loss{table: l.table})
			return withItsTable || slices.Contains(after, l)
		})
		if !slices.Equal(gone, lostWith[undone.Number]) {
			t.Errorf("%s made %v, and the program lists %v", undone.File, gone, lostWith[undone.Number])
		}
		before = after
	}
}

// The transcripts leave out the names of files, so that a new migration changes none.
func TestMigrateNamesTheFilesAndWhatIsLost(t *testing.T) {
	files, err := filepath.Glob("../../migrations/*.sql")
	if err != nil || len(files) == 0 {
		t.Fatalf("%d migrations (%v)", len(files), err)
	}
	x := &terminal{t: t, env: map[string]string{databaseVariable: pgtest.Shared(t).Empty(t)}}
	contains := func(want string, args ...string) {
		t.Helper()
		if x.output.Reset(); x.call(args...) == 1 || !strings.Contains(x.output.String(), want) {
			t.Errorf("%v: want %q in\n%s", args, want, x.output.String())
		}
	}
	applied := ""
	for i, file := range files {
		files[i] = filepath.Base(file)
		applied += "applied " + files[i] + "\n"
	}
	contains(applied, "migrate", "up")
	for number := len(files); number > len(files)-3; number-- {
		last := files[number-1]
		contains("reverting "+last+" deletes ", "migrate", "down")
		for _, l := range lostWith[int64(number)] {
			contains("0 rows of "+l.table, "migrate", "down")
		}
		contains("reverted "+last, "migrate", "down", "--yes")
	}
	contains("\n"+files[0]+" ", "migrate", "status")
}

func TestMigrateDownKeepsAnOpenCandidate(t *testing.T) {
	dsn := pgtest.Shared(t).Database(t)
	config, err := pgx.ParseConfig(dsn)
	if err != nil {
		t.Fatal(err)
	}
	x := &terminal{t: t, env: map[string]string{databaseVariable: dsn}}
	x.must("candidate", "create", "july", "--reason", "smaller limits")
	for _, number := range []int64{26, 25, 23} { // the migrations that made tables and columns of candidates
		for { // those after it say nothing about candidates
			all, err := migrations.Status(t.Context(), config)
			if err != nil {
				t.Fatal(err)
			}
			if all[number].AppliedAt.IsZero() {
				break
			}
			x.must("migrate", "down", "--yes")
		}
		for _, args := range [][]string{{"migrate", "down"}, {"migrate", "down", "--yes"}} {
			x.output.Reset()
			if code := x.call(args...); code == 0 || !strings.Contains(x.output.String(), "candidate july is open, and rev") {
				t.Errorf("%d: %v exits with %d: %s", number, args, code, x.output.String())
			}
		}
		if _, err := migrations.Down(t.Context(), config); err != nil { // as an operator does without this program
			t.Fatal(err)
		}
	}
}

// made returns the tables of the schema and their columns, by name, without the list of migrations.
func made(t *testing.T, pool *pgxpool.Pool) []loss {
	t.Helper()
	rows, err := pool.Query(context.Background(), `
		SELECT tablename::text, '' FROM pg_tables WHERE schemaname = 'rate_limiter' AND tablename <> 'migrations'
		UNION ALL SELECT table_name::text, column_name::text FROM information_schema.columns
			WHERE table_schema = 'rate_limiter' AND table_name <> 'migrations'
		ORDER BY 1, 2`)
	if err != nil {
		t.Fatal(err)
	}
	list, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (l loss, err error) {
		err = row.Scan(&l.table, &l.column)
		return l, err
	})
	if err != nil {
		t.Fatal(err)
	}
	return list
}

func TestMigrateUpWarnsOfASchemaThatBelongsToASuperuser(t *testing.T) {
	server := pgtest.Start(t)
	server.SetUpRoles(t)
	const warning = "owned by the superuser postgres"
	check := func(role string, warns bool) {
		t.Helper()
		x := &terminal{t: t, env: map[string]string{databaseVariable: server.RoleDSN(role)}}
		if code := x.call("migrate", "up"); code != 0 || strings.Contains(x.output.String(), warning) != warns {
			t.Errorf("migrate up as %s: exit code %d, want a warning: %v, in\n%s", role, code, warns, x.output.String())
		}
	}
	check("postgres", true)
	server.HandOver(t)
	check("postgres", false)
	check(pgtest.Owner, false)
}
