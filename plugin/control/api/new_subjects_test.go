package api_test

import (
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/bucket/memory"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/control/api"
)

// naming is a world of the enterprise acme, whose token may name so many new subjects a second; now is what it is by
// the API's clock, in seconds.
func naming(t *testing.T, perSecond int64) (p *planned, now *atomic.Int64, metrics *prometheus.Registry) {
	t.Helper()
	p, now, metrics = planning(t, plan(), enterprise()), new(atomic.Int64), prometheus.NewRegistry()
	p.world = open(t, func(o *api.Options) {
		o.Decider, o.Buckets, o.Metrics = p.decider, p.store, metrics
		o.Limits, o.Rates = memory.New(memory.Options{Now: clock}), api.Rates{Subjects: perSecond}
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
