package rows_test

import (
	"context"
	"encoding/json"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/await"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/pgtest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/database/policysync"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/database/rows"
)

// report reports for a node that it has enforced a version for a time, as its process would.
func report(t *testing.T, pool *pgxpool.Pool, node string, version int64, age time.Duration) {
	t.Helper()
	r := policysync.Report{Node: node, Version: version, Enforced: age, Source: policysync.FromPostgres}
	require.NoError(t, r.Write(t.Context(), pool))
}

func TestFleetHasTheVersionOfEachNode(t *testing.T) {
	s, pool := open(t)
	report(t, pool, "a", 0, 0)
	report(t, pool, "b", 0, 0)
	_, version := put(t, s, daily())
	report(t, pool, "a", version, 0)
	report(t, pool, "b", version-1, time.Hour)
	fleet, err := s.Fleet(t.Context(), time.Minute)
	if err != nil || fleet.Version != version || fleet.At.IsZero() || len(fleet.Nodes) != 2 {
		t.Fatalf("the fleet is %+v (%v), want two nodes and version %d", fleet, err, version)
	}
	assert.Equal(t, []rows.NodeVersion{{Node: "b", Version: version - 1}}, fleet.Reach(version).Behind)
	if spread, all := fleet.Spread(); all {
		t.Errorf("the change counts as enforced everywhere after %v", spread)
	}
	report(t, pool, "b", version, 0)
	fleet, err = s.Fleet(t.Context(), time.Minute)
	require.NoError(t, err)
	if spread, all := fleet.Spread(); !all || spread <= 0 || spread > time.Minute {
		t.Errorf("the change took %v to reach all (%v)", spread, all)
	}
}

func TestFleetHasTheLeasesAndTheRedisOfEachNode(t *testing.T) {
	s, pool := open(t)
	r := policysync.Report{Node: "new", Source: policysync.FromPostgres, Condition: policysync.Condition{
		Leases: 12, Redis: []policysync.Redis{{Name: "here:6379"}, {Name: "away:6379", AwaySeconds: 60}},
		Took: []int64{0, 0, 0, 0, 0, 0, 0, 80, 20},
	}}
	require.NoError(t, r.Write(t.Context(), pool))
	fleet, err := s.Fleet(t.Context(), time.Minute)
	if err != nil || len(fleet.Nodes) != 1 {
		t.Fatalf("the fleet is %+v (%v), want one node", fleet, err)
	}
	n := fleet.Nodes[0]
	if away := n.Away(); n.Leases != 12 || len(n.Redis) != 2 || len(away) != 1 ||
		away[0].Name != "away:6379" || n.ReportedAt.Sub(*away[0].AwaySince) != time.Minute {
		t.Errorf("the node is %+v, want 12 leases and one Redis that is away for a minute", n)
	}
	silent := rows.Node{Took: []int64{20: 1e9}}
	fleet.Nodes = append(fleet.Nodes, silent, rows.Node{Live: true}, rows.Node{Live: true, Took: []int64{40: 5}})
	if p99 := fleet.DecisionP99(); p99 != 249600*time.Nanosecond { // the 19th of 20 between 128 and 256 µs
		t.Errorf("99 %% of the decisions took at most %v", p99)
	}
	if p99 := (rows.Fleet{Nodes: []rows.Node{silent}}).DecisionP99(); p99 != 0 {
		t.Errorf("without decisions 99 %% took at most %v", p99)
	}
}

func TestAMalformedReportHidesNoOtherNode(t *testing.T) {
	s, pool := open(t)
	report(t, pool, "good", 0, 0)
	_, err := pool.Exec(t.Context(), `ALTER TABLE rate_limiter.nodes DROP CONSTRAINT nodes_redis_away`)
	for node, redis := range map[string]string{
		"infinity": `[{"name": "a", "away_since": "infinity"}]`,
		"nested":   `[[{"name": "a"}]]`,
		"number":   `[{"name": "a", "away_since": 5}, {"name": "b", "away_since": "2026-11-23T06:00:00Z"}]`,
		"late":     `[{"name": "a", "away_since": "9999-12-31T23:00:00-05:00"}]`,
		"cases":    `[{"name": "a", "NAME": 1, "Away_Since": {}}]`,
	} {
		if err == nil {
			_, err = pool.Exec(t.Context(), `INSERT INTO rate_limiter.nodes
				(node, version, enforced_at, first_reported_at, reported_at, redis)
				VALUES ($1, 0, '9998-12-31', '1970-01-02', '9998-12-31', $2)`, node, redis)
		}
	}
	require.NoError(t, err)
	fleet, err := s.Fleet(t.Context(), time.Minute)
	if err != nil || len(fleet.Nodes) != 6 {
		t.Fatalf("the fleet is %+v (%v), want six nodes", fleet, err)
	}
	_, err = json.Marshal(fleet)
	assert.NoError(t, err, "the fleet as JSON")
	for _, n := range fleet.Nodes {
		if away := n.Away(); n.Node == "number" && (len(away) != 1 || away[0].Name != "b" || n.Redis[0].Name != "a") ||
			n.Node != "number" && len(away) != 0 {
			t.Errorf("node %s has %+v, want the readable instants", n.Node, n.Redis)
		}
	}
}

