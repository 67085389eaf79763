package api_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/control/answers"
)

func TestARequestWithARepeatedHeaderIsDenied(t *testing.T) {
	t.Parallel()
	w := open(t)
	_, tag, _ := w.made(daily)
	for _, pair := range [][2]string{
		{admin, admin},
		{admin, unknownToken},
		{unknownToken, admin},
		{ofAcme, admin},
		{"", admin},
	} {
		c := call{method: "GET", path: policies}
		r := c.request()
		r.Header["Authorization"] = []string{"Bearer " + pair[0], "Bearer " + pair[1]}
		if p := read[problem](w, w.want(w.serve(c, r), http.StatusUnauthorized)); !strings.Contains(p.Detail, "one token") {
			t.Errorf("%v: %+v, want it denied for the second token", pair, p)
		}
	}
	for name, c := range map[string]call{
		"Idempotency-Key": {admin, "POST", policies, `{"tier":"gold","limit":1,"window":"1m"}`, nil},
		"If-Match":        {admin, "PUT", policies, strings.Replace(daily, "1000", "7", 1), nil},
		"If-None-Match":   {admin, "PUT", policies, strings.Replace(daily, "1000", "7", 1), []string{"If-Match", "*"}},
	} {
		for _, values := range [][]string{{tag, "*"}, {"*", tag}, {tag, tag}} {
			r := c.request()
			r.Header[http.CanonicalHeaderKey(name)] = values
			if p := read[problem](w, w.want(w.serve(c, r), http.StatusUnprocessableEntity)); p.paths() != "header."+name {
				t.Errorf("%s %q: faults at %s", name, values, p.paths())
			}
		}
	}
	if list := read[answers.Page[any]](w, w.as("GET", policies, "")); len(list.Items) != 1 {
		t.Errorf("there are %v, want only the first policy", list.Items)
	}
}

func TestAPathWithDotsOrDoubledSlashesIsNotFound(t *testing.T) {
	t.Parallel()
	w := open(t)
	w.want(w.as("POST", "/v1/orgs/%2e%2e/ratelimit/overrides", `{"kind":"ban","reason":"abuse","permanent":true}`),
		http.StatusCreated)
	for _, at := range []string{
		"/v1/orgs/acme/../globex/ratelimit/overrides", "/v1/orgs/../ratelimit/policies", "/v1/orgs/./ratelimit/overrides",
		"//v1/ratelimit/policies",
		"/v1//ratelimit/policies", "/v1/orgs//ratelimit/overrides", "/v1/ratelimit/policies/.",
		"/v1/ratelimit/policies/", "/nowhere/../healthz",
	} {
		for _, method := range []string{"GET", "POST", "DELETE"} {
			a := w.want(w.as(method, at, ""), http.StatusNotFound)
			if to := a.Header().Get("Location"); to != "" || a.Header().Get("Content-Type") != "application/problem+json" {
				t.Errorf("%s %s leads to %q: %s", method, at, to, a.Body)
			}
		}
	}
}

func TestAnOrgNamedDotsIsReadWhereItIsWritten(t *testing.T) {
	t.Parallel()
	w := open(t)
	for _, org := range []string{"%2e%2e", "%2E", "a%2F..%2Fb"} {
		a := w.want(w.as("PUT", "/v1/orgs/"+org, `{"tier":"gold"}`), http.StatusCreated)
		at := a.Header().Get("Location")
		got := read[map[string]any](w, w.want(w.as("GET", at, ""), http.StatusOK))
		if want := map[string]string{"%2e%2e": "..", "%2E": ".", "a%2F..%2Fb": "a/../b"}[org]; got["id"] != want {
			t.Errorf("%s: at %s there is %v", org, at, got)
		}
	}
}

func TestTextWithNULIsAFaultWithItsPath(t *testing.T) {
	t.Parallel()
	w := open(t)
	const text = `a\u0000b`
	ban := `"kind":"ban","permanent":true`
	for _, test := range []struct{ method, path, body, field string }{
		{"POST", policies, `"limit":5,"window":"1m"`, "tier orgTier tenant orgId"},
		{"POST", policies, `"limit":5,"window":"1m","tier":"gold"`, "endpoint endpointPattern reason"},
		{"PUT", "/v1/orgs/acme", `"tier":"gold"`, "reason time_zone"},
		{"PUT", "/v1/orgs/acme", `"time_zone":"UTC"`, "tier"},
		{"POST", overrides, ban, "reason"},
		{"POST", overrides, ban + `,"reason":"r"`, "user endpoint credential"},
	} {
		for _, field := range strings.Fields(test.field) {
			body := fmt.Sprintf(`{%s,%q:"%s"}`, test.body, field, text)
			a := w.want(w.as(test.method, test.path, body), http.StatusUnprocessableEntity)
			if got := read[problem](w, a).paths(); got != "body."+field {
				t.Errorf("%s: faults at %s", body, got)
			}
		}
	}
	a := w.want(w.as("DELETE", overrides+"/1?reason=a%00b", ""), http.StatusUnprocessableEntity)
	if got := read[problem](w, a).paths(); got != "query.reason" {
		t.Errorf("faults at %s", got)
	}
}

func TestABodyThatIsNoObjectHasThatOneFault(t *testing.T) {
	t.Parallel()
	w := equipped(t)
	for _, o := range operations(w) {
		if !o.hasBody {
			continue
		}
		for _, body := range []string{`null`, `[]`, `"x"`, `7`, `true`, " [{}]\n"} {
			c := o.call(admin).with("If-Match", "*")
			c.body = body
			a := w.want(w.do(c), http.StatusUnprocessableEntity)
			if got := read[problem](w, a).paths(); got != "body" {
				t.Errorf("%s with %s: faults at %q", o.id, body, got)
			}
		}
	}
}

func TestAFaultOfAValueThatIsNotAnObjectListsNothingWithinIt(t *testing.T) {
	t.Parallel()
	w := equipped(t)
	a := w.want(w.as("POST", "/v1/ratelimit/check/batch", `{"checks":[{"org_id":7,"ip":"x"},[],"x",{"cost":0}]}`),
		http.StatusUnprocessableEntity)
	if got, want := read[problem](w, a).paths(), "body.checks[0].ip body.checks[0].org_id body.checks[1] body.checks[2] body.checks[3].cost"; got != want {
		t.Errorf("faults at %s, want %s", got, want)
	}
	for _, path := range []string{policies, overrides, acmeReset} {
		a := w.as("POST", path, "")
		if got := read[problem](w, a).paths(); a.Code != http.StatusBadRequest && a.Code != http.StatusUnprocessableEntity ||
			strings.Contains(got, "body.") {
			t.Errorf("without a body %s answers %d, with faults at %q", path, a.Code, got)
		}
	}
}

func TestABodyMayHaveThirtyTwoLevels(t *testing.T) {
	t.Parallel()
	w := open(t)
	for depth, code := range map[int]int{32: http.StatusUnprocessableEntity, 33: http.StatusBadRequest} {
		body := `{"surprise":` + strings.Repeat("[", depth-1) + strings.Repeat("]", depth-1) + `}`
		w.want(w.as("POST", policies, body), code)
	}
}
