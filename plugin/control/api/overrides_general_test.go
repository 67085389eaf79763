package api_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/control/answers"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/control/api"
)

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
		a := w.want(w.as("POST", generalOverrides, body), http.StatusUnprocessableEntity)
		if got := read[problem](w, a).paths(); got != paths {
			t.Errorf("%s:\n%s\nfaults at %s, want at %s", body, a.Body, got, paths)
		}
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
