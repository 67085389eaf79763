package spec

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/await"
)

// policyOf returns the body of a policy with a limit a minute.
func policyOf(limit int) string {
	return fmt.Sprintf(`{"orgTier":"Enterprise","name":"minute","limit":%d,"window":"1m","algorithm":"token_bucket",
		"failMode":"open"}`, limit)
}

// enforces reports whether a node's answers have a limit a minute.
func (n *node) enforces(limit int) bool {
	n.t.Helper()
	return strings.Contains(n.get("/records", "apikey", "alice").Header.Get("RateLimit-Policy"),
		fmt.Sprintf(`"minute";q=%d;w=60`, limit))
}

// awaitFleet waits until a number of nodes are live.
func (a *api) awaitFleet(nodes int) {
	a.t.Helper()
	await.That(a.t, fmt.Sprintf("%d nodes report", nodes), func() bool {
		var fleet struct{ Nodes []struct{ Live bool } }
		a.want(http.StatusOK, &fleet, http.MethodGet, "/v1/ratelimit/fleet", "")
		live := 0
		for _, n := range fleet.Nodes {
			if n.Live {
				live++
			}
		}
		return live == nodes
	})
}

func TestAChangeByRESTIsEnforcedByTwoNodesBehindTwoGatewaysWithinASecond(t *testing.T) {
	t.Parallel()
	p := newPlane(t)
	nodes := []*node{p.node("one", p.dsn), p.node("two", p.dsn)}
	a := p.serve()
	a.awaitFleet(3) // the process of the API is a node, too
	a.want(http.StatusCreated, nil, http.MethodPost, "/v1/ratelimit/policies", policyOf(1000))
	limit := 1000
	wantFast(t, 10, func() time.Duration {
		limit++
		var got enforcement
		start := time.Now()
		a.want(http.StatusOK, &got, http.MethodPut, "/v1/ratelimit/policies?wait=30s", policyOf(limit), "If-Match", "*")
		took := time.Since(start)
		if !got.Enforcement.Enforced || len(got.Enforcement.Behind) != 0 {
			t.Errorf("limit %d: %+v, want it enforced everywhere", limit, got)
		}
		for _, n := range nodes {
			if !n.enforces(limit) {
				t.Errorf("limit %d is reported as enforced, and is not", limit)
			}
		}
		return took
	})
}

func TestANodeThatIsCutOffFromPostgresIsNamedByAWriteThatWaits(t *testing.T) {
	t.Parallel()
	p := newPlane(t)
	p.write(`CREATE ROLE far SUPERUSER LOGIN`)
	near, far := p.node("near", p.dsn), p.node("far", strings.Replace(p.dsn, "://postgres@", "://far@", 1))
	a := p.serve()
	a.awaitFleet(3)
	p.write(`ALTER ROLE far NOLOGIN`)
	p.write(`SELECT pg_terminate_backend(pid, 60000) FROM pg_stat_activity WHERE usename = 'far'`)
	// It stays live on a busy machine, too.
	p.write(`UPDATE rate_limiter.nodes SET reported_at = clock_timestamp() + interval '1 h' WHERE node LIKE 'far/%'`)
	var got enforcement
	limit := 1000
	a.want(http.StatusCreated, &got, http.MethodPost, "/v1/ratelimit/policies?wait=5s", policyOf(limit))
	await.That(t, "a write that the other nodes enforce within its wait", func() bool {
		e := got.Enforcement
		if e.Enforced || !slices.ContainsFunc(e.Behind, func(n behind) bool { return strings.HasPrefix(n.Node, "far/") }) {
			t.Fatalf("%+v, want the node far named", e)
		}
		if len(e.Behind) == 1 {
			return true
		}
		limit++
		got = enforcement{}
		a.want(http.StatusOK, &got, http.MethodPut, "/v1/ratelimit/policies?wait=5s", policyOf(limit), "If-Match", "*")
		return false
	})
	if !near.enforces(limit) {
		t.Error("the other node does not enforce it")
	}
	if far.enforces(limit) {
		t.Error("the node that is cut off enforces the new row")
	}
	p.write(`ALTER ROLE far LOGIN`)
	await.That(t, "the node enforces it when it is back", func() bool { return far.enforces(limit) })
}

