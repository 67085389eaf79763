package control_test

import (
	"fmt"
	"net/http"
	"testing"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/control"
)

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

func TestTheOpenAPIDocumentAllowsWaitWithoutATime(t *testing.T) {
	t.Parallel()
	d, _ := describe(open(t))
	found := 0
	for path, methods := range d.Paths {
		for method, o := range methods {
			for _, p := range o.Parameters {
				if p.Name != "wait" {
					continue
				}
				if found++; !p.AllowEmptyValue || p.In != "query" {
					t.Errorf("%s %s: parameter wait is %+v, want allowEmptyValue", method, path, p)
				}
			}
		}
	}
	if found == 0 || control.DefaultWait <= 0 {
		t.Errorf("%d operations wait, by default %v", found, control.DefaultWait)
	}
}
