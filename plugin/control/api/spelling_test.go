package api_test

import (
	"net/http"
	"strings"
	"testing"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/bucket/memory"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/control/api"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

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
