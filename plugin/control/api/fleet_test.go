package api_test

import (
	"fmt"
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/pgtest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/control/answers"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/database/rows"
)

const (
	fleetPath  = "/v1/ratelimit/fleet"
	forgetPath = fleetPath + "/forget"
)

// silences makes the last report of a node older than that of a live one may be.
func (w *world) silences(node string) {
	w.Helper()
	pgtest.Exec(w, w.pool, `UPDATE rate_limiter.nodes
		SET reported_at = reported_at - $2::interval - interval '1 second' WHERE node = $1`,
		node, rows.LiveWithin)
}

// showsFleet returns what is shown of the fleet.
func (w *world) showsFleet() answers.Fleet {
	w.Helper()
	return read[answers.Fleet](w, w.want(w.as("GET", fleetPath, ""), http.StatusOK))
}

func TestASilentNodeIsNamedAndKeepsAWriteFromBeingEnforcedUntilItIsForgotten(t *testing.T) {
	t.Parallel()
	w := open(t)
	w.enforces("edge-1/A", 1)
	w.enforces("edge-2/B", 0)
	w.silences("edge-2/B")
	a := w.want(w.as("POST", policies+"?wait=10s", daily), http.StatusCreated)
	if e := read[policyWritten](w, a).Enforcement; e.Enforced || fmt.Sprint(e.Silent) != "[edge-2/B (version 0)]" ||
		len(e.Behind) != 0 || e.Live != 1 {
		t.Errorf("the answer is %s, want edge-2/B named as silent, and nothing enforced", a.Body)
	}
	if fleet := w.showsFleet(); fleet.Enforced || fmt.Sprint(fleet.Reach.Silent) != "[edge-2/B (version 0)]" ||
		len(fleet.Nodes) != 2 {
		t.Errorf("the fleet is %+v, want edge-2/B silent", fleet)
	}
	w.want(w.as("POST", forgetPath, `{"node":"edge-2/B"}`), http.StatusUnprocessableEntity)
	w.want(w.do(call{viewer, "POST", forgetPath, `{"node":"edge-2/B","reason":"gone"}`, nil}), http.StatusForbidden)
	w.want(w.as("POST", forgetPath, `{"node":"edge-1/A","reason":"gone"}`), http.StatusConflict)
	for range 2 {
		w.want(w.as("POST", forgetPath, `{"node":"edge-2/B","reason":"the machine is gone"}`, "Idempotency-Key",
			"once"), http.StatusOK)
	}
	w.want(w.as("POST", forgetPath, `{"node":"edge-2/B","reason":"the machine is gone"}`), http.StatusNotFound)
	if fleet := w.showsFleet(); !fleet.Enforced || len(fleet.Nodes) != 1 {
		t.Errorf("the fleet is %+v, want the version enforced", fleet)
	}
	audit := w.want(w.as("GET", "/v1/ratelimit/audit?kind=action", ""), http.StatusOK).Body.String()
	if strings.Count(audit, `"operation":"forget"`) != 1 || !strings.Contains(audit, "token:ann") ||
		!strings.Contains(audit, "the machine is gone") {
		t.Errorf("the audit has %s, want who forgot the node and why, once", audit)
	}
	w.enforces("edge-2/B", 1)
	if fleet := w.showsFleet(); len(fleet.Nodes) != 2 || fleet.Reach.Live != 2 {
		t.Errorf("a node that reports again is not back: %+v", fleet)
	}
}

func TestWithoutALiveNodeAWriteIsNotEnforced(t *testing.T) {
	t.Parallel()
	w := open(t)
	a := w.want(w.as("POST", policies+"?wait=1s", daily), http.StatusCreated)
	if e := read[policyWritten](w, a).Enforcement; e.Enforced || e.Live != 0 {
		t.Errorf("the answer is %s, want nothing enforced", a.Body)
	}
	if fleet := w.showsFleet(); fleet.Enforced {
		t.Errorf("the fleet is %+v, want nothing enforced", fleet)
	}
}

