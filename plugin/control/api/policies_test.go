package api_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/bucket/memory"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/control/answers"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/control/api"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/decision"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/identity"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/resolve"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/database/rows"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

func TestAPolicyIsAcceptedInEitherSpelling(t *testing.T) {
	t.Parallel()
	w := open(t)
	first := w.want(w.as("POST", policies, `{"orgTier":"Enterprise","endpointPattern":"POST /records","limit":1000,"window":"1m","algorithm":"token_bucket","failMode":"open"}`), http.StatusCreated)
	made := read[policyWritten](w, first).Policy
	want := rows.Policy{ID: made.ID, Revision: 1, Policy: schema.Policy{
		Namespace: "default", Tier: "enterprise",
		Limit: schema.Limit{
			Name: made.Name, Endpoint: "POST /records", Scope: "tenant", Limit: 1000,
			WindowSize: 60, Algorithm: "token_bucket", FailMode: "open",
		},
	}}
	if made != want {
		t.Errorf("made %+v, want %+v", made, want)
	}
	if !strings.HasPrefix(made.Name, "enterprise-post-records-") {
		t.Errorf("the name is %q, want the tier and the endpoint in it", made.Name)
	}
	same := `{"name":"` + made.Name + `","tier":"enterprise","endpoint":"POST /records","scope":"tenant","limit":1000,"window_size":60,"fail_mode":"open"}`
	if again := w.want(w.as("PUT", policies, same), http.StatusOK); read[policyWritten](w, again).Policy != made {
		t.Errorf("the other spelling is %s, want the same policy", again.Body)
	}
}

func TestDerivedNamesDifferBetweenPolicies(t *testing.T) {
	t.Parallel()
	w := open(t)
	names := map[string]string{}
	for _, body := range []string{
		`{"tier":"gold","limit":1,"window":"1m"}`,
		`{"tenant":"gold","limit":1,"window":"1m"}`,
		`{"tier":"gold","endpoint":"GET /a/b","limit":1,"window":"1m"}`,
		`{"tier":"gold","endpoint":"GET /a-b","limit":1,"window":"1m"}`,
		`{"tier":"gold","endpoint":"GET /a/{b}","limit":1,"window":"1m"}`,
		`{"tenant":"Ünïcode/../org","limit":1,"window":"1m"}`,
		`{"tier":"gold","endpoint":"GET /` + strings.Repeat("long/", 100) + `x","limit":1,"window":"1m"}`,
	} {
		_, _, p := w.made(body)
		if earlier, ok := names[p.Name]; ok {
			t.Errorf("%s and %s are both called %s", earlier, body, p.Name)
		}
		names[p.Name] = body
	}
	a := w.want(w.as("POST", policies, `{"tier":"gold","endpoint":"GET /a/{other}","limit":2,"window":"1m"}`),
		http.StatusConflict)
	if !strings.Contains(a.Body.String(), "already") {
		t.Errorf("the same policy with another parameter is answered by %s", a.Body)
	}
}

func TestAllFaultsAreListedAtOnceWithTheirPaths(t *testing.T) {
	t.Parallel()
	w := open(t)
	tests := []struct{ body, paths string }{
		{
			`{"limit":0,"window":"1 fortnight","algorithm":"guess","tier":"a","tenant":"b","mode":"loud","colour":"red"}`,
			"body.algorithm body.colour body.limit body.mode body.tenant body.window",
		},
		{`{}`, "body.limit body.name body.tier body.window_size"},
		{`{"limit":5}`, "body.name body.tier body.window_size"},
		{`{"tier":"a","orgTier":"B","tenant":"","limit":1,"window":"1s","window_size":1}`, "body.orgTier body.window"},
		{`{"tier":"a","limit":"many","window":"1s"}`, "body.limit"},
		{`{"tier":"a","limit":5,"window":"1s","LIMIT":7}`, "body.LIMIT"},
		{`{"orgTier":"a","limit":5,"window":"1500ms"}`, "body.window"},
		{`{"tier":"a","limit":5,"window":"1s","endpointPattern":"records"}`, "body.endpointPattern"},
		{`{"limit":0,"window":"1s","endpointPattern":"records"}`, "body.endpointPattern body.limit body.name body.tier"},
		{`{"tier":"a","limit":5,"window":"1s","reason":" "}`, "body.reason"},
		{`{"tier":"a","limit":1000000000000,"window":"1s","burst":3,"cost":4}`, "body.cost"},
		{`{"tier":"a","limit":20000,"window":"1s","algorithm":"sliding_log"}`, "body.limit"},
	}
	for _, test := range tests {
		w.wantFaults(w.as("POST", policies, test.body), test.paths)
	}
	if list, err := w.store.Policies(t.Context(), rows.PolicyFilter{}); err != nil || len(list) != 0 {
		t.Errorf("%d policies were written (%v), want none", len(list), err)
	}
}

