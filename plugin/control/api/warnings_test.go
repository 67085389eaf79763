package api_test

import (
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/bucket/memory"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/control/api"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
)

func TestOrgIsAnotherSpellingOfTenant(t *testing.T) {
	t.Parallel()
	w := open(t)
	_, _, p := w.made(`{"org":"acme","name":"own","limit":5,"window":"1m"}`)
	if p.Tenant != "acme" {
		t.Errorf("the policy is of %q", p.Tenant)
	}
	w.made(`{"org":"globex","tenant":"globex","name":"own","limit":5,"window":"1m"}`)
	for body, at := range map[string]string{
		`{"org":"acme","tenant":"globex","name":"x","limit":5,"window":"1m"}`: "body.org",
		`{"org":"acme","orgId":"globex","name":"x","limit":5,"window":"1m"}`:  "body.org",
		`{"org":"acme","tier":"gold","name":"x","limit":5,"window":"1m"}`:     "body.org",
		`{"org":"a\u0000","name":"x","limit":5,"window":"1m"}`:                "body.org",
	} {
		a := w.want(w.as("POST", policies, body), http.StatusUnprocessableEntity)
		if got := read[problem](w, a); got.paths() != at {
			t.Errorf("%s: %s, want a fault at %s", body, a.Body, at)
		}
	}
	for _, list := range []string{policies, "/v1/ratelimit/audit"} {
		a := w.want(w.as("GET", list+"?tenant=acme", ""), http.StatusOK)
		if got := len(read[struct{ Items []any }](w, a).Items); got != 1 {
			t.Errorf("%s lists %d, want the one of acme", list, got)
		}
	}
}

func TestAWriteUnderAWrongConditionReturnsTheRightOne(t *testing.T) {
	t.Parallel()
	w := open(t)
	const acme, body = "/v1/orgs/acme", `{"tier":"gold"}`
	wantDetail := func(a answer, words string) {
		t.Helper()
		if got := read[problem](w, a).Detail; !strings.Contains(got, words) {
			t.Errorf("%s %s: %q, want it to say %q", a.call.method, a.call.path, got, words)
		}
	}
	wantDetail(w.want(w.as("PUT", acme, body, "If-Match", "*"), http.StatusPreconditionFailed), "omit If-Match")
	wantDetail(w.want(w.as("PUT", policies, daily, "If-Match", "*"), http.StatusPreconditionFailed), "omit If-Match")
	tag := w.want(w.as("PUT", acme, body), http.StatusCreated).Header().Get("ETag")
	wantDetail(w.want(w.as("PUT", acme, `{"tier":"silver"}`), http.StatusPreconditionRequired),
		"If-Match: "+tag+" or If-Match: *")
}

func TestUnknownNamesHaveAWarning(t *testing.T) {
	t.Parallel()
	buckets := shelf{memory.New(memory.Options{Now: clock})}
	w := open(t, func(o *api.Options) {
		o.Buckets, o.Decider = buckets, deciderOf(t, plan(), buckets, policy.Rows{})
		o.IsConsumer = func(name string) bool { return name == "acme" }
	})
	w.made(`{"name":"of-a-row","tier":"tier-of-a-row","limit":1000,"window":"1d"}`)
	const ofAll = `{"kind":"multiplier","factor":2,"permanent":true,"reason":"a test"}`
	multiplier := func(named string) string {
		return strings.TrimSuffix(ofAll, "}") + `,"policy":"` + named + `"}`
	}
	for _, test := range []struct{ method, path, body, names string }{
		{"POST", overrides, multiplier("nosuch"), "nosuch"},
		{"POST", overrides, multiplier("daily"), ""},
		{"POST", overrides, multiplier("of-a-row"), ""},
		{"POST", overrides, ofAll, ""},
		{"POST", "/v1/orgs/nosuchtenant/ratelimit/overrides", ofAll, "tenant nosuchtenant was never seen"},
		{"PUT", "/v1/orgs/a", `{"tier":"no such tier"}`, "no such tier"},
		{"PUT", "/v1/orgs/b", `{"tier":"enterprise"}`, ""},
		{"PUT", "/v1/orgs/c", `{"tier":"tier-of-a-row"}`, ""},
		{"PUT", "/v1/orgs/d", `{}`, ""},
	} {
		a := w.want(w.as(test.method, test.path, test.body), http.StatusCreated)
		got := read[struct{ Warnings []string }](w, a).Warnings
		if test.names == "" && len(got) != 0 || test.names != "" && (len(got) != 1 || !strings.Contains(got[0], test.names)) {
			t.Errorf("%s %s: the warnings are %q", test.path, test.body, got)
		}
	}
}

