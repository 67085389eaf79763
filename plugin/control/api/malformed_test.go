package api_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/control/answers"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/control/api"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/database/rows"
)

func TestARequestWithARepeatedHeaderIsDenied(t *testing.T) {
	t.Parallel()
	w := open(t)
	_, tag, _ := w.made(daily)
	for _, pair := range [][2]string{
		{admin, admin},
		{admin, unknownToken},
		{unknownToken, admin},
		{ofAcme, admin},
		{"", admin},
	} {
		c := call{method: "GET", path: policies}
		r := c.request()
		r.Header["Authorization"] = []string{"Bearer " + pair[0], "Bearer " + pair[1]}
		if p := read[problem](w, w.want(w.serve(c, r), http.StatusUnauthorized)); !strings.Contains(p.Detail, "one token") {
			t.Errorf("%v: %+v, want it denied for the second token", pair, p)
		}
	}
	for name, c := range map[string]call{
		"Idempotency-Key": {admin, "POST", policies, `{"tier":"gold","limit":1,"window":"1m"}`, nil},
		"If-Match":        {admin, "PUT", policies, strings.Replace(daily, "1000", "7", 1), nil},
		"If-None-Match":   {admin, "PUT", policies, strings.Replace(daily, "1000", "7", 1), []string{"If-Match", "*"}},
	} {
		for _, values := range [][]string{{tag, "*"}, {"*", tag}, {tag, tag}} {
			r := c.request()
			r.Header[http.CanonicalHeaderKey(name)] = values
			if p := read[problem](w, w.want(w.serve(c, r), http.StatusUnprocessableEntity)); p.paths() != "header."+name {
				t.Errorf("%s %q: faults at %s", name, values, p.paths())
			}
		}
	}
	if list := read[answers.Page[any]](w, w.as("GET", policies, "")); len(list.Items) != 1 {
		t.Errorf("there are %v, want only the first policy", list.Items)
	}
}

func TestAPathWithDotsOrDoubledSlashesIsNotFound(t *testing.T) {
	t.Parallel()
	w := open(t)
	w.want(w.as("POST", "/v1/orgs/%2e%2e/ratelimit/overrides", `{"kind":"ban","reason":"abuse","permanent":true}`),
		http.StatusCreated)
	for _, at := range []string{
		"/v1/orgs/acme/../globex/ratelimit/overrides", "/v1/orgs/../ratelimit/policies", "/v1/orgs/./ratelimit/overrides",
		"//v1/ratelimit/policies",
		"/v1//ratelimit/policies", "/v1/orgs//ratelimit/overrides", "/v1/ratelimit/policies/.",
		"/v1/ratelimit/policies/", "/nowhere/../healthz",
	} {
		for _, method := range []string{"GET", "POST", "DELETE"} {
			a := w.want(w.as(method, at, ""), http.StatusNotFound)
			if to := a.Header().Get("Location"); to != "" || a.Header().Get("Content-Type") != "application/problem+json" {
				t.Errorf("%s %s leads to %q: %s", method, at, to, a.Body)
			}
		}
	}
}

func TestABodyThatIsNoObjectHasThatOneFault(t *testing.T) {
	t.Parallel()
	w := equipped(t)
	for _, o := range operations(w) {
		if !o.hasBody {
			continue
		}
		for _, body := range []string{`null`, `[]`, `"x"`, `7`, `true`, " [{}]\n"} {
			c := o.call(admin).with("If-Match", "*")
			c.body = body
			w.wantFaults(w.do(c), "body")
		}
	}
}

func TestAFaultOfAValueThatIsNotAnObjectListsNothingWithinIt(t *testing.T) {
	t.Parallel()
	w := equipped(t)
	a := w.want(w.as("POST", "/v1/ratelimit/check/batch", `{"checks":[{"org_id":7,"ip":"x"},[],"x",{"cost":0}]}`),
		http.StatusUnprocessableEntity)
	if got, want := read[problem](w, a).paths(), "body.checks[0].ip body.checks[0].org_id body.checks[1] body.checks[2] body.checks[3].cost"; got != want {
		t.Errorf("faults at %s, want %s", got, want)
	}
	for _, path := range []string{policies, overrides, acmeReset} {
		a := w.as("POST", path, "")
		if got := read[problem](w, a).paths(); a.Code != http.StatusBadRequest && a.Code != http.StatusUnprocessableEntity ||
			strings.Contains(got, "body.") {
			t.Errorf("without a body %s answers %d, with faults at %q", path, a.Code, got)
		}
	}
}

