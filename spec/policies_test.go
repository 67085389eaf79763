package spec

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/await"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/freeport"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/pgtest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/redistest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/kong/gateway"
)

// hourly is a limit of five requests an hour for tenants of the tier enterprise. A bucket is used, because a window may
// end during a spec.
const hourly = `{tiers: [{name: enterprise,
    limits: [{name: hour, scope: tenant, limit: 5, window_size: 3600}]}, {name: essentials}]}`

// atDatabase is an option of start: the plugin server with a database, a snapshot folder and metrics.
func atDatabase(dsn, saved, metrics string) func(*gateway.Options) {
	return serverWith("-database", dsn, "-snapshot-dir", saved, "-metrics-listen", metrics)
}

// governed is a node whose policies come from a database.
type governed struct {
	*node
	t       *testing.T
	server  *pgtest.Server
	dsn     string
	rows    *pgxpool.Pool
	saved   string
	metrics string
}

// govern starts a governed node.
func govern(t *testing.T) *governed {
	t.Helper()
	server := pgtest.Start(t)
	dsn := server.Database(t)
	g := &governed{t: t, server: server, dsn: dsn, rows: pgtest.Pool(t, dsn), saved: t.TempDir()}
	g.restart()
	return g
}

// restart starts a node, which may replace an earlier one.
func (g *governed) restart() {
	g.t.Helper()
	g.metrics = freeport.Address(g.t)
	g.node = start(g.t, deck(hourly), atDatabase(g.dsn, g.saved, g.metrics))
}

// write changes rows as an operator with SQL would.
func (g *governed) write(statement string, args ...any) {
	g.t.Helper()
	if _, err := g.rows.Exec(g.t.Context(), statement, args...); err != nil {
		g.t.Fatalf("%s: %v", statement, err)
	}
}

// override inserts an override.
func (g *governed) override(columns, values string) {
	g.t.Helper()
	g.write(fmt.Sprintf(`INSERT INTO rate_limiter.overrides (reason, author, %s) VALUES ('a test', 'a tester', %s)`,
		columns, values))
}

// number returns the value of a sample of the plugin's metrics.
func (g *governed) number(sample string) float64 {
	_, metrics := read(g.metrics, "/metrics")
	value, _ := number(metrics, sample)
	return value
}

// version returns the version of the rows in the database.
func (g *governed) version() float64 {
	g.t.Helper()
	var version float64
	require.NoError(g.t, g.rows.QueryRow(g.t.Context(), `SELECT version FROM rate_limiter.version`).Scan(&version))
	return version
}

// awaitEnforced waits until the node enforces the rows of the database.
func (g *governed) awaitEnforced() {
	g.t.Helper()
	version := g.version()
	await.That(g.t, "the rows are enforced", func() bool { return g.number("rate_limiter_snapshot_version") >= version })
}

// limitOf returns the limit in the next answer to a tenant.
func (g *governed) limitOf(key string) string {
	return g.get("/records", "apikey", key).Header.Get("X-RateLimit-Limit")
}

func TestAnOverrideIsEnforcedAndEndsAtItsInstant(t *testing.T) {
	t.Parallel()
	g := govern(t)
	if got := g.limitOf("alice"); got != "5" {
		t.Fatalf("by the config the limit is %q, want 5", got)
	}
	g.override("kind, tenant, policy, \"limit\", expires_at",
		"'custom_limit', 'acme', 'hour', 500, clock_timestamp() + interval '1 h'")
	await.That(t, "the override is enforced", func() bool { return g.limitOf("alice") == "500" })
	if got := g.limitOf("gus"); got == "500" {
		t.Error("an override of one tenant applies to another")
	}
	begun := time.Now()
	g.write(`BEGIN; SET LOCAL rate_limiter.reason = 'sooner';
		UPDATE rate_limiter.overrides SET expires_at = clock_timestamp() + interval '3 s'; COMMIT`)
	g.awaitEnforced()
	await.That(t, "the override has ended", func() bool { return g.limitOf("alice") == "5" })
	if took := time.Since(begun); took < 3*time.Second {
		t.Errorf("an override of three seconds ended after %v", took)
	}
}