func TestWaitWithoutATimeWaitsForTheDefault(t *testing.T) {
	t.Parallel()
	w := open(t)
	w.enforces("edge-1", 100) // more than the test writes
	for i, c := range []struct {
		query, fault string
		waits        bool
	}{
		{query: "?wait", waits: true},
		{query: "?wait=", waits: true},
		{query: "?wait=true", waits: true},
		{query: "?wait=1s", waits: true},
		{query: "?wait=0s"},
		{query: ""},
		{query: "?wait=yes", fault: "query.wait"},
		{query: "?wait=-1s", fault: "query.wait"},
		{query: "?wait=31s", fault: "query.wait"},
		{query: "?wait=True", fault: "query.wait"},
		{query: "?wait&wait=1s", fault: "query.wait"},
	} {
		a := w.as("POST", policies+c.query, fmt.Sprintf(`{"name":"p%d","tier":"gold","limit":1,"window":"1m"}`, i))
		if c.fault != "" {
			if paths := read[problem](w, w.want(a, http.StatusUnprocessableEntity)).paths(); paths != c.fault {
				t.Errorf("%s: faults at %s, want %s", c.query, paths, c.fault)
			}
			continue
		}
		got := read[policyWritten](w, w.want(a, http.StatusCreated)).Enforcement
		if waits := got != nil; waits != c.waits || waits && !got.Enforced {
			t.Errorf("%s: enforcement %+v, want one: %v", c.query, got, c.waits)
		}
	}
}

func TestAWriteThatCannotReadTheNodesWarnsAndReportsNoFleet(t *testing.T) {
	t.Parallel()
	w := open(t)
	w.enforces("edge-1", 100) // more than the test writes
	location, _, _ := w.made(`{"name":"hourly","tier":"gold","limit":1,"window":"1h"}`)
	pgtest.Exec(t, w.pool, `ALTER TABLE rate_limiter.nodes RENAME TO unreadable`)
	anyVersion := []string{"If-Match", "*"}
	for _, c := range []struct {
		method, path, body string
		status             int
		headers            []string
	}{
		{"POST", policies + "?wait", daily, http.StatusCreated, nil},
		{"PUT", policies + "?wait", `{"name":"weekly","tier":"gold","limit":1,"window":"7d"}`, http.StatusCreated, nil},
		{"PUT", location + "?wait", `{"name":"hourly","tier":"gold","limit":2,"window":"1h"}`, http.StatusOK, anyVersion},
		{"DELETE", location + "?wait&reason=done", "", http.StatusOK, anyVersion},
		{"PUT", "/v1/orgs/acme?wait", `{"tier":"gold"}`, http.StatusCreated, nil},
		{
			"POST", overrides + "?wait", `{"kind":"multiplier","factor":2,"reason":"launch","expires_in":"1h"}`,
			http.StatusCreated, nil,
		},
	} {
		a := w.want(w.as(c.method, c.path, c.body, c.headers...), c.status)
		got := read[struct {
			Version     int64
			Enforcement *answers.Enforcement
			Warnings    []string
		}](w, a)
		unread := func(warning string) bool { return strings.Contains(warning, "GET /v1/ratelimit/fleet") }
		if got.Version == 0 || got.Enforcement != nil || !slices.ContainsFunc(got.Warnings, unread) {
			t.Errorf("%s %s: %s, want the version, no enforcement, and a warning", c.method, c.path, a.Body)
		}
	}
}

func TestTheGuideListsTheKindsOfTheAudit(t *testing.T) {
	t.Parallel()
	guide, err := os.ReadFile("../../../docs/control-api.md")
	require.NoError(t, err)
	listed := "Kinds: `" + strings.Join(rows.AuditKinds, "`, `") + "`."
	if text := strings.Join(strings.Fields(string(guide)), " "); !strings.Contains(text, listed) {
		t.Errorf("docs/control-api.md has no list: %s", listed)
	}
}
