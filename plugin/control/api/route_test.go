package api_test

import (
	"net/http"
	"strings"
	"testing"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/policytest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/bucket/memory"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/control/api"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

// routed returns a world with a limit of 10 per route of an org, and the routes records and search.
func routed(t *testing.T) *world {
	t.Helper()
	config := plan()
	config.Tiers = []schema.Tier{{Name: "essentials", Limits: []schema.Limit{
		limitOf("writes", "POST /records/{id}", 20),
		{Name: "each", Scope: "tenant+endpoint", Limit: 10, WindowSize: 86400},
	}}}
	config.Global = schema.Global{}
	buckets := shelf{memory.New(memory.Options{Now: clock})}
	decider := deciderOf(t, config.WithDefaults(), buckets, policy.Rows{})
	return open(t, func(o *api.Options) {
		o.Decider, o.Buckets = decider, buckets
		o.IsRoute = func(name string) bool { return name == "records" || name == "search" }
	})
}

// decided holds an answer of the decision API.
func (w *world) decided(token, body string) api.Checked {
	w.Helper()
	return read[api.Checked](w, w.want(w.do(call{token, "POST", checkPath, body, nil}), http.StatusOK))
}

func TestAnOrgSpendsOnKnownRoutesOnly(t *testing.T) {
	t.Parallel()
	w := routed(t)
	for body, status := range map[string]int{
		`{"org_id":"acme","endpoint":"records"}`:                      http.StatusOK,
		`{"org_id":"acme"}`:                                           http.StatusOK,
		`{"org_id":"acme","endpoint":"POST /records/7"}`:              http.StatusOK,
		`{"org_id":"acme","endpoint":"GET /invented/7"}`:              http.StatusOK,
		`{"org_id":"acme","endpoint":"invented-7"}`:                   http.StatusForbidden,
		`{"org_id":"acme","endpoint":"records "}`:                     http.StatusUnprocessableEntity,
		`{"org_id":"acme","endpoint":"Records"}`:                      http.StatusForbidden,
		`{"org_id":"acme","endpoint":"invented-7","dry_run":true}`:    http.StatusOK,
		`{"org_id":"acme","endpoint":"invented-7","dry_run":false}`:   http.StatusForbidden,
		`{"org_id":"globex","endpoint":"invented-7","dry_run":false}`: http.StatusForbidden,
	} {
		a := w.want(w.do(call{ofAcme, "POST", checkPath, body, nil}), status)
		if detail := read[problem](w, a).Detail; strings.Contains(body, `"acme","endpoint":"invented`) &&
			status == http.StatusForbidden {
			for _, way := range []string{"name a route", "METHOD /path", "dry_run"} {
				if !strings.Contains(detail, way) {
					t.Errorf("%s: the detail is %q, want the advice: %s", body, detail, way)
				}
			}
		}
	}
}

func TestABatchWithAnUnknownRouteSpendsNothing(t *testing.T) {
	t.Parallel()
	w := routed(t)
	const listed, unknown = `{"org_id":"acme","endpoint":"records"}`, `{"org_id":"acme","endpoint":"invented"}`
	w.want(w.do(call{ofAcme, "POST", batchPath, `{"checks":[` + listed + `,` + unknown + `]}`, nil}), http.StatusForbidden)
	if got := w.decided(admin, `{"org_id":"acme","endpoint":"records","dry_run":true}`); *got.Remaining != 10 {
		t.Errorf("%d are left, want all 10", *got.Remaining)
	}
}

func TestOperatorsGetANoteOnAnUnknownRoute(t *testing.T) {
	t.Parallel()
	w := routed(t)
	for _, as := range []struct{ token, dry string }{
		{admin, ""},
		{admin, `,"dry_run":true`},
		{viewer, `,"dry_run":true`},
		{ofAcme, `,"dry_run":true`},
	} {
		got := w.decided(as.token, `{"org_id":"acme","endpoint":"invented"`+as.dry+`}`)
		if !got.Allowed || len(got.Notes) != 1 || !strings.Contains(got.Notes[0], `"invented"`) {
			t.Errorf("%+v: want it decided, and the name noted", got)
		}
		if got := w.decided(as.token, `{"org_id":"acme","endpoint":"search"`+as.dry+`}`); len(got.Notes) != 0 {
			t.Errorf("the notes on a listed route are %q", got.Notes)
		}
	}
}

func TestACheckNotesThatALimitPerEndpointCountsByRoute(t *testing.T) {
	t.Parallel()
	w := routed(t)
	for endpoint, words := range map[string][]string{
		"GET /records/7":  {"no pattern", "each", "name the route"},
		"POST /records/7": {"each", "by route"},
	} {
		got := w.decided(admin, `{"org_id":"acme","endpoint":"`+endpoint+`","dry_run":true}`)
		if len(got.Notes) != 1 {
			t.Fatalf("%s: the notes are %q, want one", endpoint, got.Notes)
		}
		for _, word := range words {
			if !strings.Contains(got.Notes[0], word) {
				t.Errorf("%s: the note is %q, want %q", endpoint, got.Notes[0], word)
			}
		}
	}
	w.decided(admin, `{"org_id":"acme","endpoint":"GET /records/7","cost":4}`)
	if got := w.decided(admin, `{"org_id":"acme","dry_run":true}`); *got.Remaining != 6 {
		t.Errorf("%d are left for requests without an endpoint, want 6: it is the same bucket", *got.Remaining)
	}
	if got := w.decided(admin, `{"org_id":"acme","endpoint":"records","dry_run":true}`); *got.Remaining != 10 {
		t.Errorf("%d are left for the route, want 10: it is another bucket", *got.Remaining)
	}
}

func TestACheckNotesThatATierIsTheDefault(t *testing.T) {
	t.Parallel()
	buckets := shelf{memory.New(memory.Options{Now: clock})}
	rows := enterprise()
	rows.Tenants = append(rows.Tenants, schema.Tenant{ID: "small", Tier: "essentials"}, schema.Tenant{
		ID: "odd", Tier: "gold",
	}, schema.Tenant{ID: "berlin", TimeZone: "Europe/Berlin"})
	rows.Overrides = []policy.Override{policytest.Override(1, schema.Override{Kind: schema.KindExempt, Tenant: "free"})}
	decider := deciderOf(t, plan(), buckets, rows)
	w := open(t, func(o *api.Options) { o.Decider, o.Buckets = decider, buckets })
	for body, words := range map[string]string{
		`{"org_id":"globex"}`:                     "tier essentials is the default: none is set for this org",
		`{"org_id":"globex","dry_run":true}`:      "PUT /v1/orgs/{org}",
		`{"org_id":"berlin"}`:                     "none is set for this org",
		`{"org_id":"globex","tier":"enterprise"}`: "",
		`{"org_id":"globex","tier":"gold"}`:       `tier essentials is the default: the request says "gold"`,
		`{"org_id":"acme"}`:                       "",
		`{"org_id":"small"}`:                      "",
		`{"org_id":"odd"}`:                        `tier essentials is the default: the tenant's row says "gold"`,
		`{"org_id":"free"}`:                       "",
		`{"user_id":"u"}`:                         "without org_id the request is anonymous: daily counts it",
	} {
		got := w.decided(admin, body)
		if words == "" && len(got.Notes) != 0 || words != "" &&
			(len(got.Notes) != 1 || !strings.Contains(got.Notes[0], words)) {
			t.Errorf("%s: the notes are %q, want %q", body, got.Notes, words)
		}
	}
	single := plan()
	single.Tiers = single.Tiers[:1]
	ruled(t, decider, single, policy.Rows{})
	if got := w.decided(admin, `{"org_id":"globex"}`); len(got.Notes) != 0 {
		t.Errorf("where there is one tier the notes are %q", got.Notes)
	}
}

func TestAnOverrideIsAcceptedInEitherSpelling(t *testing.T) {
	t.Parallel()
	w := open(t)
	const rest = `"policy":"daily","reason":"launch","permanent":true`
	for _, test := range []struct{ body, kind, endpoint, user string }{
		{`{"endpointPattern":"POST /records","limit":5000,` + rest + `}`, "custom_limit", "POST /records", ""},
		{`{"scope":"user","userId":"u_42","limit":5000,` + rest + `}`, "custom_limit", "", "u_42"},
		{`{"factor":2,"scope":"tenant",` + rest + `}`, "multiplier", "", ""},
	} {
		answer := w.want(w.as("POST", "/v1/orgs/acme/ratelimit/overrides", test.body), http.StatusCreated)
		made := read[api.OverrideWritten](w, answer)
		if o := made.Override; o.Kind != test.kind || o.Endpoint != test.endpoint || o.User != test.user {
			t.Errorf("%s: made %+v", test.body, o)
		}
	}
	for body, paths := range map[string]string{
		`{"endpointPattern":"records","limit":5,` + rest + `}`:                    "body.endpointPattern",
		`{"endpointPattern":"GET /a","endpoint":"GET /b","limit":5,` + rest + `}`: "body.endpointPattern",
		`{"scope":"user","limit":5,` + rest + `}`:                                 "body.user",
		`{"scope":"planet","limit":5,` + rest + `}`:                               "body.scope",
		`{` + rest + `}`: "body.kind",
	} {
		if a := w.want(w.as("POST", "/v1/orgs/acme/ratelimit/overrides", body), http.StatusUnprocessableEntity); read[problem](w, a).paths() != paths {
			t.Errorf("%s: faults at %q, want %q: %s", body, read[problem](w, a).paths(), paths, a.Body)
		}
	}
}

func TestACheckIsAcceptedInEitherSpelling(t *testing.T) {
	t.Parallel()
	config := plan()
	config.Tiers = []schema.Tier{{Name: "essentials", Limits: []schema.Limit{
		limitOf("daily", "", 100), with(limitOf("writes", "POST /records", 10), func(l *schema.Limit) { l.Scope = "user" }),
	}}}
	buckets := shelf{memory.New(memory.Options{Now: clock})}
	decider := deciderOf(t, config.WithDefaults(), buckets, policy.Rows{})
	w := open(t, func(o *api.Options) { o.Decider, o.Buckets = decider, buckets })
	left := func(body string) int64 {
		return *read[api.Checked](w, w.want(w.as("POST", checkPath, body), http.StatusOK)).Remaining
	}
	for i, body := range []string{
		`{"org_id":"acme","user_id":"u","endpoint":"POST /records"}`,
		`{"orgId":"acme","userId":"u","endpointPattern":"POST /records","scope":"user","orgTier":"Essentials"}`,
		`{"org":"acme","user_id":"u","userId":"u","endpointP\u0061ttern":"POST /records","scope":"user+endpoint"}`,
	} {
		if got, want := left(body), int64(9-i); got != want {
			t.Errorf("%s leaves %d, want %d", body, got, want)
		}
	}
	for body, paths := range map[string]string{
		`{"org_id":"acme","orgId":"globex"}`:       "body.orgId",
		`{"org_id":"acme","scope":"user"}`:         "body.user_id",
		`{"orgId":"acme","endpointPattern":"a b"}`: "body.endpointPattern",
		`{"org_id":"acme","scope":"everything"}`:   "body.scope",
	} {
		if a := w.want(w.as("POST", checkPath, body), http.StatusUnprocessableEntity); read[problem](w, a).paths() != paths {
			t.Errorf("%s: faults at %q, want %q", body, read[problem](w, a).paths(), paths)
		}
	}
}

func TestACheckWithoutAnOrgNotesThatUsersAreCountedTogether(t *testing.T) {
	t.Parallel()
	config := plan()
	config.OnMissingTenant = "limit_by_ip"
	config.Tiers = []schema.Tier{{Name: "essentials", Limits: []schema.Limit{limitOf("daily", "", 9)}}}
	perIP := limitOf("per-ip", "", 9)
	perIP.Scope = "ip"
	config.Anonymous.Limits = []schema.Limit{perIP}
	buckets := shelf{memory.New(memory.Options{Now: clock})}
	decider := deciderOf(t, config.WithDefaults(), buckets, policy.Rows{})
	w := open(t, func(o *api.Options) { o.Decider, o.Buckets = decider, buckets })
	for body, want := range map[string]string{
		`{"user_id":"u_42","endpoint":"/api/messages","scope":"user"}`: "per-ip counts it with all requests that name neither org nor ip",
		`{"user_id":"u_43","ip":"192.0.2.1"}`:                          "per-ip counts it with all requests from its ip",
		`{"ip":"192.0.2.1"}`:                                           "",
		`{"org_id":"acme","user_id":"u_42"}`:                           "",
	} {
		notes := strings.Join(read[api.Checked](w, w.want(w.as("POST", checkPath, body), http.StatusOK)).Notes, "; ")
		if has := strings.Contains(notes, "without org_id"); has != (want != "") || !strings.Contains(notes, want) {
			t.Errorf("%s: the notes are %q, want %q in them", body, notes, want)
		}
	}
}