// wantFast makes series of changes, which return the time until they are enforced, until half of a series take at most
// a second. A busy machine delays some series.
func wantFast(t *testing.T, changes int, change func() time.Duration) {
	t.Helper()
	for begun := time.Now(); ; {
		var took []time.Duration
		for range changes {
			took = append(took, change())
		}
		slices.Sort(took)
		median := took[len(took)/2]
		t.Logf("from commit to enforcement: median %v, longest %v", median, took[len(took)-1])
		if median <= time.Second {
			return
		}
		if time.Since(begun) > longest {
			t.Fatalf("half of the changes took more than %v", median)
		}
	}
}

// ban bans acme as an operator.
func (p *plane) ban() {
	p.t.Helper()
	p.operate("override", "add", "--tenant", "acme", "--kind", "ban", "--permanent", "--reason", "abuse")
}

func TestABannedTenantIsNotAdmittedBeforeTheRowsAreLoaded(t *testing.T) {
	t.Parallel()
	p := newPlane(t)
	p.ban()
	lock, err := p.rows.Begin(t.Context())
	if err == nil {
		_, err = lock.Exec(t.Context(), `LOCK TABLE rate_limiter.policies IN ACCESS EXCLUSIVE MODE`)
	}
	require.NoError(t, err)
	a := p.launch()
	await.That(t, "it serves", func() bool { return a.status("/healthz") == http.StatusOK })
	for _, path := range []string{check, check + "/batch"} {
		body := checkAcme
		if path != check {
			body = `{"checks":[` + checkAcme + `]}`
		}
		got := a.want(http.StatusServiceUnavailable, nil, http.MethodPost, path, body)
		if !strings.Contains(got.Body, "warming up") || got.Header.Get("Retry-After") != "1" {
			t.Errorf("%s: %s, Retry-After %q", path, got.Body, got.Header.Get("Retry-After"))
		}
	}
	require.NoError(t, lock.Rollback(t.Context()))
	await.That(t, "it has loaded the rows", func() bool { return a.status("/readyz") == http.StatusOK })
	a.wantBanned()
}

// wantBanned fails the test unless acme is banned.
func (a *api) wantBanned() {
	a.t.Helper()
	got := a.want(http.StatusOK, nil, http.MethodPost, check, checkAcme)
	if !strings.Contains(got.Body, `"reason":"banned"`) {
		a.t.Errorf("a banned tenant got %s", got.Body)
	}
}

func TestOnAStandbyABanIsEnforcedAndWritesAreDenied(t *testing.T) {
	t.Parallel()
	p := newPlane(t)
	standby := p.postgres.Standby(t)
	a := p.serve("--database", standby.Here(p.postgres, p.dsn))
	a.want(http.StatusOK, nil, http.MethodPost, check, checkAcme)
	p.ban()
	await.That(t, "the ban is enforced", func() bool {
		return strings.Contains(a.want(http.StatusOK, nil, http.MethodPost, check, checkAcme).Body, `"reason":"banned"`)
	})
	got := a.want(http.StatusServiceUnavailable, nil, http.MethodPost, "/v1/ratelimit/policies", policyOf(1000))
	if !strings.Contains(got.Body, "read-only") {
		t.Errorf("a write got %s", got.Body)
	}
	if got := a.want(http.StatusOK, nil, http.MethodGet, "/readyz", ""); !strings.Contains(got.Body, "standby") {
		t.Errorf("/readyz answers %s", got.Body)
	}
	if _, metrics := read(a.metrics, "/metrics"); !strings.Contains(metrics, "rate_limiter_policies_standby 1") {
		t.Error("no metric reports the standby")
	}
	standby.Promote(t)
	promoted, err := pgx.Connect(t.Context(), standby.Here(p.postgres, p.dsn))
	require.NoError(t, err)
	defer promoted.Close(t.Context())
	await.That(t, "it reports", func() bool {
		var live bool
		err := promoted.QueryRow(t.Context(),
			`SELECT EXISTS (SELECT FROM rate_limiter.nodes WHERE node LIKE '%/control/%')`).Scan(&live)
		return err == nil && live
	})
	await.That(t, "writes go on", func() bool {
		got, err := a.send(http.MethodPost, "/v1/ratelimit/policies", policyOf(1000), "Idempotency-Key", "once")
		return err == nil && got.Status == http.StatusCreated
	})
}