func TestSpreadIgnoresNodesThatStartedAfterTheChange(t *testing.T) {
	s, pool := open(t)
	_, version := put(t, s, daily())
	report(t, pool, "late", version, 0)
	fleet, err := s.Fleet(t.Context(), time.Minute)
	require.NoError(t, err)
	if took, ok := fleet.Spread(); ok {
		t.Errorf("the change took %v, though no node had reported before it", took)
	}
	pgtest.Exec(t, pool, `
		INSERT INTO rate_limiter.nodes (node, version, enforced_at, first_reported_at, reported_at)
		SELECT 'early', version, at + interval '300 ms', at - interval '1 h', clock_timestamp()
		FROM rate_limiter.version`)
	pgtest.Exec(t, pool, `UPDATE rate_limiter.nodes SET enforced_at = now() + interval '1 day'
		WHERE node = 'late'`)
	fleet, err = s.Fleet(t.Context(), time.Minute)
	require.NoError(t, err)
	if took, ok := fleet.Spread(); !ok || took != 300*time.Millisecond {
		t.Errorf("the change took %v (%v), want the 300ms of the node that had reported before", took, ok)
	}
}

func TestAReportOfTheSameVersionKeepsItsEnforcedInstant(t *testing.T) {
	s, pool := open(t)
	report(t, pool, "a", 1, time.Minute)
	first, err := s.Fleet(t.Context(), time.Minute)
	require.NoError(t, err)
	report(t, pool, "a", 1, 0)
	second, err := s.Fleet(t.Context(), time.Minute)
	if err != nil || !second.Nodes[0].EnforcedAt.Equal(first.Nodes[0].EnforcedAt) ||
		!second.Nodes[0].ReportedAt.After(first.Nodes[0].ReportedAt) {
		t.Errorf("first %+v, then %+v (%v), want a later report of the same version", first.Nodes[0], second.Nodes[0], err)
	}
}

// silence makes the last report of a node an hour old.
func silence(t *testing.T, pool *pgxpool.Pool, node string) {
	t.Helper()
	pgtest.Exec(t, pool, `UPDATE rate_limiter.nodes SET reported_at = reported_at - interval '1 hour'
		WHERE node = $1`, node)
}

func TestSilentNodeIsNotWaitedForAndKeepsAVersionFromBeingEnforced(t *testing.T) {
	s, pool := open(t)
	_, version := put(t, s, daily())
	report(t, pool, "silent", version, 0)
	report(t, pool, "live", version, 0)
	silence(t, pool, "silent")
	require.NoError(t, s.Await(t.Context(), version, time.Minute))
	fleet, err := s.Fleet(t.Context(), time.Minute)
	require.NoError(t, err)
	assert.Equal(t, rows.Reach{
		Live: 1, Behind: []rows.NodeVersion{}, Silent: []rows.NodeVersion{{Node: "silent", Version: version}},
	}, fleet.Reach(version))
	_, err = policysync.RemoveReport(t.Context(), pool, "silent")
	require.NoError(t, err)
	if fleet, err = s.Fleet(t.Context(), time.Minute); err != nil || !fleet.Reach(version).Enforced {
		t.Errorf("after it has left the fleet is %+v (%v), want the version enforced", fleet, err)
	}
}

func TestWithoutALiveNodeNothingIsEnforced(t *testing.T) {
	s, _ := open(t)
	_, version := put(t, s, daily())
	assert.NoError(t, s.Await(t.Context(), version, time.Minute), "without nodes waiting ends")
	if fleet, err := s.Fleet(t.Context(), time.Minute); err != nil || fleet.Reach(version).Enforced {
		t.Errorf("without nodes the fleet %+v (%v) enforces the version", fleet, err)
	}
}

func TestAwaitReturnsWithTheLastNode(t *testing.T) {
	s, pool := open(t)
	_, version := put(t, s, daily())
	report(t, pool, "slow", version-1, 0)
	ended := make(chan error)
	go func() { ended <- s.Await(t.Context(), version, time.Minute) }()
	report(t, pool, "slow", version, 0)
	assert.NoError(t, <-ended)
}

// queries counts the queries of a pool.
type queries struct{ made atomic.Int64 }

func (q *queries) TraceQueryStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceQueryStartData) context.Context {
	q.made.Add(1)
	return ctx
}

func (q *queries) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

// traced returns a store that counts its queries.
func traced(t *testing.T, dsn string) (*rows.DB, *queries) {
	t.Helper()
	made := new(queries)
	return wired(t, dsn, func(c *pgxpool.Config) { c.ConnConfig.Tracer = made }), made
}

