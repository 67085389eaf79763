package limiter_test

import (
	"bytes"
	"context"
	"encoding/json"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/limiter"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

// orgOf identifies requests by a header that tests set.
func orgOf(r *http.Request) limiter.Request { return limiter.Request{Org: r.Header.Get("Org")} }

// served counts the requests that reach it.
type served int

func (s *served) ServeHTTP(w http.ResponseWriter, _ *http.Request) {
	*s++
	w.WriteHeader(http.StatusNoContent)
}

func get(handler http.Handler, target string, headers ...string) *httptest.ResponseRecorder {
	r := httptest.NewRequest("GET", target, nil)
	for i := 0; i < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	w := httptest.NewRecorder()
	handler.ServeHTTP(w, r)
	return w
}

func TestAnHTTPClientReadsWhatTheDecisionHolds(t *testing.T) {
	config := parse(t, `
kong_headers: true
tiers: [{name: a, limits: [{name: daily, scope: tenant, limit: 2, window_size: 86400, algorithm: fixed_window}]}]`)
	var reached served
	handled, acquired := limiting(t, config).Middleware(orgOf)(&reached), limiting(t, config)
	for range 4 {
		d := acquire(t, acquired, limiter.Request{Org: "acme"})
		byDecision := httptest.NewRecorder()
		assert.Equal(t, d.Allowed, d.WriteTo(byDecision), "%+v: passes", d)
		w := get(handled, "/", "Org", "acme")
		for _, name := range []string{
			"X-RateLimit-Limit", "X-RateLimit-Remaining", "RateLimit-Policy", "RateLimit-Limit", "Content-Type",
		} {
			if got, want := w.Header().Get(name), byDecision.Header().Get(name); got != want ||
				want == "" && (d.Allowed != (name == "Content-Type")) {
				t.Errorf("%s: %q by the middleware, %q by the decision", name, got, want)
			}
		}
		if d.Allowed {
			continue
		}
		var problem struct {
			Status int
			Type   string
		}
		if err := json.Unmarshal(w.Body.Bytes(), &problem); err != nil || problem.Status != 429 || w.Code != 429 ||
			w.Header().Get("Retry-After") == "" || problem.Type == "" {
			t.Errorf("%d %v %s: want a 429 with a problem document", w.Code, w.Header(), w.Body)
		}
	}
	assert.EqualValues(t, 2, reached, "the handler has seen %d requests of a limit of 2", reached)
}

func TestWhatIdentifyLeavesEmptyIsReadFromTheRequest(t *testing.T) {
	var seen []string
	config := parse(t, `
tiers:
  - name: a
    limits:
      - {name: path, scope: tenant, endpoint: "GET /a/{id}", limit: 1, window_size: 86400}
      - {name: route, scope: tenant+endpoint, limit: 2, window_size: 86400}
`)
	l := limiting(t, config)
	mux := http.NewServeMux()
	mux.Handle("GET /b/{id}", l.Middleware(orgOf)(new(served)))
	mux.Handle("GET /c/{id}", l.Middleware(orgOf)(new(served)))
	mux.Handle("GET /a/", l.Middleware(orgOf)(new(served)))
	for _, test := range []struct {
		target string
		code   int
	}{
		{"/a/1", 204}, {"/%61/2", 429}, // one pattern of a policy, whatever the path
		{"/b/1", 204}, {"/b/2", 204}, {"/b/3", 429}, // one pattern of the mux
		{"/c/1", 204}, // another
	} {
		if w := get(mux, test.target, "Org", "acme"); w.Code != test.code {
			t.Errorf("%s: %d, want %d", test.target, w.Code, test.code)
		}
		seen = append(seen, test.target)
	}
	anonymous := l.Middleware(nil)(new(served))
	for i, want := range []int{204, 429} {
		if w := get(anonymous, "/a/1"); w.Code != want {
			t.Errorf("request %d of one address: %d, want %d (after %v)", i, w.Code, want, seen)
		}
	}
}

func TestAClientThatLeavesEarlyIsCountedAllTheSame(t *testing.T) {
	l := limiting(t, parse(t, "tiers: [{name: a, limits: [{name: daily, scope: tenant, limit: 3, window_size: 86400}]}]"))
	var reached served
	handler := l.Middleware(orgOf)(&reached)
	gone, leave := context.WithCancel(t.Context())
	leave()
	for range 10 {
		r := httptest.NewRequestWithContext(gone, "GET", "/", nil)
		r.Header.Set("Org", "acme")
		handler.ServeHTTP(httptest.NewRecorder(), r)
	}
	assert.EqualValues(t, 3, reached, "the handler has seen %d requests of a limit of 3", reached)
}

func TestWhatCannotBeDecidedIsAnsweredAsTheConfigSays(t *testing.T) {
	for onError, code := range map[string]int{schema.FailOpen: 204, schema.FailClosed: 503} {
		config := parse(t, daily)
		config.OnInternalError = onError
		l := limiting(t, config)
		require.NoError(t, l.Close(t.Context()))
		if w := get(l.Middleware(orgOf)(new(served)), "/", "Org", "acme"); w.Code != code {
			t.Errorf("on_internal_error %s: %d, want %d", onError, w.Code, code)
		}
	}
}

func TestARequestWithoutATenantIsDeniedWhereOneIsRequired(t *testing.T) {
	l := limiting(t, parse(t, "{on_missing_tenant: deny, tiers: [{name: a, limits: []}]}"))
	if w := get(l.Middleware(orgOf)(new(served)), "/"); w.Code != 403 ||
		w.Header().Get("Content-Type") != "application/problem+json" {
		t.Errorf("%d %v: want 403", w.Code, w.Header())
	}
	if w := get(l.Middleware(orgOf)(new(served)), "/", "Org", "acme"); w.Code != 204 {
		t.Errorf("%d: want a tenant to pass", w.Code)
	}
}

func TestADeniedGRPCCallIsAnsweredWithoutABody(t *testing.T) {
	l := limiting(t, parse(t, "tiers: [{name: a, limits: [{name: daily, scope: tenant, limit: 1, window_size: 86400}]}]"))
	handler := l.Middleware(orgOf)(new(served))
	var w *httptest.ResponseRecorder
	for range 2 {
		r := httptest.NewRequest("POST", "/svc/Method", nil)
		r.Header.Set("Content-Type", "application/grpc+proto")
		r.Header.Set("Org", "acme")
		w = httptest.NewRecorder()
		handler.ServeHTTP(w, r)
	}
	if w.Body.Len() > 0 || w.Header().Get("grpc-status") != "8" {
		t.Errorf("%d %v %s: want grpc-status 8 and no body", w.Code, w.Header(), w.Body)
	}
}

func TestAFloodThatCannotBeDecidedIsLoggedOnceASecond(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // in which time stands still
		var log bytes.Buffer
		l, err := limiter.New(limiter.Options{Config: parse(t, daily), Log: slog.New(slog.NewJSONHandler(&log, nil))})
		require.NoError(t, err)
		require.NoError(t, l.Close(t.Context()))
		handler := l.Middleware(orgOf)(new(served))
		for range 100 {
			get(handler, "/", "Org", "acme")
		}
		if lines := bytes.Count(log.Bytes(), []byte("\n")); lines != 1 || !bytes.Contains(log.Bytes(), []byte("closed")) {
			t.Errorf("%d lines, want one that says why:\n%s", lines, &log)
		}
	})
}
