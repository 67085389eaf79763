package api_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/bucket/memory"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/control/api"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/database/rows"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

const (
	costs     = "/v1/ratelimit/costs"
	ofExports = `{"endpoint":"POST /exports","cost":50}`
)

func TestACostIsSetReadListedAndDeletedWithItsETag(t *testing.T) {
	t.Parallel()
	w := open(t)
	made := w.want(w.as("PUT", costs, `{"endpoint":"POST /exports/{id}","cost":50,"reason":"slow"}`), http.StatusCreated)
	path, tag := made.Header().Get("Location"), made.Header().Get("ETag")
	row := read[struct{ Cost rows.Cost }](w, made).Cost
	if path != fmt.Sprint(costs, "/", row.ID) || *row.Cost.Cost != 50 || row.Namespace != "default" {
		t.Errorf("made %s at %s", made.Body, path)
	}
	got := w.want(w.as("GET", path, ""), http.StatusOK)
	if got.Header().Get("ETag") != tag {
		t.Errorf("read with %s, want %s", got.Header().Get("ETag"), tag)
	}
	w.want(w.as("GET", path, "", "If-None-Match", tag), http.StatusNotModified)
	w.want(w.as("PUT", costs, got.Body.String()), http.StatusOK) // what is read can be written
	w.want(w.as("PUT", costs, `{"endpoint":"POST /exports/{key}","cost":0}`), http.StatusPreconditionRequired)
	free := w.want(w.as("PUT", costs, `{"endpoint":"POST /exports/{key}","cost":0}`, "If-Match", tag), http.StatusOK)
	if cost := read[struct{ Cost rows.Cost }](w, free).Cost; *cost.Cost.Cost != 0 || cost.ID != row.ID {
		t.Errorf("changed to %s, want free", free.Body)
	}
	spelled := `{"endpoint":"POST /exports/{key}","cost":2}`
	w.want(w.as("PUT", costs, spelled, "If-Match", tag), http.StatusPreconditionFailed)
	w.want(w.as("PUT", costs, `{"endpoint":"GET /none","cost":2}`, "If-Match", "*"), http.StatusPreconditionFailed)
	w.want(w.as("PUT", costs, `{"endpoint":"GET /b","cost":2,"namespace":"other"}`), http.StatusCreated)
	list := read[struct{ Items []rows.Cost }](w, w.want(w.as("GET", costs+"?namespace=other", ""), http.StatusOK))
	if len(list.Items) != 1 || list.Items[0].Endpoint != "GET /b" {
		t.Errorf("listed %+v, want that of the other namespace", list.Items)
	}
	w.want(w.as("DELETE", path+"?reason=fast", ""), http.StatusPreconditionRequired)
	w.want(w.as("DELETE", path+"?reason=fast", "", "If-Match", tag), http.StatusPreconditionFailed)
	w.want(w.as("DELETE", path+"?reason=fast", "", "If-Match", free.Header().Get("ETag")), http.StatusOK)
	w.want(w.as("GET", path, ""), http.StatusNotFound)
}

func TestACostThatMeansNothingIsAFaultOfItsField(t *testing.T) {
	t.Parallel()
	w := open(t)
	for body, want := range map[string]string{
		`{"endpoint":"POST /exports"}`:                   "body.cost",
		`{"endpoint":"POST /exports","cost":null}`:       "body.cost",
		`{"endpoint":"POST /exports","cost":-1}`:         "body.cost",
		`{"endpoint":"POST /exports","cost":1000000001}`: "body.cost",
		`{"cost":1}`:                       "body.endpoint",
		`{"endpoint":"/exports","cost":1}`: "body.endpoint",
		`{"endpoint":"POST /exports","cost":1,"namespace":" "}`: "body.namespace",
	} {
		w.wantFaults(w.as("PUT", costs, body), want)
	}
}

func TestACheckShowsWhereItsCostComesFrom(t *testing.T) {
	t.Parallel()
	cost := int64(7)
	w := open(t, func(o *api.Options) {
		buckets := shelf{memory.New(memory.Options{Now: clock})}
		o.Buckets, o.Decider = buckets, deciderOf(t, plan(), buckets, policy.Rows{Costs: []policy.CostRow{
			{ID: 3, Cost: schema.Cost{Namespace: "default", Endpoint: "POST /exports", Cost: &cost}},
		}})
	})
	for body, want := range map[string]string{
		`{"org_id":"acme","endpoint":"POST /exports"}`:          `{"tokens":7,"from":"row","cost_id":3,"endpoint":"POST /exports"}`,
		`{"org_id":"acme","endpoint":"POST /exports","cost":2}`: `{"tokens":2,"from":"request"}`,
		`{"org_id":"acme","endpoint":"GET /other"}`:             ``,
	} {
		a := w.want(w.as("POST", checkPath, body), http.StatusOK)
		if got := string(read[struct{ Cost json.RawMessage }](w, a).Cost); got != want {
			t.Errorf("%s: the cost is %s, want %s", body, got, want)
		}
	}
}

const (
	documents = "/v1/ratelimit/document"

	full = `{"policies":[{"name":"daily","tier":"gold","scope":"tenant","limit":1000,"window_size":86400}],
		"costs":[{"endpoint":"POST /exports","cost":50}],"tenants":[{"id":"acme","tier":"gold"}],
		"prices":[{"model":"gpt-4o*","prompt":"2.50","completion":"10","starts_at":"2026-01-01T00:00:00Z"}],
		"overrides":[{"kind":"multiplier","tenant":"acme","factor":1.5,"permanent":true,"reason":"r","author":"eve"}]}`
)

func TestADocumentThatWasReadChangesNothingWhenItIsApplied(t *testing.T) {
	t.Parallel()
	w := open(t)
	w.want(w.as("PUT", documents, full), http.StatusOK)
	raw := w.want(w.as("GET", documents, ""), http.StatusOK).Body.String()
	for _, want := range []string{`"factor":1.5`, `"author":"token:`, `"cost":50`, `"prompt":"2.5"`} {
		require.Contains(t, raw, want)
	}
	again := read[api.DocumentWritten](w, w.want(w.as("PUT", documents, raw), http.StatusOK))
	if d := again.Diff; !d.Empty() || !d.Costs.Empty() || !d.Prices.Empty() || !d.Tenants.Empty() || !d.Overrides.Empty() {
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
