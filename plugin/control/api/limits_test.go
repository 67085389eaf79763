package api_test

import (
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/bucket/memory"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/control/api"
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
