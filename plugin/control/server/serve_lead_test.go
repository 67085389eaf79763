package server

import (
	"bytes"
	"context"
	"log/slog"
	"slices"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/await"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/pgtest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/redistest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/admit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/calendar"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/decision"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/identity"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/limit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/database/rows"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/leader/abuse"
	leaderusage "github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/leader/usage"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/observe/usage"
)

// database returns the settings of a login.
func database(dsn string) *Database {
	connect := func() (*pgxpool.Config, error) { return pgxpool.ParseConfig(dsn) }
	return &Database{Name: "--keeper-database", Connect: connect}
}

// lead runs a leader until the test ends.
func lead(t *testing.T, l *leaderusage.Leader) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- l.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

func TestTheLeaderOfServeUnpacksUsageAndTidiesWithTheRightsOfAKeeper(t *testing.T) {
	server := pgtest.Granted(t)
	root := pgtest.Pool(t, server.DSN("ratelimit"))
	_, err := root.Exec(t.Context(), `INSERT INTO rate_limiter.nodes (node, version, enforced_at, reported_at)
		VALUES ('gone', 0, now() - interval '9 days', now() - interval '9 days')`)
	require.NoError(t, err)
	b := usage.Batch{Epoch: "0123456789abcdef", Seq: 1, Rows: []usage.Row{{
		Key: usage.Key{Tenant: "acme"}, Counts: usage.Counts{Admitted: 7, Remaining: usage.NoRemaining},
	}}}
	payload, err := b.MarshalBinary()
	require.NoError(t, err)
	// Noon two days ago is on a day that is closed and whose minutes are kept, at any time of today.
	const report = `SELECT rate_limiter.report_usage('edge-1', $1, $2,
		now() - (date_trunc('day', now() AT TIME ZONE 'UTC') - interval '36 hours') AT TIME ZONE 'UTC', $3)`
	for seq, payload := range [][]byte{payload, []byte("damaged")} { // added, set aside
		if _, err := pgtest.Pool(t, server.RoleDSN(pgtest.Node)).Exec(t.Context(),
			report, b.Epoch, seq+1, payload); err != nil {
			t.Fatal(err)
		}
	}
	l := database(server.RoleDSN(pgtest.Keeper)).newLeader(slog.New(slog.DiscardHandler), nil, quietDetector())
	lead(t, l)
	await.That(t, "tidy", func() bool {
		var sums, nodes int64
		err := root.QueryRow(t.Context(), `SELECT (SELECT coalesce(sum(admitted), 0)::bigint FROM rate_limiter.usage_days),
			(SELECT count(*) FROM rate_limiter.nodes)`).Scan(&sums, &nodes)
		require.NoError(t, err)
		return sums == 7 && nodes == 0
	})
	if done := l.Stats(); done.Batches != 1 || done.Faulty != 1 || done.Hours == 0 {
		t.Errorf("the leader has done %+v", done)
	}
}

func TestALoginWithoutTheRightsOfAKeeperDoesNotTakeTheLock(t *testing.T) {
	server := pgtest.Granted(t)
	var log bytes.Buffer
	l := database(server.RoleDSN(pgtest.ServerRole)).newLeader(slog.New(slog.NewJSONHandler(&log, nil)), nil,
		quietDetector())
	if done, err := l.Once(t.Context()); err == nil || done.Leading {
		t.Errorf("it has done %+v (%v), want an error", done, err)
	} else {
		pgtest.WantPlain(t, err.Error()+": "+leaderAdvice(err), "lacks the rights of the role keeper",
			"--keeper-database-file")
	}
}

// quietDetector returns a detector that does nothing.
func quietDetector() *abuse.Detector {
	return abuse.New(abuse.Options{Mode: abuse.Off, Log: slog.New(slog.DiscardHandler)})
}

