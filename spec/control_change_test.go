package spec

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"
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
	await(a.t, fmt.Sprintf("%d nodes report", nodes), func() bool {
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
	var took []time.Duration
	for limit := 1001; limit <= 1010; limit++ {
		var got enforcement
		start := time.Now()
		a.want(http.StatusOK, &got, http.MethodPut, "/v1/ratelimit/policies?wait=30s", policyOf(limit), "If-Match", "*")
		took = append(took, time.Since(start))
		if !got.Enforcement.Enforced || len(got.Enforcement.Behind) != 0 {
			t.Errorf("limit %d: %+v, want it enforced everywhere", limit, got)
		}
		for _, n := range nodes {
			if !n.enforces(limit) {
				t.Errorf("limit %d is reported as enforced, and is not", limit)
			}
		}
	}
	slices.Sort(took)
	t.Logf("ten changes were enforced by all nodes after %v", took)
	// Without a notification most take seconds. A busy machine delays some.
	if took[4] > time.Second {
		t.Errorf("half of the changes took more than %v", took[4])
	}
}

func TestANodeThatIsCutOffFromPostgresIsNamedByAWriteThatWaits(t *testing.T) {
	t.Parallel()
	p := newPlane(t)
	p.write(`CREATE ROLE far SUPERUSER LOGIN`)
	near, far := p.node("near", p.dsn), p.node("far", strings.Replace(p.dsn, "://postgres@", "://far@", 1))
	a := p.serve()
	a.awaitFleet(3)
	p.write(`ALTER ROLE far NOLOGIN`)
	p.write(`SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'far'`)
	var got enforcement
	a.want(http.StatusCreated, &got, http.MethodPost, "/v1/ratelimit/policies?wait=5s", policyOf(1000))
	if e := got.Enforcement; e.Enforced || len(e.Behind) != 1 || !strings.HasPrefix(e.Behind[0].Node, "far/") {
		t.Errorf("%+v, want the node far named", e)
	}
	if !near.enforces(1000) {
		t.Error("the other node does not enforce it")
	}
	if far.enforces(1000) {
		t.Error("the node that is cut off enforces the new row")
	}
	p.write(`ALTER ROLE far LOGIN`)
	await(t, "the node enforces it when it is back", func() bool { return far.enforces(1000) })
}

func TestTheEffectivePoliciesFollowTheRows(t *testing.T) {
	t.Parallel()
	p := newPlane(t)
	a := p.serve()
	a.awaitFleet(1)
	inForce := func() string {
		return a.want(http.StatusOK, nil, http.MethodGet, "/v1/orgs/acme/ratelimit/policies?tier=enterprise", "").Body
	}
	if text := inForce(); !strings.Contains(text, `"year"`) || strings.Contains(text, `"minute"`) {
		t.Errorf("want only the limit year of the config: %s", text)
	}
	a.want(http.StatusCreated, nil, http.MethodPost, "/v1/ratelimit/policies?wait=30s", policyOf(1000))
	if text := inForce(); !strings.Contains(text, `"year"`) || !strings.Contains(text, `"minute"`) {
		t.Errorf("the row is enforced, and not shown: %s", text)
	}
}
