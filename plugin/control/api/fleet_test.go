package api_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

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