func TestAnOverrideBeginsAtItsStartAlsoWithoutPostgres(t *testing.T) {
	t.Parallel()
	g := govern(t)
	g.override(`kind, source, tenant, policy, "limit", starts_at, expires_at`,
		`'custom_limit', 'scheduled', 'acme', 'hour', 500,
		clock_timestamp() + interval '1 h', clock_timestamp() + interval '2 h'`)
	g.awaitEnforced()
	if got := g.limitOf("alice"); got != "5" {
		t.Fatalf("an hour before the start the limit is %q, want 5", got)
	}
	begun := time.Now()
	g.write(`BEGIN; SET LOCAL rate_limiter.reason = 'sooner';
		UPDATE rate_limiter.overrides SET starts_at = clock_timestamp() + interval '3 s'; COMMIT`)
	g.awaitEnforced()
	version := g.number("rate_limiter_snapshot_version")
	g.server.Stop(t)
	await.That(t, "the override has begun", func() bool { return g.limitOf("alice") == "500" })
	if took := time.Since(begun); took < 3*time.Second {
		t.Errorf("an override that starts in three seconds began after %v", took)
	}
	if now := g.number("rate_limiter_snapshot_version"); now != version {
		t.Errorf("it began with version %g, want %g, that of the change", now, version)
	}
}

func TestTheRowsStayInForceWithoutPostgres(t *testing.T) {
	t.Parallel()
	g := govern(t)
	saves := func() float64 { return g.number("rate_limiter_snapshot_saves_total") }
	await.That(t, "the first rows are saved", func() bool { return saves() > 0 })
	before := saves()
	g.override("kind, tenant, permanent", "'exempt', 'acme', true")
	g.awaitEnforced()
	await.That(t, "the override is saved", func() bool { return saves() > before })
	g.server.Stop(t)
	g.want(times(8, 200), "/records", "apikey", "alice")
	await.That(t, "the metrics report the lost connection", func() bool {
		return g.number("rate_limiter_policies_connected") == 0
	})
	g.restart() // a cold start without Postgres
	g.want(times(8, 200), "/records", "apikey", "alice")
	version, connected := g.number("rate_limiter_snapshot_version"), g.number("rate_limiter_policies_connected")
	if version < 1 || connected != 0 {
		t.Errorf("a node without Postgres enforces version %g, connected %g", version, connected)
	}
	g.server.Start(t)
	g.rows.Reset()
	await.That(t, "Postgres is followed again", func() bool { return g.number("rate_limiter_policies_connected") == 1 })
	g.write(`BEGIN; SET LOCAL rate_limiter.reason = 'over'; DELETE FROM rate_limiter.overrides; COMMIT`)
	g.awaitEnforced()
	g.want(append(times(5, 200), 429), "/records", "apikey", "alice")
}

func TestABanReachesAFreshNodeWithoutPostgresThroughRedis(t *testing.T) {
	t.Parallel()
	server := redistest.Single(t)
	g := govern(t)
	fresh := func() {
		g.saved, g.metrics = t.TempDir(), freeport.Address(t)
		in := store(fmt.Sprintf("strategy: redis, redis: {socket: %s, %s}, ", server.Socket, patience))
		g.node = in.start(t, deck(hourly), atDatabase(g.dsn, g.saved, g.metrics))
	}
	g.override("kind, tenant, permanent", "'ban', 'acme', true")
	fresh()
	copies := func() int { return len(server.Client(t).Keys(t.Context(), "rl:default:{r=policies.*}").Val()) }
	g.want([]int{200}, "/records", "apikey", "gus") // with the first request Kong starts the config
	await.That(t, "the rows are in Redis", func() bool { return copies() == 1 })
	g.server.Stop(t)
	fresh()
	g.want([]int{200}, "/records", "apikey", "gus")
	await.That(t, "the copy is in force", func() bool { return g.number("rate_limiter_policies_mirrored") == 1 })
	g.want([]int{429}, "/records", "apikey", "alice")
	g.want([]int{200}, "/records", "apikey", "gus")
}

func TestACostOfAnEndpointReachesARunningNodeAndEndsWithItsRow(t *testing.T) {
	t.Parallel()
	g := govern(t)
	operator := &plane{t: t, dsn: g.dsn}
	write := func(args ...string) {
		t.Helper()
		operator.operate(append(args, "--reason", "a test")...)
		g.awaitEnforced()
	}
	write("policy", "put", "hour", "--tier", "enterprise", "--limit", "10", "--window", "31536000",
		"--algorithm", "fixed_window")
	write("cost", "put", "GET /records", "--cost", "4")
	g.want([]int{200, 200, 429}, "/records", "apikey", "alice") // 8 of 10
	write("cost", "put", "GET /records", "--cost", "0")
	g.want([]int{200, 200, 200, 200}, "/records", "apikey", "alice")
	write("cost", "delete", "GET /records")
	g.want([]int{200, 200, 429}, "/records", "apikey", "alice") // the last 2
}

