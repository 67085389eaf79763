package rows

import (
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/pgtest"
)

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
			found, _ := tx.Query(t.Context(), "EXPLAIN "+sql, args...)
			lines, err := pgx.CollectRows(found, pgx.RowTo[string])
			if plan := strings.Join(lines, "\n"); !strings.Contains(plan, "Gather") {
				t.Errorf("one process reads all:\n%s\n%s", sql, plan)
			}
			return err
		})
		require.NoError(t, err)
	}
}
