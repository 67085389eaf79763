package api_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/control/answers"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/control/api"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

// overrideWritten is the answer to a write of an override.
type overrideWritten struct {
	Override api.Override `json:"override"`
	Version  int64        `json:"version"`
}

func TestEachKindOfOverrideIsMadeAndRead(t *testing.T) {
	t.Parallel()
	w := open(t, func(o *api.Options) {
		o.Now = func() time.Time { return time.Date(2031, 1, 1, 0, 0, 0, 0, time.UTC) }
	})
	tests := []struct{ body, want string }{
		{`{"kind":"custom_limit","policy":"daily","limit":9,"window":"1h","burst":3,"reason":"launch","expires_in":"7d"}`, `"limit":9,"window_size":3600,"burst":3,"reason":"launch","author":"token:ann"`},
		{`{"kind":"multiplier","factor":1.5,"reason":"launch","expires_at":"2031-02-01T00:00:00Z"}`, `"factor":1.5,`},
		{`{"kind":"multiplier","factor":"0.250","user":"u","reason":"launch","permanent":true}`, `"factor":0.25,`},
		{`{"kind":"multiplier","factor":1000,"endpoint":"GET /a","reason":"launch","permanent":true}`, `"factor":1000,`},
		{`{"kind":"ban","ip":"192.0.2.1","reason":"abuse","expires_in":"1d12h"}`, `"expires_at":"2031-01-02T12:00:00Z"`},
		{`{"kind":"exempt","credential":"k","reason":"ours","permanent":true}`, `"permanent":true`},
		{`{"kind":"multiplier","factor":4,"reason":"launch","starts_at":"2099-02-01T00:00:00Z","expires_in":"3d"}`, `"starts_at":"2099-02-01T00:00:00Z","expires_at":"2099-02-04T00:00:00Z"`},
	}
	for _, test := range tests {
		a := w.want(w.as("POST", overrides, test.body), http.StatusCreated)
		if !strings.Contains(a.Body.String(), test.want) {
			t.Errorf("%s\nbecomes %s\nwant    %s", test.body, a.Body, test.want)
		}
		made := read[overrideWritten](w, a).Override
		again := w.want(w.as("GET", a.Header().Get("Location"), ""), http.StatusOK)
		back := read[api.Override](w, again)
		if fmt.Sprint(back.ID, back.Kind, back.ExpiresAt) != fmt.Sprint(made.ID, made.Kind, made.ExpiresAt) {
			t.Errorf("read as %s, want %+v", again.Body, made)
		}
	}
	list := read[answers.Page[api.Override]](w, w.as("GET", overrides+"?kind=multiplier&limit=2", ""))
	if len(list.Items) != 2 || list.NextCursor == "" {
		t.Errorf("the first page of multipliers is %+v", list)
	}
	w.want(w.as("POST", overrides, tests[0].body), http.StatusConflict)
	for query, want := range map[string]int{
		"": len(tests), "?state=scheduled": 1, "?state=in_force": len(tests) - 1, "?state=ended": 0, "?source=scheduled": 1,
	} {
		list := read[answers.Page[api.Override]](w, w.want(w.as("GET", overrides+query, ""), http.StatusOK))
		if len(list.Items) != want {
			t.Errorf("%q selects %d overrides, want %d", query, len(list.Items), want)
		}
	}
	w.wantFaults(w.as("GET", overrides+"?state=soon", ""), "query.state")
}

