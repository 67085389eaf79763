package api_test

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/logtest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/pgtest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/redistest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/bucket/memory"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/bucket/redis"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/control/answers"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/control/api"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/admit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/decision"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/limit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/resolve"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/response"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/database/rows"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
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

// What the tests of the orgs' own operations add to those of all.
func init() {
	equipment = append(equipment, func(t *testing.T, o *api.Options) {
		buckets := shelf{memory.New(memory.Options{Now: clock})}
		o.Buckets, o.Decider = buckets, deciderOf(t, plan(), buckets, policy.Rows{})
	})
	for id, s := range map[string]sample{
		"put-org": {body: `{"tier":"enterprise"}`}, "reset-org-usage": {body: `{"reason":"billed twice"}`},
		"check": {body: `{"org_id":"acme"}`}, "check-batch": {body: `{"checks":[{"org_id":"acme"}]}`},
	} {
		samples[id] = s
	}
	for id, who := range map[string]string{
		"list-orgs": "yy..???", "list-tiers": "yy..???",
		"get-org": "yyy.???", "put-org": "y...???", "get-org-policies": "yyy.???", "get-org-usage": "yyy.???",
		"get-org-usage-history": "yyy.???", "reset-org-usage": "y...???", "get-usage-top": "yy..???",
		"list-near-limit": "yy..???",
		"check":           "y.y.???", "check-batch": "y.y.???", // a viewer would pass with dry_run
	} {
		may[id] = who
	}
	checkAsAdmin := func(c *contract, o operation) { c.check(o, c.do(o.call(admin))) }
	for _, id := range []string{
		"get-org-policies", "get-org-usage", "get-org-usage-history", "get-usage-top", "list-near-limit",
	} {
		scenarios[id] = checkAsAdmin
	}
	scenarios["reset-org-usage"] = func(c *contract, o operation) {
		checkAsAdmin(c, o)
		again := o.call(admin).with("Idempotency-Key", "k")
		by := rows.Change{Actor: "token:ann", Reason: "r", Idempotency: &rows.Idempotency{Token: "ann", Key: "k"}}
		if err := c.store.Do(c.Context(), by, rows.Action{Operation: "reset"}, nil, func(ctx context.Context) error {
			hasty, cancel := context.WithTimeout(ctx, 4*time.Second)
			defer cancel()
			c.check(o, c.serve(again, again.request().WithContext(hasty)))
			return nil
		}); err != nil {
			c.Error(err)
		}
	}
	for _, id := range []string{"check", "check-batch"} {
		scenarios[id] = func(c *contract, o operation) {
			checkAsAdmin(c, o)
			c.check(o, c.do(o.call(viewer)))
		}
	}
	for _, id := range []string{"list-orgs", "list-tiers"} {
		scenarios[id] = func(c *contract, o operation) { c.check(o, c.do(o.call(viewer))) }
	}
	scenarios["get-org"] = func(c *contract, o operation) {
		checkAsAdmin(c, o)
		a := c.want(c.as("PUT", "/v1/orgs/acme", `{"tier":"enterprise"}`), http.StatusCreated)
		checkAsAdmin(c, o)
		c.check(o, c.do(o.call(ofAcme).with("If-None-Match", a.Header().Get("ETag"))))
	}
	scenarios["put-org"] = func(c *contract, o operation) {
		checkAsAdmin(c, o)
		checkAsAdmin(c, o)
		c.check(o, c.do(o.call(admin).with("If-None-Match", "*")))
		other := o.call(admin)
		other.body = `{}`
		c.check(o, c.do(other))
	}
}

// plan is a config with two tiers: enterprise has all limits, and essentials only a smaller daily one.
func plan() schema.Config {
	return schema.Config{
		DefaultTier: "essentials", OnMissingUser: "skip", TenantFrom: []string{"consumer.custom_id"},
		Tiers: []schema.Tier{
			{Name: "essentials", Limits: []schema.Limit{{Name: "daily", Scope: "tenant", Limit: 10, WindowSize: 86400}}},
			{Name: "enterprise", Limits: []schema.Limit{
				{Name: "daily", Scope: "tenant", Limit: 1000, WindowSize: 86400},
				{Name: "writes", Scope: "tenant", Endpoint: "POST /records/{id}", Limit: 20, WindowSize: 86400},
				{Name: "per-user", Scope: "user", Limit: 50, WindowSize: 86400},
			}},
		},
		Global: schema.Global{Limits: []schema.Limit{{Name: "all", Scope: "global", Limit: 5000, WindowSize: 86400}}},
	}.WithDefaults()
}

