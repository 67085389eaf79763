package portal

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/database/policysync"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/database/rows"
)

// crowd is a portal on the real API, whose database has many tenants.
type crowd struct {
	*realWorld
	queries *queries
	crowdSize
}

// crowdSize says what a database has.
type crowdSize struct {
	tenants int
	days    int // of usage by hour and day, before today
	hours   int // of usage by minute, until now
	denials int
	audit   int // entries beside those of the rows
}

// statement is one of SQL, with its arguments.
type statement struct {
	sql  string
	args []any
}

// queries records the statements of a pool.
type queries struct {
	mu   sync.Mutex
	list []statement
}

// TraceQueryStart implements pgx.QueryTracer.
func (q *queries) TraceQueryStart(ctx context.Context, _ *pgx.Conn, data pgx.TraceQueryStartData) context.Context {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.list = append(q.list, statement{data.SQL, data.Args})
	return ctx
}

// TraceQueryEnd implements pgx.QueryTracer.
func (*queries) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

// take returns the statements since the last call.
func (q *queries) take() []statement {
	q.mu.Lock()
	defer q.mu.Unlock()
	list := q.list
	q.list = nil
	return list
}

// openCrowd fills a database, and starts a portal on it.
func openCrowd(t testing.TB, dsn string, size crowdSize) *crowd {
	t.Helper()
	config, err := pgxpool.ParseConfig(dsn)
	require.NoError(t, err)
	c := &crowd{queries: &queries{}, crowdSize: size}
	config.ConnConfig.Tracer = c.queries
	pool, err := pgxpool.NewWithConfig(context.Background(), config)
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	f := &filler{TB: t, crowdSize: size, pool: pool, now: time.Now().UTC()}
	f.fillRows()
	f.fillUsage()
	f.fillRecords()
	f.fillOrgs()
	c.realWorld = overDatabase(t, pool, rowsOf(t, rows.New(pool)), freeTier)
	c.write("POST", "/v1/ratelimit/candidates", `{"name":"july","reason":"a trial"}`)
	for _, tier := range tiersOfCrowd {
		c.write("PUT", "/v1/ratelimit/candidates/july/policies",
			fmt.Sprintf(`{"name":"daily","tier":%q,"limit":500000,"window":"1d"}`, tier))
	}
	f.exec(`INSERT INTO rate_limiter.candidate_counts (candidate, tenant, endpoint, policy, requests, active_only,
			candidate_only, "both", examples, first_at, last_at)
		SELECT 'july', `+named+`, 'GET /v1/records/0', p, 1000, 0, n % 100, 5, '[]', now(), now()
		FROM generate_series(0, $1 - 1) n, unnest(ARRAY['', 'daily']) p`, size.tenants)
	f.exec(`VACUUM (ANALYZE)`) // as autovacuum does in time
	c.queries.take()
	return c
}

// rowsOf returns the rows that are in force.
func rowsOf(t testing.TB, s *rows.DB) policy.Rows {
	t.Helper()
	all := policy.Rows{Version: 1}
	list, err := s.Policies(t.Context(), rows.PolicyFilter{})
	require.NoError(t, err)
	for _, p := range list {
		all.Policies = append(all.Policies, policy.PolicyRow{ID: p.ID, Policy: p.Policy})
	}
	tenants, err := s.Tenants(t.Context(), rows.TenantFilter{})
	require.NoError(t, err)
	for _, row := range tenants {
		all.Tenants = append(all.Tenants, row.Tenant)
	}
	overrides, err := s.Overrides(t.Context(), rows.OverrideFilter{})
	require.NoError(t, err)
	for _, o := range overrides {
		all.Overrides = append(all.Overrides, policy.Override{ID: o.ID, Override: o.Override})
	}
	for _, tier := range tiersOfCrowd {
		all.Tiers = append(all.Tiers, policy.TierRow{Name: tier})
	}
	return all
}

