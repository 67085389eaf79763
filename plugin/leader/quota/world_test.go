package quota_test

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/pgtest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/bucket/memory"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/bucket/store"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/calendar"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/decision"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/identity"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/limit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/resolve"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/leader/quota"
	leaderusage "github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/leader/usage"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/observe/usage"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// knownTiers has the tiers of tenants without a row.
type knownTiers map[string]string

func (k knownTiers) Refresh(context.Context, string) error { return nil }

func (k knownTiers) Identities(id identity.Identity) (list []identity.Identity) {
	for tier := range strings.FieldsSeq(cmp.Or(k[id.Tenant.ID], "basic")) {
		id.Tier = tier
		list = append(list, id)
	}
	return list
}

// noon is a time in the middle of the windows of a day.
var noon = time.Date(2026, 11, 22, 12, 0, 0, 0, time.UTC)

// world is a database with a leader that watches quotas, and buckets with a clock of their own.
type world struct {
	*testing.T
	pool        *pgxpool.Pool
	dsn         string
	watcher     *quota.Watcher
	plan        *resolve.Plan
	tiers       knownTiers
	buckets     store.Store
	clock       time.Time
	seq         int64
	unavailable string          // buckets of this tenant cannot be read
	fault       error           // of adding events
	events      []quota.Notice  // that were added, also in transactions that were rolled back
	log         strings.Builder // of the watcher
}

func newWorld(t *testing.T, limits ...schema.Limit) *world {
	t.Helper()
	w := &world{T: t, dsn: pgtest.Shared(t).Database(t), clock: noon, tiers: knownTiers{}}
	w.pool = pgtest.Pool(t, w.dsn)
	w.buckets = memory.New(memory.Options{Now: func() limit.Micros { return limit.Micros(w.clock.UnixMicro()) }})
	w.enforce(policy.Rows{}, limits...)
	w.watcher = quota.NewWatcher(w.options())
	return w
}

func (w *world) options() quota.Options {
	return quota.Options{
		Routes: []string{"a", "b", "route"},
		Plan:   func() *resolve.Plan { return w.plan }, Peek: w.peek, Report: w.report, Tiers: w.tiers,
		Log: slog.New(slog.NewTextHandler(&w.log, nil)),
	}
}

// enforce puts limits and rows in force.
func (w *world) enforce(rows policy.Rows, limits ...schema.Limit) {
	w.Helper()
	plan, err := resolve.FromConfig(schema.Config{
		DefaultTier: "basic", OnMissingUser: "skip", TenantFrom: []string{"consumer.custom_id"},
		Tiers: []schema.Tier{{Name: "basic", Limits: limits}},
	}.WithDefaults())
	require.NoError(w, err)
	snapshot, faults := policy.NewSnapshot(rows, nil)
	if len(faults) > 0 {
		w.Fatal(faults)
	}
	w.plan = plan.With(snapshot)
}

// inPeriods makes the windows of all limits periods.
func (w *world) inPeriods(period calendar.Period, anchor calendar.Anchor, zone string) {
	w.Helper()
	c, err := calendar.New(period, anchor, zone)
	require.NoError(w, err)
	for _, p := range w.plan.Policies() {
		p.Limit, err = limit.New(limit.Spec{
			Algorithm: limit.FixedWindow, Quantity: p.Limit.Spec().Quantity, Calendar: c,
		})
		require.NoError(w, err)
	}
}

var errUnavailable = errors.New("connection refused")

func (w *world) peek(ctx context.Context, bounds []policy.Bound, statuses []decision.Status) error {
	err := w.buckets.Peek(ctx, bounds, statuses)
	for i := range bounds {
		if bounds[i].Key.GroupID == w.unavailable {
			statuses[i] = decision.Status{Failure: decision.TimedOut}
		}
	}
	return err
}

func (w *world) report(_ context.Context, _ pgx.Tx, _ time.Time, notices []quota.Notice) error {
	w.events = append(w.events, notices...)
	return w.fault
}

// bounds returns the bounds of a request of a tenant on a route or to an endpoint.
func (w *world) bounds(tenant, endpoint string, tokens int64) (r resolve.Resolution) {
	id := identity.Identity{Tenant: identity.Name{Kind: identity.Tenant, ID: tenant}, Cost: tokens}
	id.User = identity.Name{Kind: identity.User, ID: "u"}
	id.Tier, _, _ = strings.Cut(w.tiers[tenant], " ")
	var found bool
	if id.Method, id.Path, found = strings.Cut(endpoint, " "); !found {
		id.Method, id.Path, id.Route = "GET", "/unmatched", endpoint
	} else {
		id.Route = "b"
	}
	w.plan.ResolveAt(&id, limit.Micros(w.clock.UnixMicro()), &r)
	return r
}

