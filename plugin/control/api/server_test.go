package api_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/golden"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/bucket/memory"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/control/api"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/limit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/database/policysync"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/database/rows"
)

// clock stands still.
func clock() limit.Micros { return 1_900_000_000 * limit.Second }

// enforces reports for a node that it enforces a version.
func (w *world) enforces(node string, version int64) {
	w.Helper()
	r := policysync.Report{Node: node, Version: version, Source: policysync.FromPostgres}
	require.NoError(w, r.Write(context.Background(), w.pool))
}

func TestUnroutedRequestsGetAProblemDocument(t *testing.T) {
	t.Parallel()
	w := open(t)
	tests := []struct {
		call  call
		code  int
		allow string
	}{
		{call{admin, "GET", "/nowhere", "", nil}, http.StatusNotFound, ""},
		{call{admin, "GET", "/", "", nil}, http.StatusNotFound, ""},
		{call{admin, "GET", "/docs", "", nil}, http.StatusNotFound, ""},
		{call{admin, "PATCH", policies, "{}", nil}, http.StatusMethodNotAllowed, "GET, HEAD, POST, PUT"},
		{call{admin, "DELETE", policies, "", nil}, http.StatusMethodNotAllowed, "GET, HEAD, POST, PUT"},
		{
			call{admin, "GET", policies, "", []string{"Accept", "text/html, application/json;q=0"}},
			http.StatusNotAcceptable, "",
		},
		{call{admin, "POST", policies, daily, []string{"Accept", "text/html"}}, http.StatusNotAcceptable, ""},
		{
			call{admin, "POST", policies, "a=b", []string{"Content-Type", "application/x-www-form-urlencoded"}},
			http.StatusUnsupportedMediaType, "",
		},
		{call{admin, "POST", policies, strings.Repeat("x", 2<<20), nil}, http.StatusRequestEntityTooLarge, ""},
		{call{admin, "POST", policies, "", nil}, http.StatusBadRequest, ""},
		{call{panics, "GET", policies, "", nil}, http.StatusInternalServerError, ""},
		{call{away, "GET", policies, "", nil}, http.StatusServiceUnavailable, ""},
	}
	for _, test := range tests {
		a := w.want(w.do(test.call), test.code)
		if p := read[problem](w, a); p.Status != test.code || p.Detail == "" ||
			strings.Contains(p.Detail, "hunter2") || a.Header().Get("Content-Type") != "application/problem+json" {
			t.Errorf("%s %s: %v %s", test.call.method, test.call.path, a.Header(), a.Body)
		}
		if got := a.Header().Get("Allow"); got != test.allow {
			t.Errorf("%s %s allows %q, want %q", test.call.method, test.call.path, got, test.allow)
		}
	}
	if list, err := w.store.Policies(t.Context(), rows.PolicyFilter{}); err != nil || len(list) != 0 {
		t.Errorf("%d policies were written (%v), want none", len(list), err)
	}
}

func TestEveryAnswerHasSecurityHeadersAndTheIDOfItsRequest(t *testing.T) {
	t.Parallel()
	w := open(t)
	for _, c := range []call{
		{admin, "GET", policies, "", nil},
		{"", "GET", policies, "", nil},
		{admin, "GET", "/nowhere", "", nil},
		{panics, "GET", policies, "", nil},
		{"", "GET", "/openapi.yaml", "", nil},
		{"", "GET", "/healthz", "", nil},
	} {
		for name, value := range map[string]string{
			"X-Content-Type-Options": "nosniff", "Cache-Control": "no-store", "X-Frame-Options": "DENY",
			"Referrer-Policy":         "no-referrer",
			"Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'", "Strict-Transport-Security": "",
			"X-Request-Id": "r-1.a",
		} {
			if got := w.do(c.with("X-Request-Id", "r-1.a")).Header().Get(name); got != value {
				t.Errorf("%s: %s is %q, want %q", c.path, name, got, value)
			}
		}
	}
	overTLS := httptest.NewRecorder()
	w.server.ServeHTTP(overTLS, httptest.NewRequest("GET", "https://control/healthz", nil))
	if overTLS.Header().Get("Strict-Transport-Security") == "" {
		t.Error("over TLS there is no Strict-Transport-Security")
	}
	for _, odd := range []string{"", "a b", "a\nb", "<script>", strings.Repeat("x", 65)} {
		if got := w.as("GET", "/healthz", "", "X-Request-Id", odd).Header().Get("X-Request-Id"); got == odd || len(got) < 20 {
			t.Errorf("the id %q became %q, want one of the server's", odd, got)
		}
	}
}

