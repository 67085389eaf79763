package api_test

import (
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/bucket/memory"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/control/api"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/limit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
)

// limited returns a world whose API allows a number of decisions a minute.
func limited(t *testing.T, decisions int64) *planned {
	t.Helper()
	p := planning(t, plan(), policy.Rows{})
	p.world = open(t, func(o *api.Options) {
		o.Decider, o.Buckets = p.decider, p.store
		o.Limits, o.Rates = memory.New(memory.Options{Now: clock}), api.Rates{Requests: 1000, Decisions: decisions}
	})
	return p
}

// batchOf returns a batch of dry runs for one org, which spends only from the API's own limit.
func batchOf(n int, org string) string {
	return `{"checks":[` + strings.TrimSuffix(strings.Repeat(fmt.Sprintf(`{"org_id":%q},`, org), n), ",") + `]}`
}

func TestABatchSpendsItsChecksFromTheAPIsOwnLimitOrNothing(t *testing.T) {
	t.Parallel()
	p := limited(t, 60)
	wantLimit := func(a answer, status int, left, wait string) {
		t.Helper()
		p.want(a, status)
		if h := a.Header(); h.Get("X-RateLimit-Limit") != "60" || h.Get("X-RateLimit-Remaining") != left ||
			h.Get("Retry-After") != wait ||
			h.Get("RateLimit-Policy") != `"requests";q=60;w=60` || !strings.HasPrefix(h.Get("RateLimit"),
			`"requests";r=`+left+";t=") {
			t.Errorf("%.60s: the headers are %v, want %s left and to wait %q", a.call.body, h, left, wait)
		}
	}
	wantLimit(p.as("POST", batch, batchOf(50, "a")), http.StatusOK, "10", "")
	wantLimit(p.as("POST", batch, batchOf(11, "b")), http.StatusTooManyRequests, "10", "1")
	wantLimit(p.as("POST", batch, batchOf(40, "b")), http.StatusTooManyRequests, "10", "30")
	never := p.as("POST", batch, batchOf(61, "b"))
	wantLimit(never, http.StatusTooManyRequests, "10", "")
	if detail := read[problem](p.world, never).Detail; !strings.Contains(detail, "a batch of 61") {
		t.Errorf("the detail for a batch that is too large is %q", detail)
	}
	if used := p.has("b", ""); used["daily of the org"] != 0 {
		t.Errorf("denied batches have spent %v", used)
	}
	wantLimit(p.as("POST", check, `{"org_id":"c"}`), http.StatusOK, "9", "") // single checks and batches have one limit
	wantLimit(p.as("POST", batch, batchOf(9, "c")), http.StatusOK, "0", "")
	wantLimit(p.as("POST", check, `{"org_id":"c"}`), http.StatusTooManyRequests, "0", "1")
	p.want(p.as("GET", policies, ""), http.StatusOK)
}

func TestAMalformedBatchCostsOneAndIsDeniedForItsFault(t *testing.T) {
	t.Parallel()
	p := limited(t, 60)
	for i, test := range []struct {
		body   string
		status int
	}{
		{batchOf(0, "a"), http.StatusUnprocessableEntity},
		{batchOf(101, "a"), http.StatusUnprocessableEntity},
		{`{"checks":`, http.StatusBadRequest},
		{`{"checks":7}`, http.StatusUnprocessableEntity},
		{"", http.StatusBadRequest},
		{strings.Repeat("x", 1<<20-1), http.StatusBadRequest},
		{strings.Repeat("x", 1<<20), http.StatusRequestEntityTooLarge},
		{strings.Repeat("x", 2<<20), http.StatusRequestEntityTooLarge},
	} {
		a := p.want(p.as("POST", batch, test.body), test.status)
		if got, want := a.Header().Get("X-RateLimit-Remaining"), fmt.Sprint(59-i); got != want {
			t.Errorf("%.20s: %s left, want %s", test.body, got, want)
		}
	}
}

func TestWritesOfAnOrgSpendItsShareOfTheAPIsOwnLimit(t *testing.T) {
	t.Parallel()
	w := open(t, func(o *api.Options) {
		o.Limits, o.Rates = memory.New(memory.Options{Now: clock}), api.Rates{Requests: 90}
	})
	test := call{ofAcme, "POST", webhooks + "/1/test", `{}`, nil}
	for range 30 {
		w.want(w.do(test), http.StatusNotFound)
	}
	a := w.want(w.do(test), http.StatusTooManyRequests)
	detail, wait := read[problem](w, a).Detail, a.Header().Get("Retry-After")
	if detail != "too many requests with this token" || wait == "" {
		t.Errorf("the detail is %q, and the wait is %q", detail, wait)
	}
	w.want(w.do(call{ofGlobex, "GET", "/v1/orgs/globex/ratelimit/webhooks", "", nil}), http.StatusOK)
}

func TestTheTokensThatAnOrgMakesCountAsOneTowardsTheAPIsOwnLimits(t *testing.T) {
	t.Parallel()
	w := open(t, func(o *api.Options) {
		o.Limits, o.Rates = memory.New(memory.Options{Now: clock}), api.Rates{Requests: 90}
	})
	ask := func(name, org string, status int) {
		t.Helper()
		caller := api.Caller{Token: name, Role: api.Tenant, Org: org}
		a := w.serveAs(caller, "POST", "/v1/orgs/"+url.PathEscape(org)+"/ratelimit/webhooks/1/test", `{}`)
		if a.Code != status {
			t.Errorf("%s: %d %s, want %d", name, a.Code, a.Body, status)
		}
	}
	for i := range 30 {
		ask(fmt.Sprintf("acme/ci%d", i%20), "acme", http.StatusNotFound)
	}
	ask("acme/ci1", "acme", http.StatusTooManyRequests)
	ask("acme/another", "acme", http.StatusTooManyRequests)
	ask("acme-portal", "acme", http.StatusNotFound) // made by an operator
	ask("acme%2Fb/ci", "acme/b", http.StatusNotFound)
	for range 30 {
		ask("oidc:google/1", "globex", http.StatusNotFound)
	}
	ask("oidc:google/2", "globex", http.StatusNotFound) // another person
}