// spend has a tenant spend tokens by a request on a route or to an endpoint, and reports the usage of a time ago.
func (w *world) spend(tenant, endpoint string, tokens int64, ago time.Duration) {
	w.Helper()
	r := w.bounds(tenant, endpoint, tokens)
	statuses := make([]decision.Status, len(r.Bounds))
	require.NoError(w, w.buckets.Take(w.Context(), r.Bounds, statuses))
	var rows []usage.Row
	for i := range r.Bounds {
		counts := usage.Counts{Denied: 1, Remaining: statuses[i].Remaining}
		if statuses[i].Charged {
			counts = usage.Counts{Admitted: 1, Cost: r.Bounds[i].Cost, Remaining: statuses[i].Remaining}
		}
		rows = append(rows, usage.Row{Key: usage.Key{
			Tenant: tenant, Endpoint: r.Endpoint, Policy: r.Bounds[i].Ref().String(),
		}, Counts: counts})
	}
	slices.SortFunc(rows, func(a, b usage.Row) int { return strings.Compare(a.Policy, b.Policy) })
	w.unreported(rows, ago)
}

// unreported stores a batch for the leader.
func (w *world) unreported(rows []usage.Row, ago time.Duration) {
	w.Helper()
	w.seq++
	b := usage.Batch{Epoch: "0123456789abcdef", Seq: w.seq, Rows: rows}
	payload, err := b.MarshalBinary()
	require.NoError(w, err)
	w.exec(`SELECT rate_limiter.report_usage('edge-1', $1, $2, $3, $4)`, b.Epoch, b.Seq, ago, payload)
}

func (w *world) exec(sql string, args ...any) {
	w.Helper()
	_, err := w.pool.Exec(w.Context(), sql, args...)
	require.NoError(w, err, "%s", sql)
}

// leader returns a leader that watches quotas, or one that does not.
func (w *world) leader(watches bool) *leaderusage.Leader {
	o := leaderusage.Options{
		Connect: func(ctx context.Context) (*pgx.Conn, error) { return pgx.Connect(ctx, w.dsn) },
		Lock:    1, Log: slog.New(slog.DiscardHandler),
	}
	if watches {
		o.Check = w.watcher.Check
	}
	return leaderusage.NewLeader(o)
}

// lead does the work of the leader once, and returns the notices that it wrote, and its error.
func (w *world) lead(watches bool) (string, error) {
	w.Helper()
	w.events = nil
	var before time.Time
	require.NoError(w, w.pool.QueryRow(w.Context(), `SELECT clock_timestamp()`).Scan(&before))
	for {
		done, err := w.leader(watches).Once(w.Context())
		if err == nil && !done.Leading {
			continue // the session before has not ended yet
		}
		rows, errRead := w.pool.Query(w.Context(), `SELECT format('%s %s%s %s%% of %s: %s', tenant, split_part(policy, '/', 1),
				CASE WHEN endpoint <> '' THEN ' at ' || endpoint END, threshold, "limit", used)
			FROM rate_limiter.quota_notices WHERE noticed_at >= $1 ORDER BY tenant, policy, endpoint, threshold`, before)
		require.NoError(w, errRead)
		list, errRead := pgx.CollectRows(rows, pgx.RowTo[string])
		require.NoError(w, errRead)
		if err == nil && len(list) != len(w.events) {
			w.Errorf("%d notices and %d events", len(list), len(w.events))
		}
		return strings.Join(list, ", "), err
	}
}

// want leads, and compares the notices that are written.
func (w *world) want(what, want string) {
	w.Helper()
	got, err := w.lead(true)
	require.NoError(w, err, "%s", what)
	assert.Equal(w, want, got, "%s: the notices", what)
}

// daily returns a limit of a tenant and day.
func daily(quantity int64, change ...func(*schema.Limit)) schema.Limit {
	l := schema.Limit{Name: "daily", Scope: "tenant", Limit: quantity, WindowSize: 86400, Algorithm: "fixed_window"}
	for _, c := range change {
		c(&l)
	}
	return l
}

// event returns the one event of the last lead.
func (w *world) event() quota.Notice {
	w.Helper()
	require.Len(w, w.events, 1, "the events")
	return w.events[0]
}
