package engine

import (
	"context"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/await"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/pgtest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/redistest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/bucket"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/admit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/resolve"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/database/policysync"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/node/candidate"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/observe/metrics"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

// patience bounds every wait.
const patience = 2 * time.Minute

// following returns an engine that follows a database, a decider of it, and what ends the engine.
func following(t *testing.T, dsn string, config schema.Config) (e *Engine, decider *admit.Decider, stop func()) {
	t.Helper()
	e = New(context.Background(), Options{
		Log:     slog.New(slog.DiscardHandler),
		Buckets: bucket.Options{Budget: patience, MaxBuckets: 1000, Nodes: 1, LeaseShare: 2},
	})
	e.Mirror = true
	require.NoError(t, e.FollowRows(policysync.Options{Source: policysync.Source{DSN: dsn}, Node: "n1"}))
	e.Metrics = metrics.New("1", e.Sources())
	plan, err := resolve.FromConfig(config)
	require.NoError(t, err)
	decider, release, err := e.Build(config, plan)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error)
	go func() { ended <- e.Run(ctx) }()
	stopped := false
	stop = func() {
		if stopped {
			return
		}
		stopped = true
		cancel()
		assert.NoError(t, <-ended)
		release()
	}
	t.Cleanup(stop)
	return e, decider, stop
}

// admitted returns how many of n requests of a tenant are admitted.
func admitted(t *testing.T, decider *admit.Decider, tenant string, n int) (count int) {
	t.Helper()
	var x admit.Exchange
	for range n {
		require.NoError(t, decider.Admit(context.Background(), &fixedFacts{tenant}, &x))
		if !x.Response.Denied {
			count++
		}
	}
	return count
}

// The tier has a pool of its own, and both pools have the copy of the rows.
func TestACandidateIsTriedInRedisAndItsCountsReachPostgres(t *testing.T) {
	server, other := redistest.Single(t), redistest.Single(t)
	block := func(port int) schema.Redis {
		return schema.Redis{
			Host: "127.0.0.1", Port: int64(port), ConnectTimeout: 60_000, SendTimeout: 60_000, ReadTimeout: 60_000,
		}
	}
	config := schema.Config{
		Tiers: []schema.Tier{{Name: "free", RedisPool: "own"}}, Strategy: schema.StrategyRedis, Redis: block(other.Port),
		RedisPools: []schema.RedisPool{{Name: "own", Redis: block(server.Port)}},
	}.WithDefaults()
	dsn := pgtest.Shared(t).Database(t)
	pool := pgtest.Pool(t, dsn)
	write := func(sql string) {
		t.Helper()
		pgtest.Exec(t, pool, sql)
	}
	write(`INSERT INTO rate_limiter.policies (name, tier, scope, "limit", window_size, algorithm)
		VALUES ('daily', 'free', 'tenant', 10, 86400, 'fixed_window')`)
	e, decider, stop := following(t, dsn, config)
	write(`INSERT INTO rate_limiter.candidates (name) VALUES ('spring');
		INSERT INTO rate_limiter.candidate_tenants (candidate, tenant) VALUES ('spring', 'acme');
		INSERT INTO rate_limiter.candidate_policies (candidate, namespace, name, tier, body) VALUES ('spring', 'default',
			'daily', 'free', '{"namespace": "default", "name": "daily", "tier": "free", "scope": "tenant", "limit": 4,
			"window_size": 86400, "algorithm": "fixed_window"}')`)
	await.That(t, "the candidate is open and assigned", func() bool {
		plan := decider.Policies.Load()
		return plan.Candidate() != nil && plan.ForTenant("acme") != plan
	})
	if acme, zen := admitted(t, decider, "acme", 9), admitted(t, decider, "zen", 9); acme != 4 || zen != 9 {
		t.Errorf("%d requests of acme are admitted, and %d of zen; want 4 and 9", acme, zen)
	}
	await.That(t, "all requests are tried", func() bool { return e.candidates.Stats().Candidate.Denied == 5 })
	client := server.Client(t)
	keys := client.Keys(context.Background(), "rl:default%2Bspring:*").Val()
	if len(keys) != 1 || !strings.Contains(keys[0], "zen") || client.TTL(context.Background(), keys[0]).Val() <= 0 {
		t.Errorf("the candidate counts in %q, want one key of zen that expires", keys)
	}
	for _, s := range []*redistest.Server{server, other} {
		await.That(t, "the copy of the rows", func() bool {
			return len(s.Client(t).Keys(context.Background(), "rl:default:{r=policies.*").Val()) == 1
		})
	}
	assert.Empty(t, other.Client(t).Keys(context.Background(), "rl:*:{t=*").Val(), "buckets of the pool of no tier")
	write(`UPDATE rate_limiter.candidates SET state = 'dropped'`)
	await.That(t, "the candidate is closed", func() bool { return decider.Policies.Load().Candidate() == nil })
	if acme := admitted(t, decider, "acme", 9); acme != 6 {
		t.Errorf("%d more requests of acme are admitted, want 6: its bucket is the active one", acme)
	}
	stop()
	var got string
	if err := pool.QueryRow(context.Background(), `SELECT string_agg(concat_ws(' ', tenant, policy, requests, active_only,
			candidate_only, "both"), ', ' ORDER BY policy) FROM rate_limiter.candidate_counts`).Scan(&got); err != nil ||
		got != "zen  9 0 5 0, zen daily 9 0 5 0" {
		t.Errorf("counted is %s (%v)", got, err)
	}
	if s := e.candidates.Stats(); s.Enforced != (candidate.Results{Admitted: 4, Denied: 5}) ||
		slices.Max(slices.Collect(maps.Values(s.Dropped))) > 0 {
		t.Errorf("%+v", s)
	}
}

func TestRequestsAreAnsweredAsBeforeWhereACandidatesRedisIsUnavailable(t *testing.T) {
	server := redistest.Single(t)
	config := schema.Config{
		Tiers: []schema.Tier{{Name: "free"}}, Strategy: schema.StrategyRedis,
		Redis: schema.Redis{
			Host: "127.0.0.1", Port: int64(server.Port), ConnectTimeout: 60_000, SendTimeout: 60_000, ReadTimeout: 60_000,
		},
	}.WithDefaults()
	dsn := pgtest.Shared(t).Database(t)
	pool := pgtest.Pool(t, dsn)
	pgtest.Exec(t, pool, `INSERT INTO rate_limiter.candidates (name) VALUES ('spring');
		INSERT INTO rate_limiter.candidate_policies (candidate, namespace, name, tier, body) VALUES ('spring', 'default',
			'daily', 'free', '{"namespace": "default", "name": "daily", "tier": "free", "scope": "tenant", "limit": 4,
			"window_size": 86400, "algorithm": "fixed_window"}')`)
	e, decider, _ := following(t, dsn, config)
	await.That(t, "the candidate is open", func() bool { return decider.Policies.Load().Candidate() != nil })
	server.Kill()
	if zen := admitted(t, decider, "zen", 9); zen != 9 {
		t.Errorf("%d requests are admitted, want all: no active policy applies", zen)
	}
	await.That(t, "all trials are dropped", func() bool { return e.candidates.Stats().Dropped[candidate.NoStore] == 9 })
	for _, stats := range e.Stores.Stats() {
		if stats.Degraded || stats.Outage.Waiting != 0 {
			t.Errorf("trials have made the Redis of requests degraded: %+v", stats)
		}
	}
}