func TestTheLogHasOneLineForARequestAndNoSecret(t *testing.T) {
	t.Parallel()
	w := open(t)
	w.as("POST", policies+"?wait=7ms", `{"name":"daily","tier":"gold","limit":1000,"window":"1d","reason":"a secret reason"}`, "X-Request-Id", "r-1")
	w.do(call{"guessed-secret", "GET", policies, "", nil})
	w.do(call{panics, "GET", policies + "/7?reason=hush", "", nil})
	w.do(call{away, "GET", policies, "", nil})
	requests := 0
	for line := range strings.Lines(w.log.String()) {
		var entry map[string]any
		require.NoError(t, json.Unmarshal([]byte(line), &entry))
		if entry["msg"] != "request" {
			continue
		}
		if requests++; requests == 1 {
			delete(entry, "time")
			delete(entry, "ms")
			want := `map[level:INFO method:POST msg:request request_id:r-1 route:/v1/ratelimit/policies status:201 token:ann]`
			if fmt.Sprint(entry) != want {
				t.Errorf("the line is %v, want %s", entry, want)
			}
		}
	}
	if requests != 4 {
		t.Errorf("4 requests make %d lines", requests)
	}
	for _, secret := range []string{admin, "guessed-secret", panics, "a secret reason", "7ms", "hush"} {
		if strings.Contains(w.log.String(), secret) {
			t.Errorf("the log has %q", secret)
		}
	}
}

func TestTheAPILimitsItselfPerTokenAndPerAddressWithoutOne(t *testing.T) {
	t.Parallel()
	registry := prometheus.NewRegistry()
	w := open(t, func(o *api.Options) {
		o.Limits, o.Rates = memory.New(memory.Options{Now: clock}), api.Rates{Requests: 2, Failures: 3}
		o.Metrics = registry
	})
	for i := range 4 {
		code := http.StatusOK
		if i >= 2 {
			code = http.StatusTooManyRequests
		}
		a := w.want(w.as("GET", policies, ""), code)
		if got := a.Header().Get("RateLimit-Policy"); got != `"requests";q=2;w=60` {
			t.Errorf("RateLimit-Policy is %q", got)
		}
		if wait := a.Header().Get("Retry-After"); (wait == "30") != (code == http.StatusTooManyRequests) {
			t.Errorf("request %d: %d with Retry-After %q", i, code, wait)
		}
	}
	w.want(w.do(call{other, "GET", policies, "", nil}), http.StatusOK)
	for i := range 4 {
		code := http.StatusUnauthorized
		if i == 3 {
			code = http.StatusTooManyRequests
		}
		w.want(w.do(call{[]string{"", unknownToken}[i%2], "GET", policies, "", nil}), code)
	}
	w.want(w.do(call{other, "GET", policies, "", nil}), http.StatusOK) // who has a token is not locked out by who has none
	w.want(w.do(call{method: "GET", path: "/healthz"}), http.StatusOK)
}