// tenantOfCrowd returns the name of a tenant.
func tenantOfCrowd(n int) string { return fmt.Sprintf("tenant-%06d", n) }

// tiersOfCrowd are the tiers of tenants, in turn.
var tiersOfCrowd = []string{"basic", "pro", "enterprise"}

// endpointsOfCrowd is the number of endpoints of a tenant. Each is in use every few hours.
const endpointsOfCrowd = 5

// filler fills a database.
type filler struct {
	testing.TB
	crowdSize
	pool *pgxpool.Pool
	now  time.Time

	tenant, endpoint, none, daily int // in usage_names: the first of the tenants and endpoints, and the two policies
}

func (f *filler) exec(sql string, args ...any) {
	f.Helper()
	if _, err := f.pool.Exec(f.Context(), sql, args...); err != nil {
		f.Fatalf("%s: %v", sql, err)
	}
}

// fillUnrecorded runs statements without the triggers of their tables, which take long for many rows.
func (f *filler) fillUnrecorded(statements ...statement) {
	f.Helper()
	err := pgx.BeginFunc(f.Context(), f.pool, func(tx pgx.Tx) error {
		_, err := tx.Exec(f.Context(), `SET LOCAL session_replication_role = replica`)
		for _, s := range statements {
			if err == nil {
				_, err = tx.Exec(f.Context(), s.sql, s.args...)
			}
		}
		return err
	})
	require.NoError(f, err)
}

// named is the expression for the name of tenant n.
const named = `format('tenant-%s', lpad(n::text, 6, '0'))`

// fillRows adds tenants, each with an override, policies of their tiers, and of every fifth tenant.
func (f *filler) fillRows() {
	f.exec(`INSERT INTO rate_limiter.tiers (name) SELECT unnest($1::text[])`, tiersOfCrowd)
	f.exec(`INSERT INTO rate_limiter.tenants (id, tier)
		SELECT `+named+`, ($2::text[])[1 + n % 3] FROM generate_series(0, $1 - 1) n`, f.tenants, tiersOfCrowd)
	f.exec(`INSERT INTO rate_limiter.policies (name, tier, endpoint, scope, "limit", window_size, algorithm)
		SELECT p.name, t.name, p.endpoint, 'tenant', p.most, p.size, p.kind FROM rate_limiter.tiers t, (VALUES
			('daily', '', 1000000, 86400, 'fixed_window'), ('minute', '', 600, 60, 'token_bucket'),
			('writes', 'POST /v1/records', 60, 60, 'token_bucket')) p (name, endpoint, most, size, kind)`)
	f.exec(`INSERT INTO rate_limiter.policies (name, tenant, endpoint, scope, "limit", window_size)
		SELECT 'exports', `+named+`, 'POST /v1/exports', 'tenant', 10, 3600
		FROM generate_series(0, $1 - 1, 5) n`, f.tenants)
	f.exec(`INSERT INTO rate_limiter.overrides (kind, tenant, policy, "limit", reason, permanent, author)
		SELECT 'custom_limit', `+named+`, 'minute', 600 + n, 'a contract', true, 'ann' FROM generate_series(0, $1 - 1) n`,
		f.tenants)
	for n := range 20 {
		r := policysync.Report{Node: fmt.Sprint("edge-", n), Version: 1, Source: policysync.FromPostgres}
		require.NoError(f, r.Write(f.Context(), f.pool))
	}
}