// naming is a world of the enterprise acme, whose token may name so many new subjects a second; now is what it is by
// the API's clock, in seconds.
func naming(t *testing.T, perSecond int64) (p *planned, now *atomic.Int64, metrics *prometheus.Registry) {
	t.Helper()
	p, now, metrics = planning(t, plan(), enterprise()), new(atomic.Int64), prometheus.NewRegistry()
	p.world = open(t, func(o *api.Options) {
		o.Decider, o.Buckets, o.Metrics = p.decider, p.store, metrics
		later := func() limit.Micros { return clock() + limit.Micros(now.Load())*limit.Second }
		o.Limits, o.Rates = memory.New(memory.Options{Now: later}), api.Rates{Subjects: perSecond}
		o.Now = func() time.Time { return time.Unix(1_900_000_000+now.Load(), 0) }
	})
	return p, now, metrics
}

// users returns a batch of checks by numbered users.
func users(from, n int, more string) string {
	checks := make([]string, n)
	for i := range checks {
		checks[i] = fmt.Sprintf(`{"org_id":"acme","user_id":"u%d"%s}`, from+i, more)
	}
	return `{"checks":[` + strings.Join(checks, ",") + `]}`
}

func TestTheNewSubjectsOfAnOrgsTokenAreLimitedPerSecond(t *testing.T) {
	t.Parallel()
	p, now, registry := naming(t, 40) // 400 at once
	ask := func(token, path, body string, status int) answer {
		t.Helper()
		return p.want(p.do(call{token, "POST", path, body, nil}), status)
	}
	for i := range 4 {
		ask(ofAcme, batchPath, users(100*i, 100, ""), http.StatusOK)
	}
	size := func() int64 {
		n, err := p.redis.Client(t).DBSize(t.Context()).Result()
		require.NoError(t, err)
		return n
	}
	keys := size()
	a := ask(ofAcme, checkPath, `{"org_id":"acme","user_id":"one-more"}`, http.StatusTooManyRequests)
	if detail := read[problem](p.world, a).Detail; !strings.Contains(detail, "40 a second") ||
		a.Header().Get("Retry-After") != "1" {
		t.Errorf("the detail is %q, Retry-After %q, want the limit and the wait", detail, a.Header().Get("Retry-After"))
	}
	ask(ofAcme, batchPath, users(399, 2, ""), http.StatusTooManyRequests)
	if got := size(); got != keys {
		t.Errorf("%d keys after the denials, %d before", got, keys)
	}
	ask(ofAcme, batchPath, users(300, 100, ""), http.StatusOK)                      // known
	ask(ofAcme, checkPath, `{"org_id":"acme"}`, http.StatusOK)                      // no subject
	ask(ofAcme, checkPath, `{"org_id":"acme","credential_id":"c1"}`, http.StatusOK) // nothing is counted per credential
	ask(ofAcme, batchPath, users(1000, 100, `,"dry_run":true`), http.StatusOK)      // writes nothing
	ask(admin, batchPath, users(2000, 100, ""), http.StatusOK)                      // an operator's
	ask(ofGlobex, checkPath, `{"org_id":"globex","user_id":"one"}`, http.StatusOK)  // another token's
	now.Store(1)
	ask(ofAcme, batchPath, users(400, 40, ""), http.StatusOK)
	ask(ofAcme, checkPath, `{"org_id":"acme","user_id":"one-more"}`, http.StatusTooManyRequests)
	families, err := registry.Gather()
	require.NoError(t, err)
	for _, family := range families {
		for _, m := range family.GetMetric() {
			if family.GetName() == "rate_limiter_control_limited_total" && m.GetLabel()[0].GetValue() == "new_subjects" &&
				m.GetCounter().GetValue() != 3 {
				t.Errorf("%v denials are counted, want 3", m.GetCounter().GetValue())
			}
		}
	}
}

func TestTheTokensThatAnOrgMakesNameNewSubjectsTogether(t *testing.T) {
	t.Parallel()
	p, _, _ := naming(t, 40) // 400 at once
	ask := func(name string, from, n, status int) {
		t.Helper()
		caller := api.Caller{Token: name, Role: api.Tenant, Org: "acme"}
		if a := p.serveAs(caller, "POST", batchPath, users(from, n, "")); a.Code != status {
			t.Errorf("%s: %d %s, want %d", name, a.Code, a.Body, status)
		}
	}
	for i := range 4 {
		ask(fmt.Sprint("acme/ci", i), 100*i, 100, http.StatusOK)
	}
	ask("acme/ci5", 400, 1, http.StatusTooManyRequests)
	ask("acme-portal", 400, 100, http.StatusOK) // made by an operator
}

func TestAnyBatchOfNewSubjectsFitsAtOnce(t *testing.T) {
	t.Parallel()
	p, _, _ := naming(t, 1)
	p.want(p.do(call{ofAcme, "POST", batchPath, users(0, 100, ""), nil}), http.StatusOK)
}
