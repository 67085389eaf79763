package api_test

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/logtest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/pgtest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/control/answers"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/control/api"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/database/rows"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// Secrets of the tokens of these tests. "panic" makes the look-up panic, and with "away" the database is unavailable.
const (
	admin        = "secret-admin"
	other        = "secret-other-admin"
	viewer       = "secret-viewer"
	ofAcme       = "secret-acme"
	ofGlobex     = "secret-globex"
	revoked      = "secret-revoked"
	unknownToken = "secret-unknown"
	panics       = "secret-panic"
	away         = "secret-away"
)

// ring is an Authenticator of these tokens.
type ring struct{}

func (ring) Authenticate(_ context.Context, secret string) (api.Caller, error) {
	switch secret {
	case admin:
		return api.Caller{Token: "ann", Role: api.Admin}, nil
	case other:
		return api.Caller{Token: "bob", Role: api.Admin}, nil
	case viewer:
		return api.Caller{Token: "vic", Role: api.Viewer}, nil
	case ofAcme:
		return api.Caller{Token: "acme-portal", Role: api.Tenant, Org: "acme"}, nil
	case ofGlobex:
		return api.Caller{Token: "globex-portal", Role: api.Tenant, Org: "globex"}, nil
	case panics:
		panic("a bug")
	case away:
		return api.Caller{}, errors.New("the database is unavailable: password=hunter2")
	}
	return api.Caller{}, api.ErrUnknownToken
}

// world is a server with its own database.
type world struct {
	*testing.T
	server *api.Server
	store  *rows.DB
	pool   *pgxpool.Pool
	log    *logtest.Text
}

// open makes a server; edit changes its options.
func open(t *testing.T, edit ...func(*api.Options)) *world {
	t.Helper()
	pool := pgtest.Pool(t, pgtest.Shared(t).Database(t))
	w := &world{T: t, store: rows.New(pool), pool: pool, log: &logtest.Text{}}
	options := api.Options{
		Version: "1", Rows: w.store, Tokens: ring{}, Log: slog.New(slog.NewJSONHandler(w.log, nil)),
	}
	for _, e := range edit {
		e(&options)
	}
	server, err := api.New(options)
	require.NoError(t, err)
	w.server = server
	return w
}

// equipment holds the options of a server, besides a database, that all operations need. The tests of an operation that
// needs something add it.
var equipment []func(*testing.T, *api.Options)

// equipped makes a server whose operations can all be called.
func equipped(t *testing.T, edit ...func(*api.Options)) *world {
	t.Helper()
	for _, add := range equipment {
		edit = append(edit, func(o *api.Options) { add(t, o) })
	}
	return open(t, edit...)
}

// call is one request; pairs are names and values of headers.
type call struct {
	token, method, path, body string
	headers                   []string
}

// answer holds the response to a call.
type answer struct {
	*httptest.ResponseRecorder
	call call
}

func (c call) request() *http.Request {
	r := httptest.NewRequest(c.method, c.path, strings.NewReader(c.body))
	if c.token != "" {
		r.Header.Set("Authorization", "Bearer "+c.token)
	}
	if c.body != "" {
		r.Header.Set("Content-Type", "application/json")
	}
	for i := 0; i+1 < len(c.headers); i += 2 {
		r.Header.Set(c.headers[i], c.headers[i+1])
	}
	return r
}

func (w *world) do(c call) answer {
	recorder := httptest.NewRecorder()
	w.server.ServeHTTP(recorder, c.request())
	return answer{recorder, c}
}

// as does something as an admin.
func (w *world) as(method, path, body string, headers ...string) answer {
	w.Helper()
	return w.do(call{admin, method, path, body, headers})
}

// want fails unless an answer has a status.
func (w *world) want(a answer, status int) answer {
	w.Helper()
	if a.Code != status {
		w.Fatalf("%s %s %s: %d %s, want %d", a.call.method, a.call.path, a.call.body, a.Code, a.Body, status)
	}
	return a
}

// wantFaults fails a test unless a request is denied for faults at these paths.
func (w *world) wantFaults(a answer, paths string) {
	w.Helper()
	if got := read[problem](w, w.want(a, http.StatusUnprocessableEntity)).paths(); got != paths {
		w.Errorf("%s %s %.200s: faults at %q, want %q: %s", a.call.method, a.call.path, a.call.body, got, paths, a.Body)
	}
}

// deniedAt fails unless a request is denied for the value at a path.
func deniedAt(w *world, c call, at string) {
	w.Helper()
	a := w.do(c)
	if a.Code != http.StatusUnprocessableEntity || !slices.Contains(strings.Fields(read[problem](w, a).paths()), at) {
		w.Errorf("%s %s %s: %d %s, want it denied at %s", c.method, c.path, c.body, a.Code, a.Body, at)
	}
}

// problem is a problem document.
type problem struct {
	Status int    `json:"status"`
	Detail string `json:"detail"`
	Errors []struct {
		Message  string `json:"message"`
		Location string `json:"location"`
		Value    any    `json:"value"`
	} `json:"errors"`
}

// paths returns the paths of the faults of a problem.
func (p problem) paths() string {
	var list []string
	for _, e := range p.Errors {
		list = append(list, e.Location)
	}
	return strings.Join(list, " ")
}

// read reads the body of an answer.
func read[T any](w *world, a answer) T {
	w.Helper()
	var v T
	if err := json.Unmarshal(a.Body.Bytes(), &v); err != nil {
		w.Fatalf("%s %s: %d %q: %v", a.call.method, a.call.path, a.Code, a.Body, err)
	}
	return v
}

const (
	policies  = "/v1/ratelimit/policies"
	overrides = "/v1/orgs/acme/ratelimit/overrides"

	generalOverrides = "/v1/ratelimit/overrides"
	daily            = `{"name":"daily","tier":"gold","limit":1000,"window":"1d"}`
)

// policyWritten holds the answer to a write of a policy.
type policyWritten struct {
	Policy      rows.Policy          `json:"policy"`
	Version     int64                `json:"version"`
	Enforcement *answers.Enforcement `json:"enforcement"`
}

// made creates a policy and returns its path and ETag.
func (w *world) made(body string) (path, tag string, p rows.Policy) {
	w.Helper()
	a := w.want(w.as("POST", policies, body), http.StatusCreated)
	return a.Header().Get("Location"), a.Header().Get("ETag"), read[policyWritten](w, a).Policy
}
