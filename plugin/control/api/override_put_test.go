package api_test

import (
	"encoding/json"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/pgtest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/policytest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/bucket/memory"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/control/answers"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/control/api"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/database/rows"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

// expireOverrides lets all overrides end, by moving their lives into the past.
func (w *world) expireOverrides() {
	w.Helper()
	pgtest.Exec(w, w.pool, `BEGIN; SET LOCAL rate_limiter.reason = 'a test'; UPDATE rate_limiter.overrides SET
		permanent = false, created_at = now() - interval '2 h', expires_at = now() - interval '1 h'; COMMIT`)
}

func TestAnOverrideIsExtendedInPlaceFromTheVersionThatWasRead(t *testing.T) {
	t.Parallel()
	w := open(t)
	made := w.want(w.as("POST", overrides,
		`{"kind":"multiplier","factor":2,"reason":"launch","expires_at":"2099-01-01T00:00:00Z"}`), http.StatusCreated)
	at := made.Header().Get("Location")
	// What a read returns can be sent back.
	var row map[string]any
	got := w.want(w.as("GET", at, ""), http.StatusOK)
	require.NoError(t, json.Unmarshal(got.Body.Bytes(), &row))
	row["expires_at"], row["reason"] = "2099-02-01T00:00:00Z", "it goes on"
	body, err := json.Marshal(row)
	require.NoError(t, err)
	none := w.want(w.as("PUT", at, string(body)), http.StatusPreconditionRequired)
	stale := w.want(w.as("PUT", at, string(body), "If-Match", `"1-7"`), http.StatusPreconditionFailed)
	for _, a := range []answer{none, stale} {
		if a.Header().Get("ETag") != got.Header().Get("ETag") {
			t.Errorf("%d has the ETag %q, want the current one, %q", a.Code, a.Header().Get("ETag"), got.Header().Get("ETag"))
		}
	}
	put := w.want(w.as("PUT", at, string(body), "If-Match", got.Header().Get("ETag")), http.StatusOK)
	o := read[overrideWritten](w, put).Override
	if o.ID != int64(row["id"].(float64)) || o.ExpiresAt.Month() != 2 || o.Revision != 2 || o.Reason != "it goes on" ||
		o.Author != "token:ann" || put.Header().Get("ETag") == got.Header().Get("ETag") {
		t.Errorf("it became %s with the ETag %q", put.Body, put.Header().Get("ETag"))
	}
	w.want(w.as("PUT", at, string(body), "If-Match", got.Header().Get("ETag")), http.StatusPreconditionFailed)
	type change struct {
		Reason        string
		Before, After struct {
			Expires string `json:"expires_at"`
		}
	}
	audit := read[answers.Page[change]](w, w.as("GET", "/v1/ratelimit/audit?kind=override", ""))
	if len(audit.Items) != 2 || audit.Items[0].Reason != "it goes on" ||
		!strings.HasPrefix(audit.Items[0].Before.Expires, "2099-01-01") ||
		!strings.HasPrefix(audit.Items[0].After.Expires, "2099-02-01") {
		t.Errorf("the audit has %+v", audit.Items)
	}
}

func TestAnOverrideKeepsWhatItIsAbout(t *testing.T) {
	t.Parallel()
	w := open(t)
	create := func(body string) string {
		a := w.want(w.as("POST", overrides, body), http.StatusCreated)
		return a.Header().Get("Location")
	}
	running := create(`{"kind":"custom_limit","policy":"daily","limit":5,"user":"u","reason":"r","permanent":true}`)
	later := create(`{"kind":"ban","reason":"r","starts_at":"2098-01-01T00:00:00Z","expires_at":"2099-01-01T00:00:00Z"}`)
	const custom = `{"kind":"custom_limit","policy":"daily","limit":6,"user":"u","reason":"r",`
	for _, test := range []struct{ at, body, paths string }{
		{running, `{"kind":"ban","user":"u","reason":"r","permanent":true}`, "body.kind"},
		{running, strings.Replace(custom, `"u"`, `"v"`, 1) + `"permanent":true}`, "body.user"},
		{running, strings.Replace(custom, `"daily"`, `"hourly"`, 1) + `"permanent":true}`, "body.policy"},
		{running, custom + `"endpoint":"GET /a","permanent":true}`, "body.endpoint"},
		{running, custom + `"starts_at":"2098-01-01T00:00:00Z","permanent":true}`, "body.starts_at"},
		{running, custom + `"expires_at":"2001-01-01T00:00:00Z"}`, "body.expires_at"},
		{running, custom + `"burst":-1}`, "body.burst body.expires_in"},
		{later, `{"kind":"ban","reason":"r","starts_at":"2099-01-01T00:00:00Z","expires_at":"2099-01-01T00:00:00Z"}`, "body.starts_at"},
	} {
		w.wantFaults(w.as("PUT", test.at, test.body, "If-Match", "*"), test.paths)
	}
	w.want(w.as("PUT", running, custom+`"permanent":true}`, "If-Match", "*"), http.StatusOK)
	sooner := w.want(w.as("PUT", later, `{"kind":"ban","reason":"r","expires_at":"2099-01-01T00:00:00Z"}`, "If-Match", "*"),
		http.StatusOK)
	if o := read[overrideWritten](w, sooner).Override; o.State != rows.StateInForce || o.Source != "commercial" {
		t.Errorf("without its start it is %+v", o)
	}
	w.want(w.as("PUT", strings.Replace(running, "acme", "globex", 1), custom+`"permanent":true}`, "If-Match", "*"),
		http.StatusNotFound)
	w.expireOverrides()
	a := w.want(w.as("PUT", running, custom+`"permanent":true}`, "If-Match", "*"), http.StatusConflict)
	if !strings.Contains(a.Body.String(), "it has ended") {
		t.Errorf("one that has ended answers %s", a.Body)
	}
}

// Rows come and go between the pages. Those that stay are listed once.
func TestPagesOfAListStayInOrderWhileItsRowsChange(t *testing.T) {
	t.Parallel()
	w := open(t)
	names := []string{"B", "b/ü", "b", "c", "d"}
	for _, name := range names {
		w.want(w.as("PUT", "/v1/orgs/"+url.PathEscape(name), `{"tier":"gold"}`), http.StatusCreated)
		w.want(w.as("POST", "/v1/orgs/"+url.PathEscape(name)+"/ratelimit/overrides",
			`{"kind":"ban","reason":"r","permanent":true}`), http.StatusCreated)
		by := rows.Change{Actor: "ann", Reason: "r"}
		if _, _, err := w.store.PutTier(t.Context(), by, rows.Tier{Name: name}); err != nil {
			t.Fatal(err)
		}
	}
	change := func() { // the row that the first cursor is at, one before it, and one behind all
		for _, sql := range []string{
			`DELETE FROM rate_limiter.tenants WHERE id = 'b'`, `INSERT INTO rate_limiter.tenants (id) VALUES ('aa'), ('z')`,
			`DELETE FROM rate_limiter.tiers WHERE name = 'b'`, `INSERT INTO rate_limiter.tiers (name) VALUES ('aa'), ('z')`,
			`DELETE FROM rate_limiter.overrides WHERE id = 2`,
			`INSERT INTO rate_limiter.overrides (kind, tenant, permanent, reason, author) VALUES ('ban', 'z', true, 'r', 'ann')`,
		} {
			sql = `BEGIN; SET LOCAL rate_limiter.reason = 'a test'; ` + sql + `; COMMIT`
			pgtest.Exec(t, w.pool, sql)
		}
	}
	type item struct{ ID, Name, Org json.RawMessage }
	first, cursors := map[string][]string{}, map[string]string{}
	page := func(list, query string) (labels []string, next string) {
		p := read[answers.Page[item]](w, w.want(w.as("GET", list+query, ""), http.StatusOK))
		for _, i := range p.Items {
			labels = append(labels, strings.Trim(string(slices.Concat(i.Name, i.Org, i.ID)), `"`))
		}
		return labels, p.NextCursor
	}
	lists := map[string]string{
		"/v1/orgs":                "B b|b/ü c d z",
		"/v1/ratelimit/tiers":     "B b|b/ü c d z",
		"/v1/ratelimit/overrides": `B"1 b/ü"2|b"3 c"4 d"5 z"6`,
	}
	for list := range lists {
		first[list], cursors[list] = page(list, "?limit=2")
	}
	change()
	for list, want := range lists {
		rest, next := page(list, "?limit=100&cursor="+cursors[list])
		if got := strings.Join(first[list], " ") + "|" + strings.Join(rest, " "); got != want || next != "" {
			t.Errorf("%s has %s, then %q, want %s", list, got, next, want)
		}
	}
	for query, want := range map[string]string{
		"/v1/orgs?tier=gold&prefix=b": "b/ü", "/v1/orgs?tier=silver": "", "/v1/ratelimit/tiers?prefix=b": "b/ü",
		"/v1/ratelimit/overrides?tenant=c": `c"4`, "/v1/ratelimit/overrides?kind=exempt": "",
		"/v1/ratelimit/overrides?general=true": "", "/v1/ratelimit/overrides?state=scheduled": "",
	} {
		if got, _ := page(query, ""); strings.Join(got, " ") != want {
			t.Errorf("%s has %q, want %q", query, got, want)
		}
	}
	for query, path := range map[string]string{
		"/v1/orgs?cursor=!":                           "query.cursor",
		"/v1/orgs?cursor=AA":                          "query.cursor",
		"/v1/ratelimit/tiers?limit=0":                 "query.limit",
		"/v1/orgs?prefix=" + strings.Repeat("x", 129): "query.prefix",
		"/v1/ratelimit/overrides?state=soon":          "query.state",
		"/v1/ratelimit/overrides?general=perhaps":     "query.general",
		"/v1/ratelimit/overrides?tier=gold":           "query.tier",
	} {
		w.wantFaults(w.as("GET", query, ""), path)
	}
}

// previews returns a server on which acme has the limits of enterprise and an override on the limit per user.
func previews(t *testing.T) *world {
	t.Helper()
	rows := enterprise()
	rows.Overrides = []policy.Override{
		policytest.Override(1, schema.Override{Kind: schema.KindCustomLimit, Policy: "per-user", Limit: 7, Tenant: "acme"}),
	}
	return open(t, func(o *api.Options) {
		o.Decider = deciderOf(t, plan(), shelf{memory.New(memory.Options{Now: clock})}, rows)
	})
}

// previewed returns what an override of acme would change.
func (w *world) previewed(body string) answers.OverridePreview {
	w.Helper()
	return read[answers.OverridePreview](w, w.want(w.do(call{viewer, "POST", overrides + "/preview", body, nil}),
		http.StatusOK))
}

func TestAPreviewShowsTheLimitsThatAnOverrideChanges(t *testing.T) {
	t.Parallel()
	w := previews(t)
	day := func(n int64) answers.LimitNumbers {
		return answers.LimitNumbers{
			Limit: n, Window: schema.Window{WindowSize: 86400}, Burst: n,
		}
	}
	for body, want := range map[string][]answers.LimitChange{
		`{"kind":"custom_limit","policy":"daily","limit":2000,"reason":"r","expires_at":"2031-01-01T00:00:00Z"}`: {
			{Policy: "daily", Scope: "tenant", Algorithm: "token_bucket", Before: day(1000), After: day(2000)},
		},
		`{"kind":"multiplier","factor":0.5,"endpoint":"POST /records/{id}","reason":"r","permanent":true}`: {
			{
				Policy: "writes", Endpoint: "POST /records/{id}", Scope: "tenant", Algorithm: "token_bucket",
				Before: day(20), After: day(10),
			},
		},
		`{"kind":"multiplier","factor":2,"policy":"per-user","user":"u","reason":"r","permanent":true}`: {
			{Policy: "per-user", Scope: "user", Algorithm: "token_bucket", Before: day(7), After: day(100)},
		},
	} {
		got := w.previewed(body)
		if len(got.Changes) != len(want) || !got.Applied {
			t.Errorf("%s: %+v, want the changes %+v", body, got, want)
			continue
		}
		for i := range want {
			if got.Changes[i] != want[i] {
				t.Errorf("%s: the change is %+v, want %+v", body, got.Changes[i], want[i])
			}
		}
	}
}

func TestAPreviewOfABanOrAnExemptionHasItsVerdict(t *testing.T) {
	t.Parallel()
	w := previews(t)
	for kind, want := range map[string]string{"ban": "banned", "exempt": "exempt"} {
		for _, endpoint := range []string{"", `"endpoint":"GET /x",`} {
			body := `{"kind":"` + kind + `",` + endpoint + `"reason":"r","permanent":true}`
			if got := w.previewed(body); got.Verdict != want || !got.Applied || len(got.Changes) > 0 {
				t.Errorf("%s: %+v, want the verdict %s", body, got, want)
			}
		}
	}
}

func TestAPreviewWithoutAnEffectSaysWhy(t *testing.T) {
	t.Parallel()
	w := previews(t)
	got := w.previewed(`{"kind":"custom_limit","policy":"weekly","limit":1,"reason":"r","permanent":true}`)
	warnings := strings.Join(got.Warnings.Warnings, " ")
	if got.Applied || got.Why == "" || len(got.Changes) > 0 || !strings.Contains(warnings, "weekly") {
		t.Errorf("%+v, want no change and a warning of the policy", got)
	}
	got = w.previewed(`{"kind":"multiplier","factor":1,"reason":"r","permanent":true}`)
	if !got.Applied || len(got.Changes) > 0 {
		t.Errorf("%+v, want an override that applies, and changes no number", got)
	}
	began := w.previewed(`{"kind":"ban","reason":"r","starts_at":"2035-01-01T00:00:00Z","expires_in":"1h"}`)
	if began.At.Year() != 2035 || began.End.Sub(began.Begin).Hours() != 1 || began.Verdict != "banned" {
		t.Errorf("%+v, want the state when the override begins", began)
	}
}

func TestAPreviewOfATakenPlaceAnswersAsTheWriteDoes(t *testing.T) {
	t.Parallel()
	w := previews(t)
	body := `{"kind":"ban","reason":"r","permanent":true}`
	w.want(w.as("POST", overrides, body), http.StatusCreated)
	written := w.want(w.as("POST", overrides, body), http.StatusConflict)
	got, want := w.want(w.as("POST", overrides+"/preview", body), http.StatusConflict).Body.String(), written.Body.String()
	if got != want || !strings.Contains(got, "update it or end it first") {
		t.Errorf("the preview is %s, and the write %s", got, want)
	}
	ended := `{"kind":"exempt","reason":"r","expires_in":"1h","starts_at":"2020-01-01T00:00:00Z"}`
	got = w.want(w.as("POST", overrides+"/preview", ended), http.StatusUnprocessableEntity).Body.String()
	want = w.want(w.as("POST", overrides, ended), http.StatusUnprocessableEntity).Body.String()
	if got != want || !strings.Contains(got, "body.expires_at") || !strings.Contains(got, "must be in the future") {
		t.Errorf("the preview of one that has ended is %s, and the write %s", got, want)
	}
	w.previewed(`{"kind":"ban","reason":"r","permanent":true,"starts_at":"2035-01-01T00:00:00Z"}`)
}

func TestAPreviewChangesNothing(t *testing.T) {
	t.Parallel()
	w := previews(t)
	w.previewed(`{"kind":"ban","reason":"r","permanent":true}`)
	if a := w.as("GET", "/v1/ratelimit/overrides", ""); !strings.Contains(a.Body.String(), `"items":[]`) {
		t.Errorf("after a preview the overrides are %s", a.Body)
	}
	if a := w.as("GET", "/v1/orgs/acme/ratelimit/policies", ""); strings.Contains(a.Body.String(), "banned") {
		t.Errorf("after a preview the limits are %s", a.Body)
	}
	if a := w.as("GET", "/v1/ratelimit/audit", ""); !strings.Contains(a.Body.String(), `"items":[]`) {
		t.Errorf("after a preview the audit is %s", a.Body)
	}
}