// deciderOf returns a decider for the requests of callers, under a config and rows.
func deciderOf(t *testing.T, config schema.Config, buckets admit.Buckets, rows policy.Rows) *admit.Decider {
	t.Helper()
	decider := &admit.Decider{Now: clock, Buckets: buckets, Renderer: response.New(config, nil)}
	ruled(t, decider, config, rows)
	return decider
}

// ruled puts a config and rows in force for requests of callers.
func ruled(t *testing.T, decider *admit.Decider, config schema.Config, rows policy.Rows) {
	t.Helper()
	plan, err := resolve.ForCallers(config)
	require.NoError(t, err)
	putRows(t, decider, plan, rows)
}

// ruledByGateway puts a config and rows in force for requests through a gateway.
func ruledByGateway(t *testing.T, decider *admit.Decider, config schema.Config, rows policy.Rows) {
	t.Helper()
	plan, err := resolve.FromConfig(config)
	require.NoError(t, err)
	putRows(t, decider, plan, rows)
}

// putRows puts a plan with rows beside it in force.
func putRows(t *testing.T, decider *admit.Decider, plan *resolve.Plan, rows policy.Rows) {
	t.Helper()
	snapshot, faults := policy.NewSnapshot(rows, nil)
	if len(faults) > 0 {
		t.Fatal(faults)
	}
	decider.Policies.Store(plan.With(snapshot))
}

// planned returns a world with a plan and a Redis.
type planned struct {
	*world
	decider  *admit.Decider
	redis    *redistest.Server
	store    *redis.Store
	observed *tally
}

// tally counts decisions.
type tally struct{ decisions atomic.Int64 }

func (o *tally) Observe(*decision.Decision) { o.decisions.Add(1) }

func planning(t *testing.T, config schema.Config, rows policy.Rows) *planned {
	t.Helper()
	p := &planned{redis: redistest.Single(t), observed: &tally{}}
	store, closeRedis, err := redis.NewRegistry(slog.New(slog.DiscardHandler), nil).Open(schema.Redis{
		Host: "127.0.0.1", Port: int64(p.redis.Port), ConnectTimeout: 5000, SendTimeout: 5000, ReadTimeout: 5000,
	})
	require.NoError(t, err)
	t.Cleanup(closeRedis)
	p.store = store
	p.decider = deciderOf(t, config, store, rows)
	p.decider.Observers = []admit.Observer{p.observed}
	p.world = open(t, func(o *api.Options) { o.Decider, o.Buckets, o.Ping = p.decider, store, store.Ping })
	return p
}

// has returns the used tokens of an org's buckets, by policy and endpoint.
func (p *planned) has(org, query string) map[string]int64 {
	p.Helper()
	used := map[string]int64{}
	for _, b := range read[answers.Usage](p.world, p.want(p.as("GET", "/v1/orgs/"+org+"/ratelimit/usage"+query, ""),
		http.StatusOK)).Items {
		name := b.Policy
		if b.Endpoint != "" {
			name += " at " + b.Endpoint
		}
		used[name+" of "+b.Of] = b.Used
	}
	return used
}

// checks asks the decision API.
func (p *planned) checks(token, body string) api.Checked {
	p.Helper()
	return read[api.Checked](p.world, p.want(p.do(call{token, "POST", "/v1/ratelimit/check", body, nil}),
		http.StatusOK))
}

// enterprise returns rows with the org acme on that tier.
func enterprise() policy.Rows {
	return policy.Rows{Version: 7, Tenants: []schema.Tenant{{ID: "acme", Tier: "enterprise"}}}
}

// tomorrow returns the instant a day after now.
const tomorrow = 1_900_000_000*limit.Second + 86_400*limit.Second

func timeOf(at limit.Micros) time.Time { return time.UnixMicro(int64(at)).UTC() }

// serve answers a request.
func (w *world) serve(c call, r *http.Request) answer {
	recorder := httptest.NewRecorder()
	w.server.ServeHTTP(recorder, r)
	return answer{recorder, c}
}

// limitOf returns a daily limit of an org.
func limitOf(name, endpoint string, quantity int64) schema.Limit {
	return schema.Limit{Name: name, Scope: "tenant", Endpoint: endpoint, Limit: quantity, WindowSize: 86400}
}
