package spec

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

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
