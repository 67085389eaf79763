package limiter_test

import (
	"context"
	"log/slog"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/await"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/pgtest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/redistest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/database/rows"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/leader/usage"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/limiter"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

var by = rows.Change{Actor: "ann", Reason: "a test"}

// override writes an override for good.
func override(t *testing.T, db *rows.DB, o schema.Override) {
	t.Helper()
	o.Permanent = true
	_, _, err := db.AddOverride(t.Context(), by, rows.Override{Override: o})
	require.NoError(t, err)
}

func TestRowsOfTheDatabaseDecideFromTheFirstRequestOn(t *testing.T) {
	limiter.WaitForRows(t, await.Longest) // a busy machine may not read them within a second
	dsn := pgtest.Shared(t).Database(t)
	db := rows.New(pgtest.Pool(t, dsn))
	override(t, db, schema.Override{Kind: "ban", Tenant: "acme"})
	_, _, err := db.SetTenant(t.Context(), by, rows.Tenant{Tenant: schema.Tenant{ID: "globex", Tier: "large"}})
	require.NoError(t, err)
	l := limitingBy(t, limiter.Options{Database: dsn, Config: parse(t, `
tiers:
  - {name: small, limits: [{name: daily, scope: tenant, limit: 10, window_size: 86400}]}
  - {name: large, limits: [{name: daily, scope: tenant, limit: 1000, window_size: 86400}]}`)})
	d := acquire(t, l, limiter.Request{Org: "acme"})
	assert.True(t, !d.Allowed && d.Reason == "banned" && d.RetryAfter == limiter.Never, "%+v: want it banned for good", d)
	assert.EqualValues(t, 1000, acquire(t, l, limiter.Request{Org: "globex"}).Limit, "the limit of the row's tier")

	override(t, db, schema.Override{Kind: "custom_limit", Tenant: "globex", Policy: "daily", Limit: 7})
	await.That(t, "the new row decides", func() bool {
		return acquire(t, l, limiter.Request{Org: "globex"}).Limit == 7
	})
	fleet, err := db.Fleet(t.Context(), time.Minute)
	require.NoError(t, err)
	host, err := os.Hostname()
	require.NoError(t, err)
	require.Len(t, fleet.Nodes, 1)
	assert.True(t, strings.HasPrefix(fleet.Nodes[0].Node, host+"/limiter/"), "the node is %s", fleet.Nodes[0].Node)
}

// used returns what a tenant has used today: of the policy "" its requests, of others also their cost.
func used(t *testing.T, dsn, tenant string) map[string]rows.UsageRow {
	t.Helper()
	leader := usage.NewLeader(usage.Options{
		Lock: rows.TidyLock, Log: slog.New(slog.DiscardHandler),
		Connect: func(ctx context.Context) (*pgx.Conn, error) { return pgx.Connect(ctx, dsn) },
	})
	_, err := leader.Once(t.Context())
	require.NoError(t, err)
	now := time.Now()
	found, err := rows.New(pgtest.Pool(t, dsn)).Usage(t.Context(), rows.UsageQuery{
		Tenant: tenant, From: now.Add(-time.Hour), To: now.Add(time.Hour), Step: rows.UsageSteps[0], ByPolicy: true,
	})
	require.NoError(t, err)
	all := map[string]rows.UsageRow{}
	for _, row := range found.Items {
		all[*row.Policy] = row
	}
	return all
}

func TestWhatAProgramDecidesAndSettlesIsUsageOnceItIsClosed(t *testing.T) {
	dsn := pgtest.Shared(t).Database(t)
	l := limitingBy(t, limiter.Options{Database: dsn, Config: parse(t, `
tiers:
  - name: a
    limits:
      - {name: requests, scope: tenant, limit: 2, window_size: 86400, algorithm: fixed_window}
      - name: money
        scope: tenant
        unit: usd
        limit: 1000
        window_size: 86400
        algorithm: fixed_window
        settle: {reserve: 600, sources: [{from: header.X-Cost}]}`)})
	for _, test := range []struct {
		cost int64
		unit string // of the limit with the least left
	}{{40, "usd"}, {500, ""}} {
		d := acquire(t, l, limiter.Request{Org: "acme", Endpoint: "POST /chat"})
		assert.Equal(t, []string{test.unit, "", "usd"}, []string{d.Unit, d.Statuses[0].Unit, d.Statuses[1].Unit})
		require.NoError(t, d.Settle(test.cost))
	}
	d := acquire(t, l, limiter.Request{Org: "acme", Endpoint: "POST /chat"})
	assert.Equal(t, []any{false, "requests", ""}, []any{d.Allowed, d.Policy, d.Unit})
	require.NoError(t, l.Close(t.Context()))

	all := used(t, dsn, "acme")
	assert.Equal(t, []int64{2, 1}, []int64{all[""].Admitted, all[""].Denied})
	require.Contains(t, all, "money")
	assert.EqualValues(t, 540, *all["money"].Cost, "%+v", all)
}

func TestWithoutPostgresTheCopyInRedisDecidesAndElseTheConfig(t *testing.T) {
	server, redis := pgtest.Start(t), redistest.Single(t)
	dsn := server.Database(t)
	override(t, rows.New(pgtest.Pool(t, dsn)), schema.Override{Kind: "ban", Tenant: "acme"})
	inRedis := limiter.Options{Config: inRedis(t, redis, daily), Database: dsn}
	first := limitingBy(t, inRedis)
	await.That(t, "a copy of the rows in Redis", func() bool {
		keys, err := redis.Client(t).Keys(t.Context(), "rl:default:{r=policies*").Result()
		return err == nil && len(keys) > 0
	})
	require.NoError(t, first.Close(t.Context()))
	server.Stop(t)

	t.Run("the copy", func(t *testing.T) {
		limiter.WaitForRows(t, await.Longest)
		d := acquire(t, limitingBy(t, inRedis), limiter.Request{Org: "acme"})
		assert.Equal(t, "banned", d.Reason, "the copy in Redis decides: %+v", d)
	})
	began := time.Now()
	l := limitingBy(t, limiter.Options{Config: parse(t, daily), Database: dsn})
	assert.Less(t, time.Since(began), 30*time.Second, "New waited for Postgres")
	assert.True(t, acquire(t, l, limiter.Request{Org: "acme"}).Allowed, "the config decides")
	server.Start(t)
	await.That(t, "the rows decide", func() bool {
		return acquire(t, l, limiter.Request{Org: "acme"}).Reason == "banned"
	})
}
