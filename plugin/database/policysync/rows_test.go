package policysync_test

import (
	"encoding/json"
	"fmt"
	"reflect"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/policytest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/database/policysync"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

func TestAnInvalidRowIsReportedAndItsLastGoodValueStays(t *testing.T) {
	w := newWorld(t)
	n := start(t, w.options())
	n.await(w.policies(1, 3))
	w.write(`ALTER TABLE rate_limiter.policies DROP CONSTRAINT policies_limit;
		ALTER TABLE rate_limiter.policies ALTER scope DROP NOT NULL`)
	poisoned := w.write(`UPDATE rate_limiter.policies SET "limit" = -5 WHERE tenant = 'tenant-1';
		UPDATE rate_limiter.policies SET "limit" = 8 WHERE tenant = 'tenant-2'`)
	snapshot := n.await(poisoned)
	if got := limits(snapshot); got["tenant-1"] != 1001 || got["tenant-2"] != 8 {
		t.Errorf("limits are %v, want the last good one of tenant-1 and the new one of tenant-2", got)
	}
	s := n.Stats()
	if s.FaultCount != 1 || len(s.Faults) != 1 || s.Faults[0].Table != "policies" || s.Faults[0].Field != "limit" {
		t.Fatalf("faults are %+v, want one, of a policy's limit", s.Faults)
	}
	n.await(w.policies(4, 4))
	if n.log.count("does not compile") != 1 || n.Stats().FaultCount != 1 {
		t.Errorf("after another change there are %d faults; want it logged once:\n%s", n.Stats().FaultCount, n.log)
	}
	n.until("the node reports it", func(policysync.Stats) bool {
		var reported []policy.Fault
		require.NoError(t, json.Unmarshal(value[[]byte](w, `SELECT faults FROM rate_limiter.nodes`), &reported))
		return len(reported) == 1 && reported[0] == s.Faults[0]
	})
	n.await(w.write(`UPDATE rate_limiter.policies SET scope = NULL WHERE tenant = 'tenant-1'`))
	if n.log.count("does not compile") < 2 || limits(n.Snapshot())["tenant-1"] != 1001 {
		t.Errorf("the row has changed and is still invalid, want it logged again:\n%s", n.log)
	}
	snapshot = n.await(w.write(`UPDATE rate_limiter.policies SET "limit" = 6, scope = 'tenant' WHERE tenant = 'tenant-1'`))
	if s := n.Stats(); s.FaultCount != 0 || limits(snapshot)["tenant-1"] != 6 {
		t.Errorf("after the repair there are %d faults and limits %v", s.FaultCount, limits(snapshot))
	}
}

// policytest.Full has every field of a policy.
func TestANodeReadsEveryFieldOfAPolicyFromTheDatabase(t *testing.T) {
	w := newWorld(t)
	n := start(t, w.options())
	var columns, values []string
	for _, f := range schema.Fields[schema.Policy]() {
		column := pgx.Identifier{f.Name}.Sanitize()
		value := column
		switch {
		case f.Type == "string":
			value = "coalesce(" + column + ", '')"
		case f.Type == "boolean":
			value = "coalesce(" + column + ", false)"
		}
		columns, values = append(columns, column), append(values, value)
	}
	for _, p := range policytest.Full(t) {
		row, err := json.Marshal(p)
		require.NoError(t, err)
		version := w.write(`INSERT INTO rate_limiter.policies (`+strings.Join(columns, ", ")+`)
			SELECT `+strings.Join(values, ", ")+` FROM jsonb_populate_record(NULL::rate_limiter.policies, $1)`, row)
		for read := range n.await(version).Policies() {
			if read.Name == p.Name && !reflect.DeepEqual(read.Policy, p) {
				t.Errorf("%+v, want %+v", read.Policy, p)
			}
		}
		assert.NotZero(t, n.Snapshot().Len(), "there are no rows")
	}
}

func TestARecordThatCannotBeDecodedIsAFaultOfItsRowAlone(t *testing.T) {
	w := newWorld(t)
	n := start(t, w.options())
	n.await(w.policies(1, 3))
	w.write(`ALTER TABLE rate_limiter.policies DROP CONSTRAINT policies_settle`)
	w.write(`INSERT INTO rate_limiter.policies (name, tenant, scope, "limit", window_size, settle)
		VALUES ('bad', 'acme', 'tenant', 5, 1, '{}')`)
	for _, record := range []string{
		`7`, `[]`, `"x"`, `{}`, `{"sources": 7}`, `{"sources": [7]}`,
		`{"sources": [{"from": "shared.n"}], "reserve": 1.5}`, `{"sources": [{"from": "body.n"}]}`,
	} {
		snapshot := n.await(w.write(`UPDATE rate_limiter.policies SET settle = $1 WHERE name = 'bad'`, record))
		faults := n.Stats().Faults
		if len(faults) != 1 || !strings.HasPrefix(faults[0].Field, "settle") || len(limits(snapshot)) != 3 {
			t.Errorf("%s: faults %+v, want one of settle; limits %v", record, faults, limits(snapshot))
		}
	}
}

func TestLoadingTheSameVersionAgainLogsAndSavesNothing(t *testing.T) {
	w := newWorld(t)
	w.write(`ALTER TABLE rate_limiter.policies DROP CONSTRAINT policies_limit`)
	w.policies(1, 3)
	w.write(`UPDATE rate_limiter.policies SET "limit" = -5 WHERE tenant = 'tenant-1'`)
	options := w.options()
	options.SaveEvery, options.Dir = time.Millisecond, t.TempDir()
	n := start(t, options)
	for loads := range uint64(4) {
		n.until(fmt.Sprintf("load %d", loads+1), func(s policysync.Stats) bool { return s.Loads > loads && s.Saves > 0 })
		w.write(`SET LOCAL session_replication_role = replica; UPDATE rate_limiter.version SET at = clock_timestamp()`) // all is loaded, and is the same
	}
	assert.EqualValues(t, 1, n.Stats().Saves, "one version was saved times")
	if n.log.count("does not compile") != 1 || n.Stats().FaultCount != 1 || n.Snapshot().Len() != 2 {
		t.Errorf("%d faults, %d rows:\n%s", n.Stats().FaultCount, n.Snapshot().Len(), n.log)
	}
}

// The fault of one row may be caused by another one.
func TestAnInvalidRowIsCompiledAgainWithTheNextChange(t *testing.T) {
	w := newWorld(t)
	n := start(t, w.options())
	const policyOn = `INSERT INTO rate_limiter.policies (name, tenant, scope, endpoint, "limit", window_size)
		VALUES ('p', 'acme', 'tenant', '%s', 5, 60)`
	w.write(fmt.Sprintf(policyOn, "GET /a/{x}/c"))
	n.await(w.write(fmt.Sprintf(policyOn, "GET /a/b/{y}")))
	s := n.Stats()
	require.EqualValues(t, 1, s.FaultCount, "faults are %+v, want one of two ambiguous patterns", s.Faults)
	snapshot := n.await(w.write(`DELETE FROM rate_limiter.policies WHERE endpoint = 'GET /a/{x}/c'`))
	if s := n.Stats(); s.FaultCount != 0 || snapshot.Len() != 1 {
		t.Errorf("%d faults and %d rows, want the other row", s.FaultCount, snapshot.Len())
	}
}

func TestWithTooManyRowsTheLastGoodSnapshotStays(t *testing.T) {
	w := newWorld(t)
	options := w.options()
	options.MaxRows = 10
	n := start(t, options)
	n.await(w.policies(1, 10))
	w.policies(11, 11)
	n.until("the version is too large", func(s policysync.Stats) bool { return s.Fault != "" })
	const want = "version 2 has 11 rows, more than snapshot_max_rows (10): 11 policies"
	if n.Snapshot().Len() != 10 || n.log.count(want) != 1 {
		t.Errorf("the snapshot has %d rows, want 10; the log lacks %q:\n%s", n.Snapshot().Len(), want, n.log)
	}
	if s := n.Stats(); !s.Connected || s.Version != 1 {
		t.Errorf("contact %v and version %d, want contact and version 1", s.Connected, s.Version)
	}
	cold := start(t, options)
	cold.until("the version is too large at the start, too", func(s policysync.Stats) bool {
		return s.Fault != "" && s.Connected
	})
	assert.Nil(t, cold.Snapshot(), "there is a snapshot")
	version := w.write(`DELETE FROM rate_limiter.policies WHERE tenant IN ('tenant-1', 'tenant-2')`)
	for _, n := range []*node{n, cold} {
		if snapshot := n.await(version); snapshot.Len() != 9 || n.Stats().Fault != "" {
			t.Errorf("with room again the snapshot has %d rows, want 9; fault %q", snapshot.Len(), n.Stats().Fault)
		}
		if n.log.count("level=ERROR") != 1 || n.log.count(`level=INFO msg="policies fit`) != 1 {
			t.Errorf("want one error for too many rows, and one note that they fit again:\n%s", n.log)
		}
	}
}

func TestANodeNeedsOnlyTheRightsToReadAndReport(t *testing.T) {
	w := newWorld(t)
	w.write(`CREATE ROLE sync_node; GRANT USAGE ON SCHEMA rate_limiter TO sync_node;
		GRANT SELECT ON rate_limiter.version, rate_limiter.changes, rate_limiter.tiers, rate_limiter.tenants,
			rate_limiter.policies, rate_limiter.overrides TO sync_node;
		GRANT SELECT ON rate_limiter.costs, rate_limiter.prices, rate_limiter.candidates, rate_limiter.candidate_policies,
			rate_limiter.candidate_tenants TO sync_node;
		GRANT SELECT, INSERT, UPDATE, DELETE ON rate_limiter.nodes TO sync_node`)
	t.Cleanup(func() { w.write(`DROP OWNED BY sync_node; DROP ROLE sync_node`) })
	options := w.options()
	options.Source.DSN += "&options=-c%20role%3Dsync_node"
	n := start(t, options)
	n.await(w.policies(1, 3))
	n.await(w.write(`UPDATE rate_limiter.policies SET "limit" = 9`))
	n.until("it is reported", func(policysync.Stats) bool {
		return value[int64](w, `SELECT coalesce(max(version), 0) FROM rate_limiter.nodes`) == 2
	})
	if s := n.Stats(); s.Loads+s.CatchUps < 2 || n.log.count("level=WARN") > 0 {
		t.Errorf("%d loads, %d catch-ups:\n%s", s.Loads, s.CatchUps, n.log)
	}
	n.stop()
	assert.Zero(t, value[int64](w, `SELECT count(*) FROM rate_limiter.nodes`), "after its end there are reports")
}

func TestANodeReportsItsVersionUntilItEnds(t *testing.T) {
	w := newWorld(t)
	options := w.options()
	options.BeatEvery = 20 * time.Millisecond
	n := start(t, options)
	version := w.policies(1, 3)
	n.await(version)
	const report = `SELECT count(*) FROM rate_limiter.nodes WHERE node = 'node-1' AND version = $1 AND source = 'postgres'`
	n.until("it is reported", func(policysync.Stats) bool { return value[int64](w, report, version) == 1 })
	before := value[time.Time](w, `SELECT reported_at FROM rate_limiter.nodes`)
	n.until("it is reported again", func(policysync.Stats) bool {
		return value[time.Time](w, `SELECT reported_at FROM rate_limiter.nodes`).After(before)
	})
	enforced := value[float64](w, `SELECT extract(epoch FROM n.enforced_at - v.at)::float8
		FROM rate_limiter.nodes n, rate_limiter.version v`)
	if enforced < 0 || enforced > patience.Seconds() {
		t.Errorf("the version is reported in force %v s after its write", enforced)
	}
	n.stop()
	assert.Zero(t, value[int64](w, `SELECT count(*) FROM rate_limiter.nodes`), "after its end there are reports")
}

func TestAnIdleProcessRemovesItsReportAndReportsAgainWhenItServes(t *testing.T) {
	w := newWorld(t)
	options := w.options()
	options.BeatEvery = 20 * time.Millisecond
	var superseded atomic.Bool
	options.Superseded = superseded.Load
	n := start(t, options)
	n.await(w.policies(1, 3))
	reports := func(want int64) func(policysync.Stats) bool {
		return func(policysync.Stats) bool { return value[int64](w, `SELECT count(*) FROM rate_limiter.nodes`) == want }
	}
	n.until("it is reported", reports(1))
	superseded.Store(true)
	n.until("the report is removed", reports(0))
	superseded.Store(false)
	n.until("it is reported again", reports(1))
}

func TestADeniedReportIsLoggedOnceAndTheNodeGoesOn(t *testing.T) {
	w := newWorld(t)
	w.write(`DROP TABLE rate_limiter.nodes`)
	options := w.options()
	options.BeatEvery = 5 * time.Millisecond
	n := start(t, options)
	n.await(w.policies(1, 3))
	n.await(w.policies(4, 4))
	if s := n.Stats(); s.Contacts != 1 || n.log.count("the report of this node") != 1 {
		t.Errorf("%d sessions:\n%s", s.Contacts, n.log)
	}
}

// wantAdvice checks that the log has an advice once, and no lost contact.
func (n *node) wantAdvice(what string) {
	n.t.Helper()
	if n.log.count(what) != 1 || n.log.count("no contact with Postgres") != 0 {
		n.t.Errorf("want %q once, and no lost contact:\n%s", what, n.log)
	}
}

func TestTablesOfAnEarlierMigrationAreLoggedAsSuchAndNotAsALostContact(t *testing.T) {
	w := newWorld(t)
	w.write(`ALTER TABLE rate_limiter.policies RENAME accuracy TO later`)
	n := start(t, w.options())
	n.until("it is tried", func(policysync.Stats) bool { return n.log.count("accuracy") > 0 })
	n.wantAdvice("older than this program: run ratelimit migrate up")
	w.write(`ALTER TABLE rate_limiter.policies RENAME later TO accuracy`)
	n.await(0)
	n.until("that is logged", func(policysync.Stats) bool { return n.log.count("contact with Postgres is restored") == 1 })
}

func TestAMissingRightIsLoggedWithThePlaceOfTheGrants(t *testing.T) {
	w := newWorld(t)
	w.write(`CREATE ROLE sync_limited; GRANT USAGE ON SCHEMA rate_limiter TO sync_limited;
		GRANT SELECT ON rate_limiter.version TO sync_limited`)
	t.Cleanup(func() { w.write(`DROP OWNED BY sync_limited; DROP ROLE sync_limited`) })
	options := w.options()
	options.Source.DSN += "&options=-c%20role%3Dsync_limited"
	n := start(t, options)
	n.until("it is tried", func(policysync.Stats) bool { return n.log.count("permission denied") > 0 })
	n.wantAdvice("migrations/README.md")
}

func TestANodeReportsRowsThatCannotApplyBesideThoseThatDoNotCompile(t *testing.T) {
	w := newWorld(t)
	w.write(`ALTER TABLE rate_limiter.policies DROP CONSTRAINT policies_limit`)
	stray := policy.Fault{Table: "tenants", Key: "em", Field: "tier", Problem: "no such tier"}
	options := w.options()
	options.BeatEvery = 5 * time.Millisecond
	n := start(t, options)
	w.policies(1, 1)
	n.await(w.write(`UPDATE rate_limiter.policies SET "limit" = -5`))
	reported := func(count int) func(policysync.Stats) bool {
		return func(s policysync.Stats) bool {
			text := value[string](w, `SELECT coalesce(max(faults::text), '') FROM rate_limiter.nodes`)
			return s.FaultCount == count && len(s.Faults) == count && strings.Contains(text, "policies") &&
				strings.Contains(text, "no such tier") == (count == 2)
		}
	}
	n.Unfollowed([]policy.Fault{stray})
	n.until("both are reported", reported(2))
	n.Unfollowed(nil)
	n.until("one remains", reported(1))
}