// fillUsage adds usage as a leader stores it. Each tenant uses one endpoint an hour, in a tenth of the minutes. Of one
// tenant in a hundred little is left.
func (f *filler) fillUsage() {
	f.exec(`INSERT INTO rate_limiter.usage_names (name) SELECT '' UNION ALL SELECT 'daily'
		UNION ALL SELECT `+named+` FROM generate_series(0, $1 - 1) n
		UNION ALL SELECT format('GET /v1/records/%s', n) FROM generate_series(0, $2 - 1) n`, f.tenants, endpointsOfCrowd)
	err := f.pool.QueryRow(f.Context(), `SELECT min(id) FILTER (WHERE name LIKE 'tenant-%'),
			min(id) FILTER (WHERE name LIKE 'GET %'), min(id) FILTER (WHERE name = ''), min(id) FILTER (WHERE name = 'daily')
		FROM rate_limiter.usage_names`).Scan(&f.tenant, &f.endpoint, &f.none, &f.daily)
	require.NoError(f, err)
	const day = 24 * time.Hour
	today := f.now.Truncate(day)
	first, hoursUntil := today.Add(-time.Duration(f.days)*day), f.now.Add(-10*time.Minute).Truncate(time.Hour)
	f.exec(`UPDATE rate_limiter.usage_state SET hours_until = $1, days_until = $1`, first)
	f.exec(`SELECT rate_limiter.keep_usage_partitions()`)
	for at := first; at.Before(hoursUntil); at = at.Add(day) {
		f.fillDay(at, hoursUntil)
	}
	f.exec(`UPDATE rate_limiter.usage_state SET hours_until = $1, days_until = $2`, hoursUntil,
		f.now.Add(-time.Hour).Truncate(day))
	for ago := f.hours; ago >= 0; ago-- {
		at := f.now.Truncate(time.Hour).Add(-time.Duration(ago) * time.Hour)
		order := "n, m"
		if !at.Before(hoursUntil) {
			order = "m, n"
		}
		f.exec(`INSERT INTO rate_limiter.usage_minutes (at, admitted, soft, denied, shadow_denied, cost, remaining_min,
				tenant, endpoint, policy)
			SELECT $1::timestamptz + m * interval '1 minute', 5, 0, n % 10 / 9, 0, p * 5,
				CASE WHEN p = 1 THEN CASE WHEN n % 100 = 0 THEN 1 ELSE 900000 END END,
				$4 + n, $5 + ($7 + n) % $8, CASE WHEN p = 1 THEN $6::int ELSE $9 END
			FROM generate_series(0, 59) m, generate_series(0, $2 - 1) n, generate_series(0, 1) p
			WHERE (m + n) % 10 = 0 AND $1::timestamptz + m * interval '1 minute' < $3
			ORDER BY `+order, at, f.tenants, f.now, f.tenant, f.endpoint, f.daily, at.Hour(), endpointsOfCrowd, f.none)
	}
}

// fillDay adds the hours of a day before a time, and the day itself if it is over.
func (f *filler) fillDay(at, before time.Time) {
	f.exec(`INSERT INTO rate_limiter.usage_hours (at, admitted, soft, denied, shadow_denied, cost, remaining_min, tenant,
			endpoint, policy)
		SELECT $1::timestamptz + h * interval '1 hour', 30, 0, n % 10 / 9, 0, p * 30, CASE WHEN p = 1 THEN 900000 END,
			$4 + n, $5 + (h + n) % $7, CASE WHEN p = 1 THEN $6::int ELSE $8 END
		FROM generate_series(0, 23) h, generate_series(0, $2 - 1) n, generate_series(0, 1) p
		WHERE $1::timestamptz + h * interval '1 hour' < $3
		ORDER BY h, n`, at, f.tenants, before, f.tenant, f.endpoint, f.daily, endpointsOfCrowd, f.none)
	const day = 24 * time.Hour
	if end := at.Add(day); !end.After(f.now.Add(-time.Hour)) {
		f.exec(`INSERT INTO rate_limiter.usage_days (at, admitted, soft, denied, shadow_denied, cost, remaining_min, tenant,
				endpoint, policy, late)
			SELECT $1::timestamptz, sum(admitted), sum(soft), sum(denied), sum(shadow_denied), sum(cost), min(remaining_min),
				tenant, endpoint, policy, false
			FROM rate_limiter.usage_hours WHERE at >= $1 AND at < $2
			GROUP BY tenant, endpoint, policy ORDER BY tenant`, at, end)
	}
}

