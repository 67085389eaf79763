package server

import (
	"log/slog"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/await"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/pgtest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/redistest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/admit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/identity"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/database/rows"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/observe/usage"
)

// A limit per route, whose bucket is in Redis.
func TestTheLeaderOfServeNoticesWhatRedisHasAsUsed(t *testing.T) {
	server := pgtest.Granted(t)
	d := deciding(t, onRedis(t, redistest.Single(t)), nil)
	watcher := d.newWatcher(d.knownTiers(rows.New(pgtest.Pool(t, server.RoleDSN(pgtest.ServerRole)))))
	snapshot, _ := policy.NewSnapshot(policy.Rows{}, nil)
	d.decider.Policies.Store(d.decider.Policies.Load().With(snapshot)) // as if the rows were loaded
	var x admit.Exchange
	request := &admit.CallerRequest{Caller: identity.Caller{Tenant: "acme", Cost: 20}}
	request.Method, request.Path, request.Route = admit.Target("records")
	if err := d.decider.Admit(t.Context(), request, &x); err != nil || x.Decision.Denied() {
		t.Fatalf("%+v (%v)", x.Decision, err)
	}
	bounds := x.Decision.Resolution.Bounds
	perRoute := slices.IndexFunc(bounds, func(b policy.Bound) bool { return b.Policy.Name == "per-route" })
	b := usage.Batch{Epoch: "0123456789abcdef", Seq: 1, Rows: []usage.Row{{
		Key:    usage.Key{Tenant: "acme", Endpoint: "records", Policy: bounds[perRoute].Ref().String()},
		Counts: usage.Counts{Admitted: 1, Cost: 20, Remaining: 20},
	}}}
	payload, err := b.MarshalBinary()
	require.NoError(t, err)
	if _, err := pgtest.Pool(t, server.RoleDSN(pgtest.Node)).Exec(t.Context(),
		`SELECT rate_limiter.report_usage('edge-1', $1, $2, '0 s', $3)`, b.Epoch, b.Seq, payload); err != nil {
		t.Fatal(err)
	}
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
