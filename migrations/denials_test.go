package migrations_test

import (
	"errors"
	"maps"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/pgtest"
)

// wantCode fails unless an error of Postgres has a SQLSTATE.
func wantCode(t *testing.T, err error, code string) {
	t.Helper()
	if failed := new(pgconn.PgError); !errors.As(err, &failed) || failed.Code != code {
		t.Errorf("the error is %v, want the SQLSTATE %s", err, code)
	}
}

// flood has a node send reports of 400 rows that count 500 denials each, from the report first on.
func flood(t *testing.T, pool *pgxpool.Pool, tenant string, first, reports int) {
	t.Helper()
	exec(t, pool, `SELECT rate_limiter.report_recent_denials('n1', (
			SELECT json_agg(json_build_object('event', $1 || '-' || (report * 400 + row), 'age', 0, 'tenant', $1,
				'endpoint', 'GET /a', 'policy', 'daily', 'scope', 'tenant', 'limit', 1, 'window_size', 60,
				'reason', 'quota', 'shadow', false, 'count', 500, 'tenant_count', 500, 'user', '', 'ip', ''))
			FROM generate_series(1, 400) row))
		FROM generate_series($2::int, $2::int + $3::int - 1) report`, tenant, first, reports)
}

func TestAMillionDenialsHaveABoundedNumberOfRowsAndTheKeeperDropsTheOldest(t *testing.T) {
	s := pgtest.Granted(t)
	node, owner := pgtest.Pool(t, s.RoleDSN(pgtest.Node)), pgtest.Pool(t, s.RoleDSN(pgtest.Owner))
	keeper := pgtest.Pool(t, s.RoleDSN(pgtest.Keeper))
	flood(t, node, "globex", 0, 1)
	flood(t, node, "acme", 0, 5)  // a million
	flood(t, node, "acme", 0, 5)  // what was stored stays as it is
	flood(t, node, "acme", 5, 15) // 3 million more
	if n := count(t, owner, "recent_denials"); n != 400+6000 {
		t.Errorf("4.2 million denials have %d rows, want those of a tenant bounded", n)
	}
	exec(t, owner, `UPDATE rate_limiter.recent_denials SET at = at - interval '8 days' WHERE event = 'globex-7'`)
	drops := func() (dropped int) {
		t.Helper()
		require.NoError(t, keeper.QueryRow(t.Context(), `SELECT rate_limiter.drop_recent_denials(600)`).Scan(&dropped))
		return dropped
	}
	if first, second, third := drops(), drops(), drops(); first != 600 || second != 401 || third != 0 {
		t.Errorf("the keeper drops %d, %d and %d rows, want 600 and 401", first, second, third)
	}
	counts := pairs(t, owner, `SELECT tenant, rows::text FROM rate_limiter.recent_denial_counts`)
	left := pairs(t, owner, `SELECT tenant, count(*)::text FROM rate_limiter.recent_denials GROUP BY 1`)
	if want := map[string]string{"acme": "5000", "globex": "399"}; !maps.Equal(counts, want) || !maps.Equal(left, want) {
		t.Errorf("the rows are %v, counted as %v, want %v", left, counts, want)
	}
	exec(t, owner, `UPDATE rate_limiter.recent_denial_counts SET rows = 250000 WHERE tenant = 'acme'`)
	_, err := node.Exec(t.Context(), `SELECT rate_limiter.report_recent_denials('n1', '[]')`)
	wantCode(t, err, "53400")
}

func TestAReportOfRecentDenialsIsBounded(t *testing.T) {
	node := pgtest.Pool(t, pgtest.Granted(t).RoleDSN(pgtest.Node))
	for _, report := range []string{
		`SELECT rate_limiter.report_recent_denials('', '[]')`,
		`SELECT rate_limiter.report_recent_denials(NULL, '[]')`,
		`SELECT rate_limiter.report_recent_denials('n1', '{}')`,
		`SELECT rate_limiter.report_recent_denials('n1', NULL)`,
		`SELECT rate_limiter.report_recent_denials('n1', json_build_array(repeat('x', 1048576)))`,
		`SELECT rate_limiter.report_recent_denials('n1', (SELECT json_agg('{}'::json) FROM generate_series(1, 501)))`,
	} {
		_, err := node.Exec(t.Context(), report)
		wantCode(t, err, "22023")
	}
	var added int
	err := node.QueryRow(t.Context(), `SELECT rate_limiter.report_recent_denials('n1', '[{}, {"event":"a","age":0,
		"tenant":"acme","endpoint":"","policy":"","scope":"","reason":"","shadow":false,"count":0,"tenant_count":1,
		"user":"","ip":""}]')`).Scan(&added)
	if err != nil || added != 0 {
		t.Errorf("%d rows without values are added (%v)", added, err)
	}
	err = node.QueryRow(t.Context(), `SELECT rate_limiter.report_recent_denials('n1', (
		SELECT json_agg(json_build_object('event', ids || '-' || bytes, 'age', 0, 'tenant', 'acme', 'endpoint', '',
			'policy', '', 'scope', '', 'reason', 'quota', 'shadow', false, 'count', 1, 'tenant_count', 1, 'user', '',
			'ip', '', 'request_ids', array_to_json(array_fill(repeat('x', bytes), ARRAY[ids]))))
		FROM (VALUES (32, 64), (33, 1), (1, 5000)) v(ids, bytes)))`).Scan(&added)
	if err != nil || added != 1 {
		t.Errorf("%d rows are added (%v), want that with 32 ids of 64 bytes alone", added, err)
	}
}