func TestLimitsForAllRequestsAndForNetworksAreEnforcedExplainedAndRemovedAtRunTime(t *testing.T) {
	t.Parallel()
	g := govern(t)
	operator := &plane{t: t, dsn: g.dsn}
	config := filepath.Join(t.TempDir(), "kong.yml")
	require.NoError(t, os.WriteFile(config, []byte(deck(hourly)), 0o600))
	write := func(args ...string) {
		t.Helper()
		operator.operate(append(args, "--reason", "a test")...)
		g.awaitEnforced()
	}
	explain := func() string {
		t.Helper()
		return operator.operate("explain", "--config", config, "--plugin-route", "records", "--tenant", "acme",
			"--tier", "enterprise", "--ip", "127.0.0.1", "--path", "/records", "--method", "GET")
	}
	g.want([]int{200}, "/records", "apikey", "alice")

	write("policy", "put", "total", "--for", "all", "--limit", "2", "--window", "3600", "--force")
	g.want([]int{200, 200, 429}, "/records", "apikey", "alice")
	g.want([]int{429}, "/records", "apikey", "gus") // of another tenant
	if text := explain(); !strings.Contains(text, "2 per 3600 s (token_bucket) in total") {
		t.Errorf("the limit of all requests is not explained:\n%s", text)
	}
	write("policy", "delete", "total", "--for", "all")
	g.want([]int{200}, "/records", "apikey", "gus")

	write("policy", "put", "network", "--ip", "127.0.0.0/8", "--scope", "global", "--limit", "3", "--window", "3600")
	write("policy", "put", "network", "--ip", "::ffff:127.0.0.0/112", "--scope", "global", "--limit", "1",
		"--window", "3600")
	g.want([]int{200, 429}, "/records", "apikey", "alice") // by the narrower network
	g.want([]int{429}, "/records", "apikey", "gus")
	if text := explain(); !strings.Contains(text, "ip 127.0.0.0/16") || !strings.Contains(text, "ip 127.0.0.0/8") {
		t.Errorf("the networks are not explained:\n%s", text)
	}
	write("policy", "delete", "network", "--ip", "127.0.0.0/16")
	g.want([]int{200}, "/records", "apikey", "gus") // by the wider one
}

// newKafka returns a Kafka with the topics of ratelimit serve, and its address.
func newKafka(t *testing.T) (cluster *kfake.Cluster, broker string) {
	t.Helper()
	cluster, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.SeedTopics(1, "policy.updates", "ratelimit.notices"))
	require.NoError(t, err)
	t.Cleanup(cluster.Close)
	return cluster, cluster.ListenAddrs()[0]
}

func TestEachChangeOfAPolicyReachesKafkaThoughTheProcessThatSendsIsKilled(t *testing.T) {
	t.Parallel()
	p := newPlane(t)
	cluster, broker := newKafka(t)
	sent := cluster.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Produce}, Observe: true, Count: -1})
	first := p.serve("--kafka-brokers", broker)
	first.want(http.StatusCreated, nil, http.MethodPost, "/v1/ratelimit/policies", policyOf(1000))
	require.NoError(t, sent.Wait(t.Context(), 1))
	const changes = 30
	for i := range changes {
		p.write(`UPDATE rate_limiter.policies SET "limit" = ` + strconv.Itoa(2000+i))
		if i == changes/2 {
			require.NoError(t, first.cmd.Process.Kill())
			<-first.ended
			p.serve("--kafka-brokers", broker)
		}
	}
	consumer, err := kgo.NewClient(kgo.SeedBrokers(broker), kgo.ConsumeTopics("policy.updates"))
	require.NoError(t, err)
	defer consumer.Close()
	var ids []string
	var limits []int
	for len(limits) < changes+1 {
		for _, r := range consumer.PollFetches(t.Context()).Records() {
			var e struct {
				ID   string
				Data struct {
					Kind  string
					After struct{ Limit int }
				}
			}
			require.NoError(t, json.Unmarshal(r.Value, &e))
			if e.Data.Kind == "policy" && !slices.Contains(ids, e.ID) {
				ids, limits = append(ids, e.ID), append(limits, e.Data.After.Limit)
			}
		}
	}
	if !slices.IsSorted(limits) || limits[0] != 1000 || limits[changes] != 2000+changes-1 {
		t.Errorf("the topic has the limits %d, want those of all changes in their order", limits)
	}
}