// A limit per route, whose bucket is in Redis.
func TestTheLeaderOfServeNoticesWhatRedisHasAsUsed(t *testing.T) {
	server := pgtest.Granted(t)
	d := deciding(t, onRedis(t, redistest.Single(t)), nil)
	store := rows.New(pgtest.Pool(t, server.RoleDSN(pgtest.ServerRole)))
	watcher := d.newWatcher(d.knownTiers(store), store)
	load(d)
	spendPerRoute(t, server, d)
	lead(t, database(server.RoleDSN(pgtest.Keeper)).newLeader(slog.New(slog.DiscardHandler), watcher, quietDetector()))
	operator := pgtest.Pool(t, server.RoleDSN(pgtest.Operator))
	await.That(t, "a notice", func() bool {
		var n int
		err := operator.QueryRow(t.Context(), `SELECT count(*) FROM rate_limiter.quota_notices
			JOIN rate_limiter.outbox USING (tenant)
			WHERE type = 'io.github.tenant-rate-limiting.quota.threshold' AND data->>'threshold' = '50'
				AND tenant = 'acme' AND policy LIKE 'per-route/%' AND endpoint = 'records' AND threshold = 50 AND used = 20
				AND "limit" = 40`).Scan(&n)
		require.NoError(t, err)
		return n == 1
	})
}

// load has a decider decide as if the rows were loaded.
func load(d *decider) {
	snapshot, _ := policy.NewSnapshot(policy.Rows{}, nil)
	d.rest.Decider.Policies.Store(d.rest.Decider.Policies.Load().With(snapshot))
}

// spendPerRoute has acme spend 20 tokens on a route, and a node report it. It returns the bound of the limit per route.
func spendPerRoute(t *testing.T, server *pgtest.Server, d *decider) policy.Bound {
	t.Helper()
	var x admit.Exchange
	request := &admit.CallerRequest{Caller: identity.Caller{Tenant: "acme", Cost: 20}}
	request.Method, request.Path, request.Route = admit.Target("records")
	if err := d.rest.Decider.Admit(t.Context(), request, &x); err != nil || x.Decision.Denied() {
		t.Fatalf("%+v (%v)", x.Decision, err)
	}
	bounds := x.Decision.Resolution.Bounds
	perRoute := bounds[slices.IndexFunc(bounds, func(b policy.Bound) bool { return b.Policy.Name == "per-route" })]
	b := usage.Batch{Epoch: "0123456789abcdef", Seq: 1, Rows: []usage.Row{{
		Key:    usage.Key{Tenant: "acme", Endpoint: "records", Policy: perRoute.Ref().String()},
		Counts: usage.Counts{Admitted: 1, Cost: 20, Remaining: 20},
	}}}
	payload, err := b.MarshalBinary()
	require.NoError(t, err)
	if _, err := pgtest.Pool(t, server.RoleDSN(pgtest.Node)).Exec(t.Context(),
		`SELECT rate_limiter.report_usage('edge-1', $1, $2, '0 s', $3)`, b.Epoch, b.Seq, payload); err != nil {
		t.Fatal(err)
	}
	return perRoute
}

// The limit per route is made one of a year.
func TestTheLeaderOfServeRestoresTheCountOfAPeriodThatRedisHasLost(t *testing.T) {
	server, central := pgtest.Granted(t), redistest.Single(t)
	d := deciding(t, onRedis(t, central), nil)
	store := rows.New(pgtest.Pool(t, server.RoleDSN(pgtest.ServerRole)))
	watcher := d.newWatcher(d.knownTiers(store), store)
	year, err := calendar.New(calendar.Year, calendar.Anchor{}, "Europe/Berlin")
	require.NoError(t, err)
	for _, p := range d.rest.Decider.Policies.Load().Policies() {
		if p.Name == "per-route" {
			p.Limit, err = limit.New(limit.Spec{Algorithm: limit.FixedWindow, Quantity: 40, Calendar: year})
			require.NoError(t, err)
		}
	}
	load(d)
	spent := spendPerRoute(t, server, d)
	leader := database(server.RoleDSN(pgtest.Keeper)).newLeader(slog.New(slog.DiscardHandler), watcher, quietDetector())
	used := func(checks int) int64 {
		for checks > 0 {
			done, err := leader.Once(t.Context())
			require.NoError(t, err)
			if done.Leading {
				checks--
			}
		}
		statuses := make([]decision.Status, 1)
		require.NoError(t, d.operators.Peek(t.Context(), []policy.Bound{spent}, statuses))
		return statuses[0].Used
	}
	require.EqualValues(t, 20, used(2))
	require.NoError(t, central.Client(t).FlushAll(t.Context()).Err())
	require.EqualValues(t, 0, used(1))
	require.EqualValues(t, 20, used(1))
	require.EqualValues(t, 20, used(1))
	if s := watcher.Stats(); s.Restored != 1 {
		t.Errorf("the watcher has restored %d counts, want 1", s.Restored)
	}
}