func TestAWriteIsAnsweredOnceTheNodesEnforceItOrNamesThoseThatDoNot(t *testing.T) {
	t.Parallel()
	w := open(t)
	w.enforces("quick", 1)
	a := w.want(w.as("POST", policies+"?wait=10s", daily), http.StatusCreated)
	if got := read[policyWritten](w, a); got.Version != 1 || !got.Enforcement.Enforced ||
		len(got.Enforcement.Behind) != 0 {
		t.Errorf("the answer is %s, want it enforced", a.Body)
	}
	w.enforces("slow", 1)
	w.enforces("quick", 2)
	a = w.want(w.as("POST", policies+"?wait=1s", `{"tier":"gold","limit":1,"window":"1m"}`), http.StatusCreated)
	if got := read[policyWritten](w, a); got.Version != 2 || got.Enforcement.Enforced ||
		fmt.Sprint(got.Enforcement.Behind) != "[slow (version 1)]" {
		t.Errorf("the answer is %s, want that slow is behind", a.Body)
	}
	w.want(w.as("POST", policies+"?wait=31s", daily), http.StatusUnprocessableEntity)
	a = w.want(w.as("PUT", policies+"?wait=1ns", daily), http.StatusOK) // the time is over at once
	if got := read[policyWritten](w, a); got.Enforcement == nil || len(got.Enforcement.Behind) != 1 {
		t.Errorf("the answer is %s, want that slow is behind", a.Body)
	}
}

// A connection whose deadline for reading has passed cancels what is being answered on it.
func TestAWriteMayWaitLongerThanARequestMayTakeToArrive(t *testing.T) {
	t.Parallel()
	w := open(t)
	w.enforces("slow", 0)
	server := httptest.NewUnstartedServer(w.server)
	server.Config = w.server.HTTPServer()
	server.Config.ReadTimeout = 2 * time.Second
	server.Start()
	defer server.Close()
	request := call{admin, "PUT", policies + "?wait=4s", daily, nil}.request()
	request.RequestURI, request.URL.Scheme, request.URL.Host = "", "http", server.Listener.Addr().String()
	response, err := server.Client().Do(request)
	require.NoError(t, err)
	defer response.Body.Close()
	var got policyWritten
	if err := json.NewDecoder(response.Body).Decode(&got); err != nil || got.Enforcement == nil ||
		fmt.Sprint(got.Enforcement.Behind) != "[slow (version 0)]" {
		t.Errorf("%d %+v (%v), want that slow is behind", response.StatusCode, got, err)
	}
}

func TestTheSameRequestSentAgainIsAnsweredAgainAndWritesNothing(t *testing.T) {
	t.Parallel()
	w := open(t)
	for path, body := range map[string]string{
		policies: daily, overrides: `{"kind":"multiplier","factor":2,"reason":"launch","expires_in":"1h"}`,
	} {
		key := []string{"Idempotency-Key", "retry 1 of " + path}
		first := w.want(w.as("POST", path, body, key...), http.StatusCreated)
		again := w.want(w.as("POST", path, body, key...), http.StatusCreated)
		if first.Header().Get("Idempotent-Replayed") != "" || again.Header().Get("Idempotent-Replayed") != "true" {
			t.Errorf("%s: replayed are %v and %v", path, first.Header(), again.Header())
		}
		if first.Body.String() != again.Body.String() || first.Header().Get("ETag") != again.Header().Get("ETag") {
			t.Errorf("%s: answered by %s and then by %s", path, first.Body, again.Body)
		}
		w.wantFaults(w.as("POST", path, strings.Replace(body, "1", "3", 1), key...), "header.Idempotency-Key")
		w.want(w.do(call{other, "POST", path, body, key}), http.StatusConflict) // the key is the token's own
		for _, odd := range []string{"ü", " ", strings.Repeat("k", 129)} {
			w.want(w.as("POST", path, body, "Idempotency-Key", odd), http.StatusUnprocessableEntity)
		}
	}
}

func TestMetricsHaveTheirPublishedNames(t *testing.T) {
	t.Parallel()
	registry := prometheus.NewRegistry()
	w := open(t, func(o *api.Options) { o.Metrics = registry })
	w.made(daily)
	w.do(call{admin, "BREW", "/nowhere", "", nil})
	families, err := registry.Gather()
	require.NoError(t, err)
	var got strings.Builder
	for _, family := range families {
		fmt.Fprintf(&got, "%s %s %s\n", family.GetName(), strings.ToLower(family.GetType().String()), family.GetHelp())
		for _, metric := range family.GetMetric() {
			for _, label := range metric.GetLabel() {
				fmt.Fprintf(&got, "  %s=%q", label.GetName(), label.GetValue())
			}
			fmt.Fprintln(&got)
		}
	}
	golden.Check(t, "testdata/metrics.golden", got.String())
}