// hostile lists texts that would do harm if they were interpreted.
var hostile = []string{
	`'; DROP TABLE rate_limiter.policies; --`,
	`" OR 1=1 --`,
	"a\r\nX-Evil: 1",
	"a\nlevel=ERROR msg=forged",
	"\x00",
	"a\u0000b",
	`%s%n%d`,
	`${jndi:ldap://x}`,
	`<script>alert(1)</script>`,
	"\u202e\ufeff",
	"$1",
	`{"$ne":null}`,
	strings.Repeat("x", 5000),
}

// fields lists the text fields of bodies by the path of their POST.
var fields = map[string][]string{
	policies: {
		"name", "namespace", "tier", "orgTier", "tenant", "orgId", "endpoint", "endpointPattern", "scope",
		"window", "algorithm", "mode", "fail_mode", "failMode", "accuracy", "reason",
	},
	overrides: {
		"kind", "user", "endpoint", "credential", "ip", "policy", "window", "factor", "expires_at", "expires_in", "reason",
	},
}

func TestHostileTextIsStoredUnchangedOrDenied(t *testing.T) {
	t.Parallel()
	w := open(t)
	bodies := map[string]map[string]any{
		policies:  {"name": "daily", "limit": 5, "window_size": 60},
		overrides: {"kind": "ban", "reason": "r"},
	}
	for path, names := range fields {
		for _, name := range names {
			for i, text := range hostile {
				body := map[string]any{}
				for k, v := range bodies[path] {
					body[k] = v
				}
				if path == policies {
					body["name"] = fmt.Sprintf("n-%s-%d", strings.ReplaceAll(name, "_", "-"), i)
					if !strings.Contains("tier orgTier tenant orgId", name) {
						body["tier"] = "gold"
					}
				} else if !strings.HasPrefix(name, "expires") {
					body["permanent"] = true
				}
				body[name] = text
				w.survives(path, name, text, body)
			}
		}
	}
	if strings.Contains(w.log.String(), "\nlevel=ERROR msg=forged") {
		t.Error("a line of the log was forged")
	}
	if _, err := w.store.Policies(t.Context(), rows.PolicyFilter{}); err != nil {
		t.Errorf("the table of the policies: %v", err)
	}
}

// survives posts a body, and checks that it was made with the text as it is or denied with a problem.
func (w *world) survives(path, name, text string, body map[string]any) {
	w.Helper()
	raw, err := json.Marshal(body)
	require.NoError(w, err)
	a := w.as("POST", path, string(raw))
	switch {
	case a.Header().Get("X-Evil") != "":
		w.Errorf("%s: %q has set a header", name, text)
	case a.Code == http.StatusUnprocessableEntity:
		if p := read[problem](w, a); !strings.Contains(p.paths(), "body") {
			w.Errorf("%s: %q is denied at %q: %s", name, text, p.paths(), a.Body)
		}
	case a.Code == http.StatusCreated:
		back := w.as("GET", a.Header().Get("Location"), "")
		if !keeps(read[map[string]any](w, back), text) && (name != "reason" || path != policies) { // which only the audit has
			w.Errorf("%s: %q is kept as %s", name, text, back.Body)
		}
		w.want(w.as("DELETE", a.Header().Get("Location")+"?reason="+url.QueryEscape("over"), "", "If-Match", "*"),
			http.StatusOK)
	case a.Code != http.StatusConflict:
		w.Errorf("%s: %q is answered by %d %s", name, text, a.Code, a.Body)
	}
}

