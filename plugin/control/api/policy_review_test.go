package api_test

import (
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/bucket/memory"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/control/api"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/decision"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/identity"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/resolve"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/database/rows"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

// shelf wraps buckets of this process.
type shelf struct{ *memory.Store }

// spend spends a policy by requests of a tenant of the tier gold, as the plugin would.
func (w *world) spend(s shelf, p rows.Policy, requests int) {
	w.Helper()
	plan, err := resolve.FromConfig(schema.Config{Namespace: p.Namespace}.WithDefaults())
	require.NoError(w, err)
	snapshot, faults := policy.NewSnapshot(policy.Rows{Policies: []policy.PolicyRow{{ID: p.ID, Policy: p.Policy}}}, nil)
	if len(faults) > 0 {
		w.Fatal(faults)
	}
	id := identity.Identity{
		Tenant: identity.Name{Kind: identity.Tenant, ID: "acme"}, Tier: p.Tier, Method: "GET", Path: "/a",
	}
	var r resolve.Resolution
	plan.With(snapshot).ResolveAt(&id, 0, &r)
	if len(r.Bounds) != 1 {
		w.Fatalf("%d bounds, want 1", len(r.Bounds))
	}
	for range requests {
		require.NoError(w, s.Take(w.Context(), r.Bounds, make([]decision.Status, 1)))
	}
}

func TestASharedPolicyBelowRecentUsageNeedsForce(t *testing.T) {
	t.Parallel()
	buckets := shelf{memory.New(memory.Options{Now: clock})}
	w := open(t, func(o *api.Options) { o.Buckets = buckets })
	for _, scope := range []string{"global", "endpoint"} {
		body := `{"name":"` + scope + `","tier":"gold","scope":"` + scope + `","endpoint":"GET /a","limit":10,"window":"1d"}`
		a := w.want(w.as("POST", policies+"?force=true", body), http.StatusCreated)
		w.spend(buckets, read[policyWritten](w, a).Policy, 8)
		path := a.Header().Get("Location")
		for _, path := range []string{path, policies} {
			a = w.want(w.as("PUT", path, strings.Replace(body, "10", "7", 1), "If-Match", "*"), http.StatusUnprocessableEntity)
			if p := read[problem](w, a); p.paths() != "query.force" || !strings.Contains(p.Errors[0].Message, "used 8") {
				t.Errorf("%s: %s, want that 8 were used and force is needed", scope, a.Body)
			}
			w.want(w.as("PUT", path, strings.Replace(body, "10", "8", 1), "If-Match", "*"), http.StatusOK)
			w.want(w.as("PUT", path+"?force=true", strings.Replace(body, "10", "7", 1), "If-Match", "*"), http.StatusOK)
			w.want(w.as("PUT", path+"?force=true", body, "If-Match", "*"), http.StatusOK)
		}
	}
}

func TestAnUnusedBucketDoesNotHideTheLimitOfOneTenant(t *testing.T) {
	t.Parallel()
	buckets := shelf{memory.New(memory.Options{Now: clock})}
	w := open(t, func(o *api.Options) { o.Buckets = buckets })
	w.made(daily)
	const body = `{"name":"all","tier":"gold","scope":"global","limit":5000,"window":"1d"}`
	a := w.want(w.as("POST", policies, body), http.StatusCreated)
	w.spend(buckets, read[policyWritten](w, a).Policy, 8)
	a = w.want(w.as("PUT", policies, strings.Replace(body, "5000", "50", 1), "If-Match", "*"),
		http.StatusUnprocessableEntity)
	if p := read[problem](w, a); p.paths() != "query.force" || !strings.Contains(p.Errors[0].Message, "one tenant 1000") {
		t.Errorf("%s, want that one tenant may use 1000 and force is needed", a.Body)
	}
}