func TestAnInvalidOverrideIsDeniedWithAllItsFaults(t *testing.T) {
	t.Parallel()
	w := open(t)
	tests := []struct{ body, paths string }{
		{`{}`, "body.expires_in body.kind body.reason"},
		{`{"kind":"multiplier","reason":"r","permanent":true}`, "body.factor"},
		{`{"kind":"multiplier","factor":1.0005,"reason":"r","permanent":true}`, "body.factor"},
		{`{"kind":"multiplier","factor":1e3,"reason":"r","permanent":true}`, "body.factor"},
		{`{"kind":"multiplier","factor":"1e999999999","reason":"r","permanent":true}`, "body.factor"},
		{`{"kind":"multiplier","factor":-1,"reason":"r","permanent":true}`, "body.factor"},
		{`{"kind":"multiplier","factor":1000.001,"reason":"r","permanent":true}`, "body.factor"},
		{`{"kind":"multiplier","factor":true,"reason":"r","permanent":true}`, "body.factor"},
		{`{"kind":"ban","factor":2,"reason":"r","permanent":true}`, "body.factor"},
		{`{"kind":"ban","reason":"r","permanent":true,"expires_in":"1d"}`, "body.expires_in"},
		{`{"kind":"ban","reason":"r","expires_in":"-1d"}`, "body.expires_in"},
		{`{"kind":"ban","reason":"r","expires_at":"2001-01-01T00:00:00Z"}`, "body.expires_at"},
		{`{"kind":"ban","reason":"r","starts_at":"2099-01-02T00:00:00Z","expires_at":"2099-01-01T00:00:00Z"}`, "body.starts_at"},
		{`{"expires_at":"tomorrow","kind":"ban","reason":"r"}`, "body.expires_at"},
		{`{"starts_at":"soon","expires_in":"1d","reason":"r"}`, "body.kind body.starts_at"},
		{`{"kind":"ban","reason":"r","expires_in":"1d","user":"u","ip":"nowhere"}`, "body.ip body.user"},
		{`{"kind":"ban","reason":"r","expires_in":"1d","ip":"nowhere"}`, "body.ip"},
		{`{"kind":"ban","reason":"r","permanent":true,"factor":2,"endpoint":"records"}`, "body.endpoint body.factor"},
		{`{"kind":"custom_limit","reason":"r","expires_in":"1d","limit":0,"window":"soon","colour":1}`, "body.colour body.limit body.policy body.window"},
		{`{"kind":"multiplier","user":"u","ip":"nonsense","endpoint":"records","permanent":true,"reason":"a test"}`, "body.endpoint body.factor body.ip body.user"},
		{`{"kind":"ban","reason":" ","expires_in":"1d","author":"me"}`, "body.author body.reason"},
	}
	for _, test := range tests {
		w.wantFaults(w.as("POST", overrides, test.body), test.paths)
	}
	for _, factor := range []string{`"1,5"`, `"-1"`, `"inf"`, `0`, `{}`} {
		body := `{"kind":"multiplier","factor":` + factor + `,"reason":"r","permanent":true}`
		_, saying := w.fault(w.as("POST", overrides, body), http.StatusUnprocessableEntity)
		if !strings.Contains(saying, "must be a decimal number") {
			t.Errorf("the factor %s: %s", factor, saying)
		}
	}
}

func TestAnOddStartOfAnOverrideIsAFault(t *testing.T) {
	t.Parallel()
	w := open(t)
	const end = "2099-01-01T00:00:00Z"
	for start, want := range map[string]string{
		`""`: schema.TimeForm, `5`: schema.TimeForm, `null`: schema.TimeForm, `true`: schema.TimeForm, `{}`: schema.TimeForm,
		`["2098-01-01T00:00:00Z"]`: schema.TimeForm, `"2098-01-01"`: schema.TimeForm,
		`"99999-01-01T00:00:00Z"`: schema.TimeForm, `"0001-01-01T00:00:00Z"`: schema.TimeForm,
		`"1969-12-31T23:59:59Z"`: "must be from 1970 to 9999", `"9999-12-31T23:59:59-01:00"`: "must be from 1970 to 9999",
		`"` + end + `"`: "must be before expires_at",
	} {
		body := `{"starts_at":` + start + `,"kind":"ban","expires_at":"` + end + `","reason":"a test"}`
		path, saying := w.fault(w.as("POST", overrides, body), http.StatusUnprocessableEntity)
		if path != "body.starts_at" || !strings.Contains(saying, want) {
			t.Errorf("%s: %s: %s, want %s", start, path, saying, want)
		}
	}
}

