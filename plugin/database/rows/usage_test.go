package rows_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/pgtest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/database/rows"
	leaderusage "github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/leader/usage"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/observe/usage"
)

// used has one leader unpack batches of acme, of some ages: each with 3 admitted and 1 denied request of GET /a, for
// which the policy daily charges 30 tokens and leaves 70, and 1 admitted request of GET /b.
func used(t *testing.T, ages ...time.Duration) *rows.DB {
	t.Helper()
	dsn := pgtest.Shared(t).Database(t)
	pool := pgtest.Pool(t, dsn)
	for i, age := range ages {
		b := usage.Batch{Epoch: "0123456789abcdef", Seq: int64(i + 1), Rows: []usage.Row{
			{Key: usage.Key{Tenant: "acme", Endpoint: "GET /a"}, Counts: usage.Counts{Admitted: 3, Denied: 1, Remaining: -1}},
			{
				Key:    usage.Key{Tenant: "acme", Endpoint: "GET /a", Policy: "daily"},
				Counts: usage.Counts{Admitted: 3, Denied: 1, Cost: 30, Remaining: 70},
			},
			{Key: usage.Key{Tenant: "acme", Endpoint: "GET /b"}, Counts: usage.Counts{Admitted: 1, Remaining: -1}},
			{Key: usage.Key{Tenant: "globex", Endpoint: "GET /a"}, Counts: usage.Counts{Admitted: 1000, Remaining: -1}},
		}}
		payload, err := b.MarshalBinary()
		require.NoError(t, err)
		pgtest.Exec(t, pool, `SELECT rate_limiter.report_usage('edge-1', $1, $2, $3, $4)`, b.Epoch, b.Seq, age,
			payload)
	}
	leader := leaderusage.NewLeader(leaderusage.Options{
		Connect: func(ctx context.Context) (*pgx.Conn, error) { return pgx.Connect(ctx, dsn) },
		Lock:    rows.TidyLock, Log: slog.New(slog.DiscardHandler),
	})
	if done, err := leader.Once(t.Context()); err != nil || done.Batches != int64(len(ages)) {
		t.Fatalf("the leader has done %+v (%v)", done, err)
	}
	return rows.New(pool)
}

// usageOf returns a usage history of acme until now, in steps of a name.
func usageOf(t *testing.T, s *rows.DB, step string, change func(*rows.UsageQuery)) []rows.UsageRow {
	t.Helper()
	of, err := rows.UsageStepOf(step)
	require.NoError(t, err)
	now := time.Now()
	q := rows.UsageQuery{Tenant: "acme", From: now.Add(-1000 * of.Span), To: now.Add(time.Minute), Step: of}
	change(&q)
	found, err := s.Usage(t.Context(), q)
	require.NoError(t, err)
	for i, r := range found.Items {
		if !r.At.Equal(r.At.Truncate(of.Span)) || i > 0 && r.At.Before(found.Items[i-1].At) {
			t.Errorf("row %d of step %s is at %v", i, step, r.At)
		}
	}
	return found.Items
}

func TestUsageIsTheSameInEveryStepWhereverItIsSummedUp(t *testing.T) {
	s := used(t, 0, 3*time.Minute, 4*time.Hour, 6*time.Hour)
	for _, step := range rows.UsageSteps {
		list := usageOf(t, s, step.Name, func(*rows.UsageQuery) {})
		var admitted, denied int64
		for _, r := range list {
			admitted, denied = admitted+r.Admitted, denied+r.Denied
			if r.Cost != nil || r.Remaining != nil || r.Policy != nil || r.Endpoint != nil {
				t.Errorf("a row of requests is %+v, want only their numbers", r)
			}
		}
		if admitted != 16 || denied != 4 {
			t.Errorf("step %s has %d admitted and %d denied, want 16 and 4", step.Name, admitted, denied)
		}
	}
}

func TestUsageIsFilteredAndGroupedByEndpointAndPolicy(t *testing.T) {
	s := used(t, 0)
	a := "GET /a"
	for want, change := range map[string]func(*rows.UsageQuery){
		`[{"admitted":3,"soft":0,"denied":1,"shadow_denied":0,"late":0}]`: func(q *rows.UsageQuery) { q.Endpoint = &a },
		`[{"policy":"daily","admitted":3,"soft":0,"denied":1,"shadow_denied":0,"late":0,"cost":30,"remaining_min":70}]`: func(
			q *rows.UsageQuery,
		) {
			q.Policy = "daily"
		},
		`[]`: func(q *rows.UsageQuery) { q.Tenant = "unknown" },
		`[{"endpoint":"GET /a","admitted":3,"soft":0,"denied":1,"shadow_denied":0,"late":0},` +
			`{"endpoint":"GET /b","admitted":1,"soft":0,"denied":0,"shadow_denied":0,"late":0}]`: func(
			q *rows.UsageQuery,
		) {
			q.ByEndpoint = true
		},
		`[{"policy":"","admitted":4,"soft":0,"denied":1,"shadow_denied":0,"late":0},` +
			`{"policy":"daily","admitted":3,"soft":0,"denied":1,"shadow_denied":0,"late":0,"cost":30,"remaining_min":70}]`: func(
			q *rows.UsageQuery,
		) {
			q.ByPolicy = true
		},
	} {
		list := usageOf(t, s, "1d", change)
		text, err := json.Marshal(list)
		require.NoError(t, err)
		assert.Equal(t, want, at.ReplaceAllString(string(text), ""), "the rows")
	}
}