func TestConcurrentAwaitsShareTheirQueries(t *testing.T) {
	dsn := pgtest.Shared(t).Database(t)
	s, made := traced(t, dsn)
	report(t, pgtest.Pool(t, dsn), "slow", 0, 0)
	const callers, enough = 200, 20
	began := time.Now()
	ctx, cancel := context.WithCancel(t.Context())
	var all sync.WaitGroup
	for range callers {
		all.Go(func() {
			assert.ErrorIs(t, s.Await(ctx, 1, time.Minute), context.Canceled, "waiting for a node that stays behind")
		})
	}
	await.That(t, "the queries are made", func() bool { return made.made.Load() >= enough })
	cancel()
	all.Wait()
	took := time.Since(began) // there is at most one query every 50 ms
	if n := made.made.Load(); float64(n) > took.Seconds()*20+10 {
		t.Errorf("%d calls made %d queries in %v", callers, n, took)
	}
}

func TestNodeReportsItsFaultsAndLeaves(t *testing.T) {
	s, pool := open(t)
	r := policysync.Report{Node: "a", Version: 1, Source: policysync.FromDisk, Faults: []policy.Fault{{Key: "7"}}}
	require.NoError(t, r.Write(t.Context(), pool))
	fleet, err := s.Fleet(t.Context(), time.Minute)
	var faults []policy.Fault
	if err != nil || len(fleet.Nodes) != 1 || json.Unmarshal(fleet.Nodes[0].Faults, &faults) != nil ||
		!slices.Equal(faults, r.Faults) || fleet.Nodes[0].Source != "disk" {
		t.Errorf("the fleet is %+v (%v), want a node with faults from disk", fleet, err)
	}
	_, err = policysync.RemoveReport(t.Context(), pool, "a")
	assert.NoError(t, err)
	if fleet, err = s.Fleet(t.Context(), time.Minute); err != nil || len(fleet.Nodes) != 0 {
		t.Errorf("after it left the fleet is %+v (%v)", fleet, err)
	}
}

func TestTheReportsOfNodesAreBounded(t *testing.T) {
	s, pool := open(t)
	const insert = `INSERT INTO rate_limiter.nodes (node, version, enforced_at, reported_at, faults)
		SELECT $1 || n, 0, now(), now() - n * interval '1 s', $2 FROM generate_series(1, 2500) n`
	pgtest.Exec(t, pool, `ALTER TABLE rate_limiter.nodes DISABLE TRIGGER nodes_bound`) // which takes long for each row
	pgtest.Exec(t, pool, insert, "forged-", `[]`)
	pgtest.Exec(t, pool, `ALTER TABLE rate_limiter.nodes ENABLE TRIGGER nodes_bound`)
	report(t, pool, "real", 1, 0)
	fleet, err := s.Fleet(t.Context(), time.Minute)
	if err != nil || len(fleet.Nodes) != 2000 || fleet.Nodes[1999].Node != "real" {
		t.Fatalf("the fleet has %d nodes (%v), want the newest 2000 with the real one", len(fleet.Nodes), err)
	}
	var rows int
	err = pool.QueryRow(t.Context(), `SELECT count(*) FROM rate_limiter.nodes`).Scan(&rows)
	if err != nil || rows != 2000 {
		t.Errorf("there are %d rows (%v), want 2000", rows, err)
	}
	long := `["` + strings.Repeat("x", 60_000) + `"]`
	pgtest.Exec(t, pool, `DELETE FROM rate_limiter.nodes; ALTER TABLE rate_limiter.nodes DISABLE TRIGGER nodes_bound`)
	pgtest.Exec(t, pool, insert, "forged-", long)
	fleet, err = s.Fleet(t.Context(), time.Minute)
	require.NoError(t, err)
	text, err := json.Marshal(fleet)
	if err != nil || len(fleet.Nodes) != 2000 || len(text) > 6<<20 || !strings.Contains(string(text), "left out") {
		t.Errorf("%d nodes take %d bytes (%v), want 2000 in 6 MB, some without their faults", len(fleet.Nodes), len(text), err)
	}
}

func TestANodeWithManyFaultsReportsThoseThatFit(t *testing.T) {
	s, pool := open(t)
	r := policysync.Report{Node: "a", Source: policysync.FromPostgres}
	for range 100 {
		r.Faults = append(r.Faults, policy.Fault{Key: strings.Repeat("<", 500), Problem: strings.Repeat("x", 1000)})
	}
	require.NoError(t, r.Write(t.Context(), pool))
	fleet, err := s.Fleet(t.Context(), time.Minute)
	var faults []policy.Fault
	if err != nil || len(fleet.Nodes) != 1 || json.Unmarshal(fleet.Nodes[0].Faults, &faults) != nil || len(faults) < 10 {
		t.Errorf("the fleet is %+v (%v), want a node with some of its faults", fleet, err)
	}
}
