package rows_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/pgtest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/database/rows"
)

// may is the first of a month whose days are closed up to the third. The first two days are in the days, the others in
// the hours.
var may = time.Date(2099, 5, 1, 0, 0, 0, 0, time.UTC)

// exported returns a store with two tenants, who have used one endpoint on each of four days.
func exported(t *testing.T) *rows.DB {
	t.Helper()
	pool := pgtest.Pool(t, pgtest.Shared(t).Database(t))
	_, err := pool.Exec(t.Context(), `
		CREATE TABLE rate_limiter.usage_days_2099 PARTITION OF rate_limiter.usage_days
			FOR VALUES FROM ('2099-01-01 00:00:00+00') TO ('2100-01-01 00:00:00+00');
		CREATE TABLE rate_limiter.usage_hours_2099 PARTITION OF rate_limiter.usage_hours
			FOR VALUES FROM ('2099-01-01 00:00:00+00') TO ('2100-01-01 00:00:00+00');
		UPDATE rate_limiter.usage_state SET hours_until = '2099-05-05 00:00:00+00', days_until = '2099-05-03 00:00:00+00';
		INSERT INTO rate_limiter.usage_names (name) VALUES (''), ('acme'), (E'=cmd,"b"\n'), ('GET /a'), ('daily');
		INSERT INTO rate_limiter.usage_days (at, tenant, endpoint, policy, late, admitted, soft, denied, shadow_denied, cost)
		SELECT d, t.id, e.id, p.id, d = '2099-05-02 00:00:00+00', 3, 2, 1, 0, CASE p.name WHEN '' THEN 0 ELSE -30 END
		FROM rate_limiter.usage_names t, rate_limiter.usage_names e, rate_limiter.usage_names p,
			generate_series(timestamptz '2099-04-30 00:00:00+00', timestamptz '2099-05-02 00:00:00+00', '1 day') d
		WHERE t.name IN ('acme', E'=cmd,"b"\n') AND e.name = 'GET /a' AND p.name IN ('', 'daily');
		INSERT INTO rate_limiter.usage_hours (at, tenant, endpoint, policy, admitted, soft, denied, shadow_denied, cost)
		SELECT d, t.id, e.id, p.id, 1, 0, 0, 0, CASE p.name WHEN '' THEN 0 ELSE 7 END
		FROM rate_limiter.usage_names t, rate_limiter.usage_names e, rate_limiter.usage_names p,
			generate_series(timestamptz '2099-05-01 00:00:00+00', timestamptz '2099-05-04 23:00:00+00', '1 hour') d
		WHERE t.name = 'acme' AND e.name = 'GET /a' AND p.name IN ('', 'daily')`)
	require.NoError(t, err)
	return rows.New(pool)
}

// export returns the rows of an export of May.
func export(t *testing.T, s *rows.DB, change func(*rows.UsageExportQuery)) string {
	t.Helper()
	q := rows.UsageExportQuery{From: may, To: may.AddDate(0, 1, 0)}
	change(&q)
	var list []string
	for r, err := range s.UsageExport(t.Context(), q) {
		require.NoError(t, err)
		cost := "-"
		if r.Cost != nil {
			cost = fmt.Sprint(*r.Cost)
		}
		list = append(list, fmt.Sprintf("%s %q %s %q %d %d %s %v", r.Day, r.Tenant, r.Endpoint, r.Policy, r.Admitted, r.Late,
			cost, r.Closed))
	}
	return strings.Join(list, "\n")
}

func TestAnExportHasTheClosedDaysByTenantAndEndpoint(t *testing.T) {
	s := exported(t)
	if until, err := s.UsageClosedUntil(t.Context()); err != nil || !until.Equal(may.AddDate(0, 0, 2)) {
		t.Errorf("the days until %v are closed (%v)", until, err)
	}
	for want, change := range map[string]func(*rows.UsageExportQuery){
		`2099-05-01 "=cmd,\"b\"\n" GET /a "" 3 0 - true
2099-05-01 "acme" GET /a "" 3 0 - true
2099-05-02 "=cmd,\"b\"\n" GET /a "" 3 4 - true
2099-05-02 "acme" GET /a "" 3 4 - true`: func(*rows.UsageExportQuery) {},
		`2099-05-02 "=cmd,\"b\"\n" GET /a "daily" 3 4 -30 true
2099-05-02 "acme" GET /a "daily" 3 4 -30 true
2099-05-03 "acme" GET /a "daily" 24 0 168 false
2099-05-04 "acme" GET /a "daily" 24 0 168 false`: func(q *rows.UsageExportQuery) {
			q.Open, q.Policy, q.From = true, "daily", may.AddDate(0, 0, 1)
		},
		`2099-05-01 "=cmd,\"b\"\n" GET /a "" 3 0 - true
2099-05-01 "=cmd,\"b\"\n" GET /a "daily" 3 0 -30 true
2099-05-01 "acme" GET /a "" 3 0 - true
2099-05-01 "acme" GET /a "daily" 3 0 -30 true`: func(q *rows.UsageExportQuery) {
			q.ByPolicy, q.To = true, may.AddDate(0, 0, 1)
		},
	} {
		assert.Equal(t, want, export(t, s, change), "the rows")
	}
}

func TestARankingOfDaysCountsClosedAndOpenDaysOnce(t *testing.T) {
	s := exported(t)
	q := rows.UsageTopQuery{By: "admitted", From: may, To: may.AddDate(0, 1, 0), Max: 1}
	top, err := s.UsageTop(t.Context(), q, may.AddDate(0, 0, 4))
	want := []rows.OrgRanking{{Tenant: "acme", Admitted: 54, Soft: 4, Denied: 2, Late: 4, Cost: 276}}
	if err != nil || !slices.Equal(top.Items, want) || top.Step != "1d" {
		t.Errorf("the ranking is %+v (%v), want %+v", top, err, want)
	}
	for _, change := range []func(*rows.UsageTopQuery){
		func(q *rows.UsageTopQuery) { q.By = "admitted; DROP TABLE x" },
		func(q *rows.UsageTopQuery) { q.Max = 0 },
		func(q *rows.UsageTopQuery) { q.Max = 1001 },
		func(q *rows.UsageTopQuery) { q.To = q.From },
	} {
		wrong := q
		change(&wrong)
		if _, err := s.UsageTop(t.Context(), wrong, may); !errors.As(err, new(*rows.InvalidError)) {
			t.Errorf("%+v: %v, want an InvalidError", wrong, err)
		}
	}
}