// fillRecords adds denials, entries of the audit, what abuse detection remembers of tenants, and candidates that ended.
func (f *filler) fillRecords() {
	f.exec(`INSERT INTO rate_limiter.recent_denials (login, node, event, at, tenant, endpoint, policy, scope, "limit",
			window_size, reason, shadow, count, tenant_count, "user", ip, retry_after)
		SELECT 'node', 'edge-1', i, now() - i * interval '1 second', `+strings.ReplaceAll(named, "n::", "(i * 7 % $2)::")+`,
			CASE WHEN i = $1 THEN 'GET /v1/rare' ELSE format('GET /v1/records/%s', i % 5) END,
			CASE WHEN i = $1 THEN 'rare' ELSE 'minute' END, 'tenant', 600, 60, 'quota', false, 1, 1, '', '', 1
		FROM generate_series(1, $1) i`, f.denials, f.tenants)
	f.exec(`INSERT INTO rate_limiter.abuse_tenants (tenant, state, mode, reason, scored_at)
		SELECT `+named+`, jsonb_build_object('step', CASE WHEN n % 200 = 0 THEN 'warn' ELSE 'none' END,
			'demand', '{"mean": 12.5, "variance": 2.25, "learned": 5000}'::jsonb), 'shadow', 'denied 90 %', now()
		FROM generate_series(0, $1 - 1) n`, f.tenants)
	f.exec(`INSERT INTO rate_limiter.abuse_steps (at, tenant, from_step, to_step, mode, reason)
		SELECT now(), tenant, 'none', 'warn', 'shadow', reason FROM rate_limiter.abuse_tenants WHERE step = 'warn'`)
	f.exec(`INSERT INTO rate_limiter.audit (version, at, actor, reason, kind, operation, key, tenant, before, after)
		SELECT 1, now() - ($1 - i) * interval '10 seconds', 'ann', 'a contract', CASE WHEN i % 20 = 0
			THEN 'candidate_policy' ELSE 'override' END, 'update', i % 5000, `+
		strings.ReplaceAll(named, "n::", "(i % $2)::")+`, '{"limit": 1, "kind": "custom_limit"}',
			CASE WHEN i % 20 = 0 THEN format('{"candidate": "old-%s", "limit": 2}', i / 20 % 30)::jsonb
			ELSE '{"limit": 2, "kind": "custom_limit"}' END
		FROM generate_series(1, $1) i`, f.audit, f.tenants)
	f.fillUnrecorded(statement{`INSERT INTO rate_limiter.candidates (name, state, created_by, reason, ended_at, ended_by,
			end_reason)
		SELECT format('old-%s', i), 'dropped', 'ann', 'a trial', now(), 'ann', 'over' FROM generate_series(0, 29) i`, nil})
}

// fillOrgs adds a token of each tenant, and webhooks with deliveries of every tenth.
func (f *filler) fillOrgs() {
	f.fillUnrecorded(
		statement{`INSERT INTO rate_limiter.tokens (name, hash, role, org)
			SELECT ` + named + ` || '/ci', sha256(convert_to(n::text, 'UTF8')), 'tenant', ` + named + `
			FROM generate_series(0, $1 - 1) n`, []any{f.tenants}},
		statement{`INSERT INTO rate_limiter.webhooks (org, url, created_by)
			SELECT ` + named + `, format('https://example.org/%s', i), 'ann'
			FROM generate_series(0, $1 - 1, 10) n, generate_series(1, 2) i`, []any{f.tenants}},
		statement{`INSERT INTO rate_limiter.webhook_deliveries (id, webhook, events, body, state, created_at, due_at)
			SELECT format('%s-%s', w.id, i), w.id, 1, '{}', CASE WHEN i % 10 = 0 THEN 'waiting' ELSE 'delivered' END,
				now(), now()
			FROM rate_limiter.webhooks w, generate_series(1, 20) i`, nil},
	)
}
