package app

import (
	"context"
	"slices"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/pgtest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/migrations"
)

// TestMigrateDownKnowsTheTablesOfEveryMigration takes all migrations back, one after the other, and sees what is gone.
func TestMigrateDownKnowsTheTablesOfEveryMigration(t *testing.T) {
	dsn := pgtest.Start(t).Empty(t)
	config, err := pgx.ParseConfig(dsn)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := migrations.Up(t.Context(), config); err != nil {
		t.Fatal(err)
	}
	pool := pgtest.Pool(t, dsn)
	for before := tables(t, pool); ; {
		undone, err := migrations.Down(t.Context(), config)
		if err != nil {
			t.Fatal(err)
		}
		if undone.Number == 0 {
			break
		}
		after := tables(t, pool)
		gone := slices.DeleteFunc(before, func(table string) bool { return slices.Contains(after, table) })
		if !slices.Equal(gone, tablesOf[undone.Number]) {
			t.Errorf("%s made %v, and the program says %v", undone.File, gone, tablesOf[undone.Number])
		}
		before = after
	}
}

// tables are those of the schema, by name, without the list of migrations.
func tables(t *testing.T, pool *pgxpool.Pool) []string {
	t.Helper()
	rows, err := pool.Query(context.Background(), `SELECT tablename FROM pg_tables WHERE schemaname = 'rate_limiter' AND tablename <> 'migrations' ORDER BY 1`)
	if err != nil {
		t.Fatal(err)
	}
	list, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatal(err)
	}
	return list
}