func TestWithoutAConfigAWarningAllowsForNamesThatItMayHave(t *testing.T) {
	t.Parallel()
	w := open(t, func(o *api.Options) { o.IsConsumer = func(string) bool { return true } })
	for _, test := range []struct{ method, path, body, warning string }{
		{
			"POST", overrides, `{"kind":"multiplier","factor":2,"permanent":true,"reason":"a test","policy":"nosuch"}`,
			`the database has no policy "nosuch": unless the plugin's config has one`,
		},
		{"PUT", "/v1/orgs/a", `{"tier":"glod"}`, `the database has no tier "glod": unless the plugin's config has it`},
	} {
		a := w.want(w.as(test.method, test.path, test.body), http.StatusCreated)
		got := read[struct{ Warnings []string }](w, a).Warnings
		if len(got) != 1 || !strings.Contains(got[0], test.warning) {
			t.Errorf("%s: the warnings are %q, want %q", test.path, got, test.warning)
		}
	}
}

func TestAnOrgThatIsNotTextIsAFaultOnAllPaths(t *testing.T) {
	t.Parallel()
	w := equipped(t)
	for _, o := range operations(w) {
		if !strings.Contains(o.path, "{org}") {
			continue
		}
		for _, name := range []string{"a\x00b", "\xff\xfe", strings.Repeat("ü", 65)} {
			c := o.call(admin)
			c.path = strings.Replace(c.path, "acme", url.PathEscape(name), 1)
			w.wantFaults(w.do(c), "path.org")
		}
	}
}

func TestEveryInvalidRequestHasTheSameDetail(t *testing.T) {
	t.Parallel()
	w := open(t)
	details := map[string]bool{}
	for _, a := range []answer{
		w.as("GET", policies+"?limit=x", ""), w.as("GET", policies+"?nosuch=1", ""),
		w.as("GET", policies+"?tier=a&tier=b", ""),
		w.as("POST", policies, `{"limit":"many"}`), w.as("PUT", "/v1/orgs/a%00b", `{}`),
	} {
		details[read[problem](w, w.want(a, http.StatusUnprocessableEntity)).Detail] = true
	}
	if len(details) != 1 {
		t.Errorf("there are %d details: %v", len(details), details)
	}
}

func TestTheErrorOfAReadDoesNotMentionAWrite(t *testing.T) {
	t.Parallel()
	w := open(t)
	w.pool.Close()
	for _, o := range operations(w) {
		if !o.secured || strings.HasPrefix(o.id, "check") {
			continue
		}
		a := w.do(o.call(admin))
		if a.Code != http.StatusServiceUnavailable {
			continue // its conditions are looked at first
		}
		spoken := strings.Contains(read[problem](w, a).Detail, "nothing was written")
		if o.method == http.MethodGet && spoken || strings.HasPrefix(o.id, "create-") && !spoken {
			t.Errorf("%s: %s", o.id, a.Body)
		}
	}
}

func TestAPolicyThatWasMadeByForceIsAnsweredAgainWithoutIt(t *testing.T) {
	t.Parallel()
	w := open(t)
	w.made(daily)
	both := `{"policies":[{"name":"all","tier":"gold","scope":"global","limit":10,"window_size":86400},` +
		`{"name":"more","tier":"gold","scope":"global","limit":20,"window_size":86400}]}`
	_, saying := w.fault(w.as("PUT", documents+"?partial=true", both), http.StatusUnprocessableEntity)
	for _, locked := range []string{"policy all of tier gold: ", "; policy more of tier gold: "} {
		if !strings.Contains(saying, locked) {
			t.Errorf("%s does not name %s", saying, locked)
		}
	}
	const shared, key = `{"name":"all","tier":"gold","scope":"global","limit":10,"window":"1d"}`, "Idempotency-Key"
	first := w.want(w.as("POST", policies+"?force=true", shared, key, "once"), http.StatusCreated)
	again := w.want(w.as("POST", policies, shared, key, "once"), http.StatusCreated)
	if again.Header().Get("Idempotent-Replayed") != "true" ||
		again.Header().Get("Location") != first.Header().Get("Location") {
		t.Errorf("again: %v %s", again.Header(), again.Body)
	}
	for body, at := range map[string]string{
		strings.Replace(shared, "all", "more", 1): "query.force", // only what was written is answered again
		strings.Replace(shared, "10", "9", 1):     "header.Idempotency-Key",
	} {
		w.wantFaults(w.as("POST", policies, body, key, map[bool]string{true: "new", false: "once"}[at == "query.force"]), at)
	}
}