var at = regexp.MustCompile(`"at":"[^"]*",`)

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
	pgtest.Exec(t, pool, `UPDATE rate_limiter.usage_names SET unit = 'usd' WHERE name = 'daily'`)
	pgtest.Exec(t, pool, `
		INSERT INTO rate_limiter.usage_models (day, tenant, model, calls, prompt_tokens, completion_tokens, micro_usd)
		SELECT d, id, m, 2, 30, 4, c FROM rate_limiter.usage_names,
			(VALUES (date '2099-05-01', 'gpt-4o', 4200), ('2099-05-01', 'a', 20000000), ('2099-05-02', '', 0),
				('2099-05-03', 'a', 9007199254740992)) v (d, m, c)
		WHERE name IN ('acme', E'=cmd,"b"\n')`)
	return rows.New(pool)
}

// export returns the rows of an export of May.
func export(t *testing.T, s *rows.DB, change func(*rows.UsageExportQuery)) string {
	t.Helper()
	q := rows.UsageExportQuery{From: may, To: may.AddDate(0, 1, 0), Max: 100}
	change(&q)
	var list []string
	found, err := s.UsageExport(t.Context(), q)
	require.NoError(t, err)
	for _, r := range found {
		cost := "-"
		if r.Cost != nil {
			cost = fmt.Sprint(*r.Cost)
		}
		if r.CostUSD != "" {
			cost += " " + r.CostUSD
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
		`2099-05-02 "=cmd,\"b\"\n" GET /a "daily" 3 4 -30 -0.00003 true
2099-05-02 "acme" GET /a "daily" 3 4 -30 -0.00003 true
2099-05-03 "acme" GET /a "daily" 24 0 168 0.000168 false
2099-05-04 "acme" GET /a "daily" 24 0 168 0.000168 false`: func(q *rows.UsageExportQuery) {
			q.Open, q.Policy, q.From = true, "daily", may.AddDate(0, 0, 1)
		},
		`2099-05-01 "acme" GET /a "" 3 0 - true
2099-05-02 "=cmd,\"b\"\n" GET /a "" 3 4 - true`: func(q *rows.UsageExportQuery) {
			q.After, q.Max = []string{"=cmd,\"b\"\n", "GET /a", ""}, 2
		},
		`2099-05-01 "=cmd,\"b\"\n" GET /a "" 3 0 - true
2099-05-01 "=cmd,\"b\"\n" GET /a "daily" 3 0 -30 -0.00003 true
2099-05-01 "acme" GET /a "" 3 0 - true
2099-05-01 "acme" GET /a "daily" 3 0 -30 -0.00003 true`: func(q *rows.UsageExportQuery) {
			q.ByPolicy, q.To = true, may.AddDate(0, 0, 1)
		},
	} {
		assert.Equal(t, want, export(t, s, change), "the rows")
	}
}

func TestTheModelsOfDaysAreReadByTenantAndExported(t *testing.T) {
	s := exported(t)
	step, _ := rows.UsageStepOf("1d")
	q := rows.UsageQuery{Tenant: "acme", From: may, To: may.AddDate(0, 1, 0), Step: step, ByModel: true}
	first := rows.UsageModel{
		Day: "2099-05-01", Tenant: "acme", Model: "a", Calls: 2, PromptTokens: 30, CompletionTokens: 4,
		USD: "20.00", Closed: true,
	}
	found, err := s.Usage(t.Context(), q)
	if err != nil || len(found.Models) != 4 || found.Models[0] != first || found.Items == nil || len(found.Items) > 0 ||
		found.Models[3].USD != "9007199254.740992" || found.Models[3].Closed {
		t.Errorf("the history is %+v (%v)", found, err)
	}
	q.Policy = "daily"
	if _, err = s.Usage(t.Context(), q); !errors.As(err, new(*rows.InvalidError)) {
		t.Errorf("models of a policy: %v, want an InvalidError", err)
	}
	for want, change := range map[string]func(*rows.UsageExportQuery){
		"05-01 =cmd gpt-4o 0.0042 true, 05-01 acme a 20.00 true, 05-01 acme gpt-4o 0.0042 true, 05-02 =cmd  0.00 true, " +
			"05-02 acme  0.00 true": func(q *rows.UsageExportQuery) { q.After = []string{"=cmd,\"b\"\n", "a"} },
		"05-02 =cmd  0.00 true, 05-02 acme  0.00 true, 05-03 =cmd a 9007199254.740992 false": func(q *rows.UsageExportQuery) {
			q.Open, q.From, q.Max = true, may.AddDate(0, 0, 1), 3
		},
	} {
		q := rows.UsageExportQuery{From: may, To: may.AddDate(0, 1, 0), Max: 100}
		change(&q)
		found, err := s.UsageExportModels(t.Context(), q)
		require.NoError(t, err)
		var list []string
		for _, m := range found {
			tenant, _, _ := strings.Cut(m.Tenant, ",")
			list = append(list, fmt.Sprint(m.Day[5:], " ", tenant, " ", m.Model, " ", m.USD, " ", m.Closed))
		}
		assert.Equal(t, want, strings.Join(list, ", "))
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
	q.Policy = "daily"
	if top, err = s.UsageTop(t.Context(), q, may.AddDate(0, 0, 4)); err != nil || top.Items[0].Unit != "usd" {
		t.Errorf("the ranking of a policy in dollars is %+v (%v)", top, err)
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