func TestTheOverrideOfAnotherOrgDoesNotExist(t *testing.T) {
	t.Parallel()
	w := open(t)
	const globex = "/v1/orgs/globex/ratelimit/overrides"
	a := w.want(w.as("POST", overrides, `{"kind":"ban","reason":"abuse","permanent":true}`), http.StatusCreated)
	id := fmt.Sprint("/", read[overrideWritten](w, a).Override.ID)
	w.want(w.as("GET", globex+id, ""), http.StatusNotFound)
	w.want(w.as("DELETE", globex+id+"?reason=over", ""), http.StatusNotFound)
	w.want(w.do(call{token: ofGlobex, method: "GET", path: globex + id}), http.StatusNotFound)
	w.want(w.do(call{token: ofAcme, method: "GET", path: overrides + id}), http.StatusOK)
	w.want(w.as("DELETE", overrides+id, ""), http.StatusUnprocessableEntity)
	w.want(w.as("DELETE", overrides+id+"?reason=over", ""), http.StatusOK)
	w.want(w.as("DELETE", overrides+id+"?reason=over", ""), http.StatusNotFound)
}

func TestAnOrgMayHaveAnyNameThatItIsCountedBy(t *testing.T) {
	t.Parallel()
	w := open(t)
	const body = `{"kind":"ban","reason":"abuse","permanent":true}`
	for _, org := range []string{
		"a%2Fb", "%2e%2e", "%2E", "..%2F..%2Fetc", "%C3%BCn%C3%AF", "a%20b", "%27%3B%20DROP%20TABLE%20x--",
		"a%0D%0AX-Evil:%201", strings.Repeat("x", 128),
	} {
		path := "/v1/orgs/" + org + "/ratelimit/overrides"
		a := w.want(w.as("POST", path, body), http.StatusCreated)
		if a.Header().Get("X-Evil") != "" {
			t.Errorf("%s has set a header", org)
		}
		w.want(w.as("GET", a.Header().Get("Location"), ""), http.StatusOK)
		if list := read[answers.Page[api.Override]](w, w.as("GET", path, "")); len(list.Items) != 1 {
			t.Errorf("%s has %d overrides, want 1", org, len(list.Items))
		}
	}
}

func TestAnOverrideOfAllOrgsIsMadeReadAndEnded(t *testing.T) {
	t.Parallel()
	w := open(t)
	for _, body := range []string{
		`{"kind":"exempt","tag":"monitoring","reason":"ours","permanent":true}`,
		`{"kind":"exempt","tag":"monitoring","endpoint":"GET /a","reason":"ours","permanent":true}`,
		`{"kind":"exempt","endpoint":"GET /healthz","reason":"ours","expires_in":"1d"}`,
		`{"kind":"exempt","ip":"10.0.0.0/8","endpoint":"GET /metrics","reason":"ours","permanent":true}`,
		`{"kind":"ban","ip":"198.51.100.7","reason":"abuse","expires_in":"1h"}`,
		`{"kind":"multiplier","credential":"k-1","factor":2,"reason":"a migration","expires_in":"1h"}`,
	} {
		a := w.want(w.as("POST", generalOverrides, body), http.StatusCreated)
		made := read[overrideWritten](w, a).Override
		at := fmt.Sprint(generalOverrides, "/", made.ID)
		if a.Header().Get("Location") != at || made.Org != "" || strings.Contains(a.Body.String(), `"org"`) {
			t.Errorf("%s is at %q with %s", body, a.Header().Get("Location"), a.Body)
		}
		if got := read[api.Override](w, w.want(w.as("GET", at, ""), http.StatusOK)); got.ID != made.ID {
			t.Errorf("%s is read as %+v", body, got)
		}
		w.want(w.as("POST", generalOverrides, body), http.StatusConflict)
	}
	list := read[answers.Page[api.Override]](w, w.as("GET", generalOverrides+"?tag=monitoring&limit=1", ""))
	if len(list.Items) != 1 || list.Items[0].Tag != "monitoring" || list.NextCursor == "" {
		t.Errorf("the first page of a tag is %+v", list)
	}
	list = read[answers.Page[api.Override]](w, w.as("GET", generalOverrides+"?endpoint=GET+/healthz", ""))
	if len(list.Items) != 1 {
		t.Fatalf("the overrides of an endpoint are %+v", list)
	}
	at := fmt.Sprint(generalOverrides, "/", list.Items[0].ID)
	w.want(w.as("DELETE", at+"?reason=over", ""), http.StatusOK)
	w.want(w.as("GET", at, ""), http.StatusNotFound)
}

