package rows

import (
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/pgtest"
)

func TestSignInsReadNoAudit(t *testing.T) {
	t.Parallel()
	plan, err := planOf(t, pgtest.Pool(t, pgtest.Shared(t).Database(t)), selectSecrets)
	require.NoError(t, err)
	require.NotContains(t, plan, "audit")
	require.Contains(t, plan, "tokens")
}

// planOf returns how Postgres would run a statement.
func planOf(t *testing.T, q querier, sql string, args ...any) (string, error) {
	t.Helper()
	found, _ := q.Query(t.Context(), "EXPLAIN "+sql, args...)
	lines, err := pgx.CollectRows(found, pgx.RowTo[string])
	return strings.Join(lines, "\n"), err
}

func TestSumsOverAllTenantsAreReadByProcessesInParallel(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t, pgtest.Shared(t).Database(t))
	now := time.Now()
	for _, fill := range []string{
		`SELECT rate_limiter.keep_usage_partitions()`,
		`INSERT INTO rate_limiter.usage_hours (at, admitted, soft, denied, shadow_denied, cost, tenant, endpoint, policy)
			SELECT date_trunc('hour', now()), 1, 0, 0, 0, 0, n, 0, 0 FROM generate_series(1, 20000) n`,
		`ANALYZE rate_limiter.usage_hours`,
	} {
		_, err := pool.Exec(t.Context(), fill)
		require.NoError(t, err)
	}
	hours := UsageSteps[1]
	history := UsageQuery{AllTenants: true, From: now.Add(-24 * time.Hour), To: now.Add(time.Hour), Step: hours}
	sum, args := history.sql()
	top := UsageTopQuery{By: "denied", Max: 10}
	for sql, args := range map[string][]any{sum: args, top.sql(hours): {history.From, history.To, "", 10}} {
		err := pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
			_, err := tx.Exec(t.Context(), `SET LOCAL parallel_setup_cost = 0; SET LOCAL parallel_tuple_cost = 0;
				SET LOCAL min_parallel_table_scan_size = 0`)
			require.NoError(t, err)
			plan, err := planOf(t, tx, sql, args...)
			if !strings.Contains(plan, "Gather") {
				t.Errorf("one process reads all:\n%s\n%s", sql, plan)
			}
			return err
		})
		require.NoError(t, err)
	}
}
