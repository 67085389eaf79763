package rows_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/await"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/pgtest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/database/rows"
)

// Postgres plans a prepared statement for all values once it has been executed a few times.
func TestAFilterByARareValueReadsFewRowsAlsoWhenItIsRepeated(t *testing.T) {
	const list, calls = 20_000, 10
	dsn := pgtest.Shared(t).Database(t)
	pool := pgtest.Pool(t, dsn)
	const insert = `INSERT INTO rate_limiter.recent_denials (login, node, event, at, tenant, endpoint,
			policy, scope, reason, shadow, count, tenant_count, "user", ip)
		SELECT 'node', $2, i, now() - i * interval '1 second', 'acme', '', $2, 'tenant', 'quota', false, 1, 1, '', ''
		FROM generate_series(1, $1) i`
	_, err := pool.Exec(t.Context(), insert, list, "minute")
	if err == nil {
		_, err = pool.Exec(t.Context(), `ANALYZE rate_limiter.recent_denials`) // whose sample misses a rare value
	}
	if err == nil {
		_, err = pool.Exec(t.Context(), insert, 1, "rare")
	}
	require.NoError(t, err)
	read := func() (n int64) {
		err := pool.QueryRow(t.Context(), `SELECT seq_tup_read + idx_tup_fetch FROM pg_stat_user_tables
			WHERE relname = 'recent_denials'`).Scan(&n)
		require.NoError(t, err)
		return n
	}
	reader := pgtest.Pool(t, dsn+"&pool_max_conns=1")
	before := read()
	for range calls {
		found, err := rows.New(reader).Denials(t.Context(), rows.DenialFilter{Policy: "rare", Max: 51})
		if err != nil || len(found) != 1 {
			t.Fatalf("%d denials (%v), want one", len(found), err)
		}
	}
	reader.Reset() // the end of a connection writes its statistics
	await.That(t, "there are statistics of the reads", func() bool { return read() >= before+calls })
	if got := read() - before; got > list/20 {
		t.Errorf("%d reads of one row visit %d", calls, got)
	}
}
