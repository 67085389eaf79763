package server

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/faultproxy"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/pgtest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/redistest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/bucket/addresses"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/bucket/lease"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/bucket/reservation"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/admit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/decision"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/identity"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/database/policysync"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/database/rows"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/node/routeconfig"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/observe/usage"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

// onPort returns the text of a decK file whose Redis listens on a port.
func onPort(t *testing.T, port int) string {
	t.Helper()
	text, err := os.ReadFile("testdata/kong.yml")
	require.NoError(t, err)
	return strings.Replace(string(text), "port: 1", fmt.Sprint("port: ", port), 1)
}

// onRedis returns the text of a decK file with that Redis, which may take a minute for an answer.
func onRedis(t *testing.T, server *redistest.Server) string {
	t.Helper()
	port := fmt.Sprint("port: ", server.Port)
	return strings.Replace(onPort(t, server.Port), port,
		port+", connect_timeout: 60000, read_timeout: 60000, send_timeout: 60000", 1)
}

// deciding returns the decider of a process with a decK file and the default settings, changed.
func deciding(t *testing.T, text string, change func(*Settings)) *decider {
	t.Helper()
	config, _, err := routeconfig.Load([]byte(text), "kong.yml", "")
	require.NoError(t, err)
	s := &Settings{
		LeaseShare: lease.DefaultSharePct, MaxAddresses: addresses.DefaultMost, NewAddresses: addresses.DefaultRate,
		Config: config, Database: Database{DSN: "host=/nonexistent dbname=none"},
	}
	if change != nil {
		change(s)
	}
	d, err := newDecider(t.Context(), s, slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	t.Cleanup(func() {
		ended, end := context.WithCancel(context.Background())
		end()
		if err := d.Run(ended); err != nil { // closes what is open
			t.Error(err)
		}
	})
	return d
}

func TestServeBoundsTheAddressesWithBucketsInRedis(t *testing.T) {
	for _, c := range []struct{ most, rate, wantMost, wantRate int }{
		{addresses.DefaultMost, addresses.DefaultRate, addresses.DefaultMost/32*32 + 32, addresses.DefaultRate},
		{64, 7, 64, 7},
		{64, 0, 64, 0},
		{0, 100, 0, 0},
	} {
		all := deciding(t, onPort(t, 1), func(s *Settings) { s.MaxAddresses, s.NewAddresses = c.most, c.rate }).Stores.Stats()
		if len(all) != 1 || all[0].Addresses.Most != c.wantMost || all[0].Addresses.Rate != c.wantRate {
			t.Errorf("%+v: %+v, want the given bounds, where 0 is any number", c, all)
		}
	}
}

func TestServeLabelsOnlyTheRoutesOfItsFile(t *testing.T) {
	d := deciding(t, strings.Replace(onPort(t, 1), "strategy: redis", "strategy: local", 1), nil)
	if !slices.Equal(slices.Sorted(maps.Keys(d.config.Routes)), []string{"records", "search"}) {
		t.Errorf("the routes are %v", d.config.Routes)
	}
	for _, endpoint := range []string{"records", "invented"} {
		var x admit.Exchange
		request := &admit.CallerRequest{Caller: identity.Caller{Tenant: "acme"}}
		request.Method, request.Path, request.Route = admit.Target(endpoint)
		if d.rest.Decider.Admit(t.Context(), request, &x) != nil || x.Decision.Denied() {
			t.Fatalf("%s: %+v", endpoint, x.Decision)
		}
	}
	series, err := testutil.GatherAndCount(d.Metrics, "rate_limiter_requests_total")
	if err != nil || series != 2 {
		t.Errorf("%d series of requests (%v), want one for records and one for no endpoint", series, err)
	}
	families, err := d.Metrics.Gather()
	require.NoError(t, err)
	for _, f := range families {
		if strings.Contains(f.String(), "invented") {
			t.Errorf("%s has a label of a route outside the config", f.GetName())
		}
	}
	if p := leasable(t, d); d.rest.RequestPolicy != nil && d.rest.RequestPolicy(p) != p {
		t.Error("buckets of this process are read with a policy for leases")
	}
}

func TestServeDecidesByTheSavedRowsUntilItHasThoseOfTheDatabase(t *testing.T) {
	dsn, dir := pgtest.Shared(t).Database(t), t.TempDir()
	ban := rows.Override{Override: schema.Override{Tenant: "acme", Kind: "ban", Permanent: true}}
	by := rows.Change{Actor: "ann", Reason: "abuse"}
	if _, _, err := rows.New(pgtest.Pool(t, dsn)).AddOverride(t.Context(), by, ban); err != nil {
		t.Fatal(err)
	}
	save(t, dsn, dir)
	d := deciding(t, onRedis(t, redistest.Single(t)), func(s *Settings) { s.SnapshotDir = dir })
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- d.Rows.Run(ctx) }()
	d.AwaitRows(ctx, time.Minute)
	var decided admit.Exchange
	request := &admit.CallerRequest{Caller: identity.Caller{Tenant: "acme"}}
	if err := d.rest.Decider.Admit(t.Context(), request, &decided); err != nil || !decided.Decision.Denied() {
		t.Errorf("the decision for a tenant with a saved ban is %+v (%v)", decided.Decision, err)
	}
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

func TestServeCountsTheReservationsOfItsCallers(t *testing.T) {
	const everyone = "scope: global, limit: 5000, window_size: 60"
	const settles = "scope: global, limit: 5000, window_size: 31536000, algorithm: fixed_window, " +
		"settle: {sources: [{from: shared.tokens}]}"
	for strategy, text := range map[string]string{
		"redis": onRedis(t, redistest.Single(t)),
		"local": strings.Replace(onPort(t, 1), "strategy: redis", "strategy: local", 1),
	} {
		d := deciding(t, strings.Replace(text, everyone, settles, 1), nil)
		var x admit.Exchange
		request := &admit.CallerRequest{Caller: identity.Caller{Tenant: "acme", Cost: 7}}
		name := reservation.Name{ID: "chat"}
		claim, _, err := d.rest.Reservations[0].Claim(t.Context(), &reservation.Request{Name: name, Timeout: time.Minute})
		if err != nil || d.rest.Decider.Admit(t.Context(), request, &x) != nil {
			t.Fatalf("%s: %v", strategy, err)
		}
		err = claim.Keep(t.Context(), reservation.NewRecord(&x.Decision, 1), nil)
		if err != nil || d.ledger.Stats().Kept != 1 {
			t.Errorf("%s: %d reservations are kept (%v), want one", strategy, d.ledger.Stats().Kept, err)
		}
		s, err := d.rest.Reservations.Settle(t.Context(), name, reservation.Use{Actual: 3},
			func(string, string) error { return nil })
		if err != nil || len(s.Changes) != 1 || s.Changes[0].Change != -4 || d.ledger.Stats().Kept != 0 {
			t.Errorf("%s: %+v, %v", strategy, s, err)
		}
		series, err := testutil.GatherAndCount(d.Metrics, "rate_limiter_settlements_total", "rate_limiter_reservations")
		if err != nil || series != 2 {
			t.Errorf("%s: %d series (%v), want one of settlements and one of reservations", strategy, series, err)
		}
	}
}

func TestOperatorsWaitLongerForRedisThanRequestsWhoseLeasedBucketsAreSmaller(t *testing.T) {
	proxy := faultproxy.New(t, redistest.Single(t).Address())
	d := deciding(t, onPort(t, proxy.Port()), nil)
	proxy.Delay(150 * time.Millisecond) // three times the default read_timeout
	p := leasable(t, d)
	bounds := []policy.Bound{{Policy: p, Key: policy.Key{Namespace: "default", Policy: p.Name, Group: policy.ByAll}}}
	statuses := make([]decision.Status, 1)
	err := d.rest.OperatorBuckets.Peek(t.Context(), bounds, statuses)
	if err != nil || statuses[0].Source != decision.Redis {
		t.Errorf("%+v, %v: want an answer for operators", statuses[0], err)
	}
	if err := d.rest.Buckets.Peek(t.Context(), bounds, statuses); err != nil || statuses[0].Failure == decision.NoFailure {
		t.Errorf("%+v, %v: want none for requests", statuses[0], err)
	}
	if d.rest.RequestPolicy == nil || d.rest.RequestPolicy(p).Limit.Capacity() >= p.Limit.Capacity() {
		t.Errorf("%s is read with its whole capacity", p.Name)
	}
}

// leasable returns a policy of a decider's config whose tokens may be leased.
func leasable(t *testing.T, d *decider) *policy.Policy {
	t.Helper()
	for _, p := range d.rest.Decider.Policies.Load().Policies() {
		if p.Name == "everyone" {
			return p
		}
	}
	t.Fatal("the config has no limit for everyone")
	return nil
}

// save runs a node until it has saved the rows of a database in a folder.
func save(t *testing.T, dsn, dir string) {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	node, err := policysync.New(policysync.Options{
		Source: policysync.Source{DSN: dsn}, Dir: dir, Log: slog.New(slog.DiscardHandler),
		Changed: func(*policy.Snapshot) { stop() },
	})
	if err == nil {
		err = node.Run(ctx)
	}
	if err != nil {
		t.Fatalf("save the rows: %v", err)
	}
}

// wantDenials checks what Postgres has of denials of one limit.
func wantDenials(t *testing.T, dsn string, want int64) {
	t.Helper()
	list, err := rows.New(pgtest.Pool(t, dsn)).Denials(context.Background(), rows.DenialFilter{})
	require.NoError(t, err)
	var count int64
	for _, d := range list {
		if count += d.Count; d.Tenant != "acme" || d.Policy != "per-route" || d.Endpoint != "records" || d.User == "u_1" {
			t.Errorf("a denial is %+v", d)
		}
	}
	if count != want {
		t.Errorf("%d denials are recorded, want %d", count, want)
	}
}

func TestServeRecordsNoDenialsIfThatIsOffOrItDecidesNothing(t *testing.T) {
	for _, s := range []*Settings{{DenialRecent: true}, {Config: &routeconfig.Config{}}} {
		if s.newDenialRecord("n1", slog.New(slog.DiscardHandler)) != nil {
			t.Errorf("%+v records denials", s)
		}
	}
}

// What this process decides counts like what the plugin decides, its denials are in the same list, and its routes are
// those of its file.
func TestServeReportsTheUsageAndTheDenialsOfItsDecisions(t *testing.T) {
	dsn := pgtest.Shared(t).Database(t)
	t.Cleanup(func() { // after the end of the process, which reports what was counted last
		wantDenials(t, dsn, 3)
		wantReported(t, dsn)
	})
	d := deciding(t, strings.Replace(onPort(t, 1), "strategy: redis", "strategy: local", 1), func(s *Settings) {
		s.Database, s.Usage, s.DenialRecent = Database{DSN: dsn}, true, true
	})
	for _, endpoint := range append(slices.Repeat([]string{"records"}, 43), "invented") {
		var x admit.Exchange
		request := &admit.CallerRequest{Caller: identity.Caller{Tenant: "acme", User: "u_1"}}
		request.Method, request.Path, request.Route = admit.Target(endpoint)
		require.NoError(t, d.rest.Decider.Admit(t.Context(), request, &x))
	}
}

// wantReported checks what Postgres has of 40 requests of the route records that were admitted, and one of a route that
// does not exist.
func wantReported(t *testing.T, dsn string) {
	t.Helper()
	var name string
	var text []byte
	err := pgtest.Pool(t, dsn).QueryRow(context.Background(), `SELECT node, payload FROM rate_limiter.usage_batches`).
		Scan(&name, &text)
	require.NoError(t, err)
	var batch usage.Batch
	require.NoError(t, batch.UnmarshalBinary(text))
	requests := map[string]int64{}
	for _, row := range batch.Rows {
		if row.Tenant != "acme" {
			t.Errorf("a row of %+v", row.Key)
		}
		if row.Policy == "" {
			requests[row.Endpoint] += row.Admitted // of each minute
		}
	}
	want := map[string]int64{"records": 40, "": 1}
	if !maps.Equal(requests, want) || !strings.Contains(name, "/control/") {
		t.Errorf("%s has counted %v, want %v", name, requests, want)
	}
}