// keeps reports whether a row has a text in one of its fields; a tier by its second spelling is in small letters.
func keeps(row map[string]any, text string) bool {
	for _, value := range row {
		if kept, ok := value.(string); ok && (kept == text || kept == strings.ToLower(text)) {
			return true
		}
	}
	return false
}

func TestHostileQueriesAndHeadersAreDeniedOrFindNothing(t *testing.T) {
	t.Parallel()
	w := open(t)
	w.made(daily)
	for _, text := range hostile {
		for _, filter := range []string{"name", "tier", "tenant", "namespace", "endpoint", "cursor", "limit"} {
			a := w.as("GET", policies+"?"+filter+"="+url.QueryEscape(text), "")
			denied := a.Code == http.StatusUnprocessableEntity && read[problem](w, a).paths() == "query."+filter
			if !denied && (a.Code != http.StatusOK || len(read[answers.Page[rows.Policy]](w, a).Items) != 0) {
				t.Errorf("%s=%q: %d %s", filter, text, a.Code, a.Body)
			}
		}
		for _, header := range []string{"If-Match", "If-None-Match", "Idempotency-Key", "X-Request-Id", "Accept"} {
			if a := w.as("PUT", policies, strings.Replace(daily, "1000", "1", 1), header, text); a.Code < 400 || a.Code >= 500 {
				t.Errorf("%s: %q: %d %s", header, text, a.Code, a.Body)
			}
		}
	}
}

func TestAnAmbiguousQueryIsDenied(t *testing.T) {
	t.Parallel()
	w := open(t)
	for query, at := range map[string]string{
		"?limit=1&limit=2": "query.limit", "?name=a;tier=b": "query", "?name=%zz": "query", "?%FF=1": "query.\ufffd",
	} {
		w.wantFaults(w.as("GET", policies+query, ""), at)
	}
}

// A body is denied before the database is queried, or its faults are those that the database would have found. Here no
// database is there, so what passes is answered by 503.
func FuzzBodies(f *testing.F) {
	for _, body := range []string{
		daily, `{"orgTier":"Enterprise","endpointPattern":"POST /records","limit":1000,"window":"1m","algorithm":"token_bucket","failMode":"open"}`,
		`{"kind":"multiplier","factor":1.5,"reason":"r","expires_in":"7d"}`,
		`{"kind":"custom_limit","policy":"p","limit":1,"window":"1d12h","reason":"r","permanent":true}`,
		`{"kind":"ban","ip":"2001:db8::/48","expires_at":"2031-01-01T00:00:00Z","reason":"r"}`, `{"limit":1e400}`,
		`{"limit":-0.0,"cost":null}`, `[[[[]]]]`, `{"a":{"a":{"a":1,"a":2}}}`, "\xff", `{"limit":9223372036854775808}`,
	} {
		f.Add([]byte(body))
	}
	pool, err := pgxpool.New(context.Background(), "postgres://nobody@127.0.0.1:1/none?connect_timeout=1")
	require.NoError(f, err)
	pool.Close()
	server, err := api.New(api.Options{
		Rows: rows.New(pool), Tokens: ring{}, Log: slog.New(slog.NewTextHandler(io.Discard, nil)),
	})
	require.NoError(f, err)
	f.Fuzz(func(t *testing.T, body []byte) {
		for _, target := range []struct{ method, path string }{
			{"POST", policies},
			{"PUT", policies + "?force=true"},
			{"POST", overrides},
		} {
			recorder := httptest.NewRecorder()
			server.ServeHTTP(recorder, call{
				token: admin, method: target.method, path: target.path, body: string(body),
			}.request())
			switch recorder.Code {
			case http.StatusBadRequest, http.StatusUnprocessableEntity, http.StatusServiceUnavailable,
				http.StatusRequestEntityTooLarge:
			default:
				t.Errorf("%s %s with %q: %d %s", target.method, target.path, body, recorder.Code, recorder.Body)
			}
			var p problem
			if err := json.Unmarshal(recorder.Body.Bytes(), &p); err != nil || p.Status != recorder.Code {
				t.Errorf("%q is answered by %s (%v)", body, recorder.Body, err)
			}
		}
	})
}
