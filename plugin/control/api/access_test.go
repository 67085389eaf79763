package api_test

import (
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"
)

// The roles that the matrix has, by their tokens.
var roles = []struct{ name, token string }{
	{"admin", admin},
	{"viewer", viewer},
	{"own org", ofAcme},
	{"other org", ofGlobex},
	{"no token", ""},
	{"wrong token", unknownToken},
	{"revoked token", revoked},
}

// may lists which roles may use an operation, in the order of roles: y may, . is forbidden, ? has no valid token.
// Every operation is there: one that is not fails the test.
var may = map[string]string{
	"list-policies":           "yy..???",
	"create-policy":           "y...???",
	"put-policy":              "y...???",
	"get-policy":              "yy..???",
	"put-policy-by-id":        "y...???",
	"delete-policy":           "y...???",
	"list-overrides":          "yyy.???",
	"create-override":         "y...???",
	"get-override":            "yyy.???",
	"put-override":            "y...???",
	"delete-override":         "y...???",
	"list-all-overrides":      "yy..???",
	"create-general-override": "y...???",
	"get-general-override":    "yy..???",
	"put-general-override":    "y...???",
	"delete-general-override": "y...???",

	"list-webhooks":           "yyy.???",
	"create-webhook":          "y.y.???",
	"get-webhook":             "yyy.???",
	"delete-webhook":          "y.y.???",
	"enable-webhook":          "y.y.???",
	"disable-webhook":         "y.y.???",
	"rotate-webhook":          "y.y.???",
	"test-webhook":            "y.y.???",
	"list-webhook-deliveries": "yyy.???",

	"list-general-webhooks":           "yy..???",
	"create-general-webhook":          "y...???",
	"get-general-webhook":             "yy..???",
	"delete-general-webhook":          "y...???",
	"enable-general-webhook":          "y...???",
	"disable-general-webhook":         "y...???",
	"rotate-general-webhook":          "y...???",
	"test-general-webhook":            "y...???",
	"list-general-webhook-deliveries": "yy..???",

	"list-org-tokens":  "yyy.???",
	"create-org-token": "y.y.???",
	"rotate-org-token": "y.y.???",
	"revoke-org-token": "y.y.???",
	"list-denials":     "yy..???",
	"list-org-denials": "yyy.???",
	"get-denial":       "yyyy???",

	"list-audit":  "yy..???",
	"get-fleet":   "yy..???",
	"forget-node": "y...???",
	"get-healthz": "yyyyyyy",
	"get-readyz":  "yyyyyyy",
}

func TestEachRoleMayUseOnlyItsOperations(t *testing.T) {
	t.Parallel()
	w := equipped(t)
	seen := map[string]bool{}
	for _, o := range operations(w) {
		seen[o.id] = true
		want, ok := may[o.id]
		if !ok {
			t.Errorf("the matrix has no %s", o.id)
			continue
		}
		for i, role := range roles {
			a := w.do(o.call(role.token))
			switch want[i] {
			case '?':
				if a.Code != http.StatusUnauthorized || !strings.HasPrefix(a.Header().Get("WWW-Authenticate"), "Bearer") {
					t.Errorf("%s by %s: %d, want 401 with a challenge", o.id, role.name, a.Code)
				}
			case '.':
				if a.Code != http.StatusForbidden {
					t.Errorf("%s by %s: %d %s, want 403", o.id, role.name, a.Code, a.Body)
				}
			default:
				if a.Code == http.StatusUnauthorized || a.Code == http.StatusForbidden {
					t.Errorf("%s by %s: %d, want it to pass", o.id, role.name, a.Code)
				}
			}
		}
	}
	for _, id := range slices.Sorted(maps.Keys(may)) {
		if !seen[id] {
			t.Errorf("there is no operation %s", id)
		}
	}
}

func TestATokenIsAcceptedOnlyAsABearerToken(t *testing.T) {
	t.Parallel()
	w := open(t)
	for _, header := range []string{
		admin, "Basic " + admin, "Bearer", "Bearer ", "Token " + admin, "Bearer " + admin + "x",
	} {
		w.want(w.do(call{method: "GET", path: policies, headers: []string{"Authorization", header}}), http.StatusUnauthorized)
	}
	w.want(w.do(call{method: "GET", path: policies + "?token=" + admin}), http.StatusUnauthorized)
	w.want(w.do(call{method: "GET", path: policies, headers: []string{"Authorization", "bearer  " + admin}}),
		http.StatusOK)
}

func TestAnOrgReachesNoOtherByASpellingOfItsPath(t *testing.T) {
	t.Parallel()
	w := open(t)
	w.want(w.as("POST", "/v1/orgs/globex/ratelimit/overrides", `{"kind":"ban","reason":"abuse","permanent":true}`),
		http.StatusCreated)
	for _, org := range []string{
		"globex", "acme/../globex", "acme%2F..%2Fglobex", "%2e%2e/orgs/globex", "ACME", "acme%00",
		"acme%20", "acme;globex", "*", "acme%2Cglobex", "",
	} {
		a := w.do(call{ofAcme, "GET", "/v1/orgs/" + org + "/ratelimit/overrides", "", nil})
		if a.Code < 300 || strings.Contains(a.Body.String(), "abuse") {
			t.Errorf("%q: %d %s", org, a.Code, a.Body)
		}
	}
	w.want(w.do(call{ofAcme, "GET", "/v1/orgs/%61cme/ratelimit/overrides", "", nil}), http.StatusOK)
}

func TestTokensThatCannotBeLookedUpAdmitNoRequestAndRevealNothing(t *testing.T) {
	t.Parallel()
	w := open(t)
	a := w.want(w.do(call{token: away, method: "GET", path: policies}), http.StatusServiceUnavailable)
	if strings.Contains(a.Body.String(), "hunter2") {
		t.Errorf("the answer has %s", a.Body)
	}
}