func TestAChangeNeedsTheETagOfItsState(t *testing.T) {
	t.Parallel()
	w := open(t)
	path, tag, p := w.made(daily)
	if tag != fmt.Sprintf(`"%d-1"`, p.ID) {
		t.Errorf("the ETag is %s", tag)
	}
	changed := strings.Replace(daily, "1000", "2000", 1)
	for _, path := range []string{path, policies} {
		if a := w.want(w.as("PUT", path, changed), http.StatusPreconditionRequired); a.Header().Get("ETag") != tag {
			t.Errorf("PUT %s without If-Match has ETag %q, want %s", path, a.Header().Get("ETag"), tag)
		}
	}
	w.want(w.as("PUT", policies, changed, "If-None-Match", "*"), http.StatusPreconditionFailed)
	next := w.want(w.as("PUT", path, changed, "If-Match", `"0-0", `+tag), http.StatusOK).Header().Get("ETag")
	for _, path := range []string{path, policies} {
		if a := w.want(w.as("PUT", path, daily, "If-Match", tag),
			http.StatusPreconditionFailed); a.Header().Get("ETag") != next {
			t.Errorf("PUT %s from an old state has ETag %q, want %s", path, a.Header().Get("ETag"), next)
		}
		w.want(w.as("PUT", path, daily, "If-Match", "W/"+next), http.StatusPreconditionFailed)
	}
	last := w.want(w.as("PUT", policies, daily, "If-Match", "*"), http.StatusOK).Header().Get("ETag")
	w.want(w.as("DELETE", path+"?reason=over", ""), http.StatusPreconditionRequired)
	w.want(w.as("DELETE", path+"?reason=over", "", "If-Match", next), http.StatusPreconditionFailed)
	w.want(w.as("GET", path, "", "If-None-Match", "W/"+last), http.StatusNotModified)
	w.want(w.as("DELETE", path+"?reason=over", "", "If-Match", last), http.StatusOK)
	w.want(w.as("GET", path, ""), http.StatusNotFound)
	w.want(w.as("PUT", policies, daily, "If-Match", last), http.StatusPreconditionFailed)
	w.want(w.as("PUT", path, daily, "If-Match", "*"), http.StatusNotFound)
}

func TestARevisionTakesThePlaceOfAnETag(t *testing.T) {
	t.Parallel()
	w := open(t)
	first := w.want(w.as("POST", policies, daily), http.StatusCreated)
	at, tag := first.Header().Get("Location"), first.Header().Get("ETag")
	changed := strings.Replace(daily, "1000", "7", 1)
	w.want(w.as("PUT", policies+"?revision=2", changed), http.StatusPreconditionFailed)
	w.want(w.as("PUT", policies+"?revision=1", changed), http.StatusOK)
	w.want(w.as("PUT", at+"?revision=2", daily, "If-Match", tag), http.StatusPreconditionFailed)
	w.want(w.as("PUT", at+"?overwrite=true", daily, "If-Match", tag), http.StatusPreconditionFailed)
	w.want(w.as("PUT", at+"?revision=2", daily), http.StatusOK)
	w.want(w.as("DELETE", at+"?reason=over&revision=2", ""), http.StatusPreconditionFailed)
	w.want(w.as("DELETE", at+"?reason=over&revision=3", ""), http.StatusOK)
	w.want(w.as("PUT", policies+"?revision=3", daily), http.StatusPreconditionFailed)
	w.want(w.as("PUT", policies+"?overwrite=true", daily), http.StatusCreated)
	w.want(w.as("PUT", policies+"?overwrite=true", changed), http.StatusOK)
}

func TestAPolicyKeepsItsKey(t *testing.T) {
	t.Parallel()
	w := open(t)
	path, tag, _ := w.made(daily)
	w.wantFaults(w.as("PUT", path, strings.Replace(daily, "gold", "silver", 1), "If-Match", tag), "body.tier")
}

func TestTheResultOfAReadMayBeSentBack(t *testing.T) {
	t.Parallel()
	w := open(t)
	path, tag, _ := w.made(daily)
	w.want(w.as("PUT", path, w.as("GET", path, "").Body.String(), "If-Match", tag), http.StatusOK)
}

func TestPoliciesAreListedInPages(t *testing.T) {
	t.Parallel()
	w := open(t)
	for i := range 5 {
		w.made(fmt.Sprintf(`{"name":"n%d","tier":"gold","limit":5,"window":"1m"}`, i))
	}
	w.made(`{"name":"x","tenant":"acme","endpoint":"GET /a/{b}","limit":5,"window":"1m"}`)
	type page = answers.Page[rows.Policy]
	var names []string
	path := policies + "?tier=gold&limit=2"
	for next := ""; ; {
		p := read[page](w, w.want(w.as("GET", path+next, ""), http.StatusOK))
		for _, item := range p.Items {
			names = append(names, item.Name)
		}
		if p.NextCursor == "" {
			break
		}
		next = "&cursor=" + p.NextCursor
	}
	if got := strings.Join(names, " "); got != "n0 n1 n2 n3 n4" {
		t.Errorf("the pages have %s", got)
	}
	if p := read[page](w, w.as("GET", policies+"?endpoint=GET+/a/%7Bother%7D", "")); len(p.Items) != 1 ||
		p.Items[0].Name != "x" {
		t.Errorf("by endpoint there is %+v, want x", p.Items)
	}
	for _, query := range []string{
		"?cursor=7", "?cursor=%00", "?limit=0", "?limit=1001", "?limit=x", "?color=red",
	} {
		w.want(w.as("GET", policies+query, ""), http.StatusUnprocessableEntity)
	}
}

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

func TestAMadeNameHasNoUserCredentialOrAddressAndTheScopeIsThatOfTheTarget(t *testing.T) {
	t.Parallel()
	w := open(t)
	names := map[string]bool{}
	for target, want := range map[string]string{
		`"tenant": "acme", "user": "u_42"`: "user", `"tenant": "acme", "user": "u_43"`: "user",
		`"credential": "key_42"`: "credential", `"ip": "192.0.2.42"`: "ip",
		`"for": "anonymous"`: "ip", `"for": "all"`: "global",
	} {
		body := `{` + target + `, "limit": 1000, "window_size": 60}`
		p := read[api.PolicyWritten](w, w.want(w.as("POST", policies+"?force=true", body), http.StatusCreated)).Policy
		if p.Scope != want || names[p.Name] || strings.Contains(p.Name, "_42") || strings.Contains(p.Name, "192") {
			t.Errorf("%s is named %q, with scope %s", body, p.Name, p.Scope)
		}
		names[p.Name] = true
	}
}
