package api_test

import (
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/control/api"
)

const (
	documents = "/v1/ratelimit/document"

	full = `{"policies":[{"name":"daily","tier":"gold","scope":"tenant","limit":1000,"window_size":86400}],
		"costs":[{"endpoint":"POST /exports","cost":50}],"tenants":[{"id":"acme","tier":"gold"}],
		"overrides":[{"kind":"multiplier","tenant":"acme","factor":1.5,"permanent":true,"reason":"r","author":"eve"}]}`
)

func TestADocumentThatWasReadChangesNothingWhenItIsApplied(t *testing.T) {
	t.Parallel()
	w := open(t)
	w.want(w.as("PUT", documents, full), http.StatusOK)
	raw := w.want(w.as("GET", documents, ""), http.StatusOK).Body.String()
	for _, want := range []string{`"factor":1.5`, `"author":"token:`, `"cost":50`} {
		require.Contains(t, raw, want)
	}
	again := read[api.DocumentWritten](w, w.want(w.as("PUT", documents, raw), http.StatusOK))
	if d := again.Diff; !d.Empty() || !d.Costs.Empty() || !d.Tenants.Empty() || !d.Overrides.Empty() {
		t.Errorf("the document\n%s\nchanges %+v", raw, d)
	}
}

func TestADocumentDeletesOnlyIfItIsAllowedTo(t *testing.T) {
	t.Parallel()
	w := open(t)
	w.want(w.as("PUT", documents, full), http.StatusOK)
	const none = `{"policies":[],"overrides":[]}`
	declined := read[api.DeclinedDocument](w, w.want(w.as("PUT", documents, none), http.StatusUnprocessableEntity))
	if at := declined.Errors[0].Location; at != "query.allow_delete" || len(declined.Diff.Delete) != 1 ||
		len(declined.Diff.Overrides.Delete) != 1 {
		t.Errorf("declined at %s with %+v", at, declined.Diff)
	}
	kept := read[api.DocumentWritten](w, w.want(w.as("PUT", documents+"?partial=true", none), http.StatusOK))
	if !kept.Diff.Empty() {
		t.Errorf("a partial document changes %+v", kept.Diff)
	}
	w.want(w.as("PUT", documents+"?allow_delete=true", none), http.StatusOK)
	if left := w.as("GET", documents, "").Body.String(); !strings.Contains(left, `"policies":[]`) ||
		!strings.Contains(left, `"overrides":[]`) || !strings.Contains(left, "acme") {
		t.Errorf("left are %s", left)
	}
}

func TestAFaultOfADocumentNamesTheRow(t *testing.T) {
	t.Parallel()
	w := open(t)
	const cost = `{"endpoint":"POST /a","cost":5}`
	for body, want := range map[string]string{
		`{"policies":[` + strings.TrimSuffix(daily, "}") + `}]}`:                         "body.policies[0].scope body.policies[0].window body.policies[0].window_size",
		`{"costs":[` + cost + `,{"endpoint":"nowhere","cost":5}]}`:                       "body.costs[1].endpoint",
		`{"tenants":[{"id":"acme","time_zone":"Mars"}]}`:                                 "body.tenants[0].time_zone",
		`{"overrides":[{"kind":"raise","tenant":"acme","permanent":true,"reason":"r"}]}`: "body.overrides[0].kind",
		`{"costs":[` + cost + `,` + cost + `]}`:                                          "body",
	} {
		w.wantFaults(w.as("PUT", documents, body), want)
	}
}