func TestAnOverrideOfAllOrgsNamesWhatItIsFor(t *testing.T) {
	t.Parallel()
	w := open(t)
	for body, paths := range map[string]string{
		`{"kind":"exempt","reason":"r","permanent":true}`:                                        "body.credential",
		`{"kind":"exempt","user":"u","reason":"r","permanent":true}`:                             "body.credential",
		`{"kind":"ban","endpoint":"GET /a","reason":"r","permanent":true}`:                       "body.credential",
		`{"kind":"multiplier","factor":2,"reason":"r","permanent":true}`:                         "body.credential",
		`{"kind":"exempt","tag":"x","tenant":"acme","reason":"r","permanent":true}`:              "body.tenant",
		`{"kind":"exempt","tag":"x","ip":"192.0.2.1","reason":"r","permanent":true}`:             "body.tag",
		`{"kind":"exempt","tag":"","endpoint":"GET /a","reason":"r","permanent":true}`:           "body.tag",
		`{"kind":"exempt","ip":"0.0.0.0/0","reason":"r","permanent":true}`:                       "body.ip",
		`{"kind":"exempt","tag":"x","reason":"r"}`:                                               "body.expires_in",
		`{"kind":"custom_limit","ip":"192.0.2.1","limit":5,"reason":"r","permanent":true}`:       "body.policy",
		`{"kind":"exempt","tag":"x","reason":"r","permanent":true,"source":"detector","a":true}`: "body.a body.source",
	} {
		w.wantFaults(w.as("POST", generalOverrides, body), paths)
	}
}

func TestOverridesOfAllOrgsAndOfOneAreApart(t *testing.T) {
	t.Parallel()
	w := open(t)
	const body = `{"kind":"exempt","ip":"192.0.2.1","reason":"ours","permanent":true}`
	of := func(path string) string {
		return fmt.Sprint("/", read[overrideWritten](w, w.want(w.as("POST", path, body), http.StatusCreated)).Override.ID)
	}
	general, acme := of(generalOverrides), of(overrides)
	for path, id := range map[string]string{overrides: general, generalOverrides: acme} {
		w.want(w.as("GET", path+id, ""), http.StatusNotFound)
		w.want(w.as("DELETE", path+id+"?reason=over", ""), http.StatusNotFound)
	}
	for path, id := range map[string]string{overrides: acme, generalOverrides + "?general=true": general} {
		list := read[answers.Page[api.Override]](w, w.want(w.as("GET", path, ""), http.StatusOK)).Items
		if len(list) != 1 || fmt.Sprint("/", list[0].ID) != id {
			t.Errorf("%s lists %+v, want %s alone", path, list, id)
		}
	}
	w.want(w.do(call{token: ofAcme, method: "GET", path: generalOverrides}), http.StatusForbidden)
	w.want(w.do(call{token: ofAcme, method: "GET", path: generalOverrides + general}), http.StatusForbidden)
	w.want(w.do(call{token: viewer, method: "POST", path: generalOverrides, body: body}), http.StatusForbidden)
}
