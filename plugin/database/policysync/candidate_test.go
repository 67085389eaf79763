package policysync_test

import (
	"context"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/identity"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/resolve"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/database/policysync"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

// underCandidate returns the open candidate of a snapshot, the limit of tier gold under it and under the active
// policies, and whether it is assigned to acme.
func underCandidate(t *testing.T, snapshot *policy.Snapshot) (name string, tried, active int64, assigned bool) {
	t.Helper()
	plan, err := resolve.FromConfig(schema.Config{Tiers: []schema.Tier{{Name: "gold"}}}.WithDefaults())
	require.NoError(t, err)
	limitOf := func(p *resolve.Plan, r *resolve.Resolution) int64 {
		p.ResolveAt(&identity.Identity{Tenant: identity.Name{Kind: identity.Tenant, ID: "acme"}}, 0, r)
		if len(r.Bounds) == 0 {
			return 0
		}
		return r.Bounds[0].Policy.Limit.Spec().Quantity
	}
	var r resolve.Resolution
	plan = plan.With(snapshot)
	active = limitOf(plan, &r)
	c := plan.Candidate()
	if c == nil {
		return "", 0, active, false
	}
	return c.Name(), limitOf(c.Plan, &r), active, c.Assigned(identity.Name{Kind: identity.Tenant, ID: "acme"})
}

func TestANodeFollowsTheOpenCandidate(t *testing.T) {
	w := newWorld(t)
	w.write(`INSERT INTO rate_limiter.policies (name, tier, scope, "limit", window_size)
		VALUES ('daily', 'gold', 'tenant', 100, 60)`)
	n := start(t, w.options())
	type state struct {
		name          string
		tried, active int64
		assigned      bool
	}
	check := func(when string, version int64, want state) {
		t.Helper()
		var got state
		got.name, got.tried, got.active, got.assigned = underCandidate(t, n.await(version))
		assert.Equal(t, want, got, "%s", when)
		loaded := start(t, w.options())
		defer loaded.stop()
		got.name, got.tried, got.active, got.assigned = underCandidate(t, loaded.await(version))
		assert.Equal(t, want, got, "%s, after a load of all rows", when)
	}
	opened := w.write(`INSERT INTO rate_limiter.candidates (name) VALUES ('spring');
		INSERT INTO rate_limiter.candidate_policies (candidate, namespace, name, tier, body) VALUES ('spring', 'default',
			'daily', 'gold', '{"namespace": "default", "name": "daily", "tier": "gold", "scope": "tenant", "limit": 40,
			"window_size": 60, "algorithm": "token_bucket"}')`)
	check("it is open", opened, state{"spring", 40, 100, false})
	check("the active policy changes", w.write(`UPDATE rate_limiter.policies SET "limit" = 90`),
		state{"spring", 40, 90, false})
	check("it is assigned to acme",
		w.write(`INSERT INTO rate_limiter.candidate_tenants (candidate, tenant) VALUES ('spring', 'acme')`),
		state{"spring", 40, 90, true})
	check("it deletes the policy", w.write(`UPDATE rate_limiter.candidate_policies SET body = NULL`),
		state{"spring", 0, 90, true})
	check("all tenants are assigned", w.write(`DELETE FROM rate_limiter.candidate_tenants;
		UPDATE rate_limiter.candidates SET percent = 100`), state{"spring", 0, 90, true})
	want := value[int64](w, `SELECT (extract(epoch FROM created_at) * 1000000)::bigint FROM rate_limiter.candidates`)
	assert.Equal(t, want, int64(n.Snapshot().CandidateSet().Created), "when the candidate was created")
	check("it has ended", w.write(`UPDATE rate_limiter.candidates SET state = 'dropped'`), state{"", 0, 90, false})
	assert.EqualValues(t, 1, n.Stats().Loads, "loads of all rows")
}

func TestAChangeOfACandidateThatDoesNotCompileIsLoggedOnce(t *testing.T) {
	w := newWorld(t)
	w.write(`INSERT INTO rate_limiter.policies (name, tier, scope, "limit", window_size)
			VALUES ('daily', 'gold', 'tenant', 100, 60);
		INSERT INTO rate_limiter.candidates (name) VALUES ('spring');
		INSERT INTO rate_limiter.candidate_policies (candidate, namespace, name, tier, body) VALUES ('spring', 'default',
			'daily', 'gold', '{"namespace": "default", "name": "daily", "tier": "gold", "scope": "tenant", "limit": 40,
			"window_size": 60, "algorithm": "hourglass"}')`)
	n := start(t, w.options())
	n.await(1)
	name, tried, active, _ := underCandidate(t, n.await(w.write(`UPDATE rate_limiter.policies SET "limit" = 90`)))
	if name != "spring" || tried != 90 || active != 90 || n.log.count("hourglass") != 1 {
		t.Errorf("candidate %s has the limit %d beside %d; the log is\n%s", name, tried, active, n.log)
	}
}

func TestCountsOfACandidateAreAddedOnce(t *testing.T) {
	w := newWorld(t)
	w.write(`INSERT INTO rate_limiter.candidates (name) VALUES ('spring')`)
	sink := policysync.NewCandidateSink(policysync.Source{DSN: w.dsn})
	t.Cleanup(sink.Close)
	report := func(source string, seq int64, rows string) error {
		return sink.Report(context.Background(), source, "spring", seq, time.Minute, []byte(rows))
	}
	const first = `[{"tenant": "acme", "endpoint": "GET /x", "policy": "", "requests": 9, "active_only": 1,
			"candidate_only": 2, "both": 3, "examples": [{"n": 2}, {"n": 1}]},
		{"tenant": "acme", "endpoint": "GET /x", "policy": "a", "requests": 2, "active_only": 0, "candidate_only": 0,
			"both": 0}]`
	const second = `[{"tenant": "acme", "endpoint": "GET /x", "policy": "", "requests": 1, "active_only": 1,
			"candidate_only": 0, "both": 0, "examples": [{"n": 3}]},
		{"tenant": "acme", "endpoint": "GET /x", "policy": "a", "requests": 1, "active_only": 1, "candidate_only": 1,
			"both": 0}]`
	for _, r := range []struct {
		source string
		seq    int64
		rows   string
	}{{"n1", 1, first}, {"n1", 1, first}, {"n1", 2, second}, {"n1", 1, first}, {"n2", 1, second}} {
		require.NoError(t, report(r.source, r.seq, r.rows))
	}
	got := value[string](w, `SELECT string_agg(concat_ws(' ', policy, requests, active_only, candidate_only, "both",
		examples, last_at - first_at BETWEEN '1 min' AND '10 min'), '; ' ORDER BY policy) FROM rate_limiter.candidate_counts`)
	const want = ` 11 3 2 3 [{"n": 3}, {"n": 3}, {"n": 2}, {"n": 1}] t; a 2 0 0 0 [] t`
	assert.Equal(t, want, got)
	assert.EqualValues(t, 2, value[int64](w, `SELECT counted FROM rate_limiter.candidate_reports`), "rows are counted")
}

func TestPostgresRejectsCountsThatItWillNeverStore(t *testing.T) {
	w := newWorld(t)
	w.write(`INSERT INTO rate_limiter.candidates (name, state, ended_at) VALUES ('spring', 'open', NULL)`)
	w.write(`UPDATE rate_limiter.candidates SET state = 'dropped'`)
	sink := policysync.NewCandidateSink(policysync.Source{DSN: w.dsn})
	t.Cleanup(sink.Close)
	report := func(candidate, rows string) error {
		return sink.Report(context.Background(), "n1", candidate, 1, 0, []byte(rows))
	}
	long, err := json.Marshal([]string{strings.Repeat("x", 5<<20)})
	require.NoError(t, err)
	assert.NoError(t, report("spring", `[]`), "the last counts of a candidate that has just ended")
	for what, err := range map[string]error{
		"an unknown candidate": report("autumn", `[]`), "no array": report("spring", `{}`),
		"too many bytes": report("spring", string(long)), "no JSON": report("spring", `[`),
	} {
		if rejection, ok := err.(interface{ Rejects() bool }); !ok || !rejection.Rejects() {
			t.Errorf("%s: %v, want a rejection", what, err)
		}
	}
}

func TestANodeThatStartsWithoutPostgresHasTheCandidateThatItHadBefore(t *testing.T) {
	w := newWorld(t)
	version := w.write(`INSERT INTO rate_limiter.candidates (name) VALUES ('spring');
		INSERT INTO rate_limiter.candidate_tenants (candidate, tenant) VALUES ('spring', 'acme');
		INSERT INTO rate_limiter.candidate_policies (candidate, namespace, name, tier, body) VALUES ('spring', 'default',
			'daily', 'gold', '{"namespace": "default", "name": "daily", "tier": "gold", "scope": "tenant", "limit": 40,
			"window_size": 60, "algorithm": "token_bucket"}')`)
	options := w.options()
	options.Dir = t.TempDir()
	n := start(t, options)
	n.await(version)
	n.stop()
	options.Source = policysync.Source{DSN: "postgres://127.0.0.1:1/nowhere"}
	alone := start(t, options)
	alone.until("the saved policies are in force", func(s policysync.Stats) bool {
		return s.Source == policysync.FromDisk
	})
	name, tried, active, assigned := underCandidate(t, alone.Snapshot())
	if name != "spring" || tried != 40 || active != 0 || !assigned {
		t.Errorf("candidate %q has the limit %d beside %d, assigned %v", name, tried, active, assigned)
	}
}
