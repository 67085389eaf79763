package api_test

import (
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/bucket/memory"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/control/api"
)

// serveAs returns the answer to a request that a caller makes without a token.
func (w *world) serveAs(caller api.Caller, method, path, body string) *httptest.ResponseRecorder {
	w.Helper()
	a := httptest.NewRecorder()
	w.server.ServeAs(a, call{method: method, path: path, body: body}.request(), caller)
	return a
}

func TestARequestServedAsACallerHasItsRoleAndName(t *testing.T) {
	t.Parallel()
	w := open(t)
	ann := api.Caller{Token: "ann@example.com", Role: api.Admin}
	acme := api.Caller{Token: "acme-portal", Role: api.Tenant, Org: "acme"}
	for _, c := range []struct {
		caller             api.Caller
		method, path, body string
		want               int
	}{
		{ann, "POST", policies, daily, http.StatusCreated},
		{api.Caller{Token: "vic", Role: api.Viewer}, "GET", fleetPath, "", http.StatusOK},
		{api.Caller{Token: "vic", Role: api.Viewer}, "POST", policies, daily, http.StatusForbidden},
		{acme, "GET", fleetPath, "", http.StatusForbidden},
		{acme, "GET", "/v1/orgs/globex", "", http.StatusForbidden},
		{api.Caller{Token: "none"}, "GET", fleetPath, "", http.StatusForbidden},
		{api.Caller{}, "GET", fleetPath, "", http.StatusForbidden},
	} {
		if a := w.serveAs(c.caller, c.method, c.path, c.body); a.Code != c.want {
			t.Errorf("%+v %s %s: %d %s, want %d", c.caller, c.method, c.path, a.Code, a.Body, c.want)
		}
	}
	audit := w.want(w.as("GET", "/v1/ratelimit/audit", ""), http.StatusOK).Body.String()
	if !strings.Contains(audit, `"token:ann@example.com"`) {
		t.Errorf("the audit is %s, want the caller as the actor", audit)
	}
}

func TestRoutineRequestsAreLoggedIfTheyFail(t *testing.T) {
	t.Parallel()
	w := open(t)
	poll := api.Caller{Token: "portal:ann", Role: api.Viewer, Routine: true}
	if w.serveAs(poll, "GET", fleetPath, ""); strings.Contains(w.log.String(), "portal:ann") {
		t.Errorf("one that succeeds is in the log: %s", w.log)
	}
	w.serveAs(poll, "POST", policies, daily)
	if log := w.log.String(); !strings.Contains(log, `"status":403`) || !strings.Contains(log, "portal:ann") {
		t.Errorf("one that is denied is not in the log: %s", log)
	}
}

func TestAPersonOfAnIdentityProviderIsTheActorOfItsChanges(t *testing.T) {
	t.Parallel()
	w := open(t)
	person := api.Caller{Token: "oidc:" + strings.Repeat("a", 200) + "@example.org", Role: api.Admin}
	for _, replayed := range []string{"", "true"} { // an idempotency key is kept under a name of 64 bytes at most
		a := httptest.NewRecorder()
		r := call{method: "POST", path: policies, body: daily}.request()
		r.Header.Set("Idempotency-Key", "once")
		w.server.ServeAs(a, r, person)
		if got := a.Header().Get("Idempotent-Replayed"); a.Code != http.StatusCreated || got != replayed {
			t.Errorf("%d %s, replayed %q, want %q", a.Code, a.Body, got, replayed)
		}
	}
	audit := w.want(w.as("GET", "/v1/ratelimit/audit", ""), http.StatusOK).Body.String()
	if !strings.Contains(audit, `"actor":"`+person.Token+`"`) {
		t.Errorf("the audit is %s, want the person as the actor", audit)
	}
}

func TestWrongTokensOfAnAddressAreLimitedAlsoOutsideOfRequests(t *testing.T) {
	t.Parallel()
	w := open(t, func(o *api.Options) {
		o.Limits, o.Rates = memory.New(memory.Options{Now: clock}), api.Rates{Failures: 3}
	})
	const address = "192.0.2.1:4711"
	for range 3 {
		if _, _, err := w.server.Authenticate(t.Context(), unknownToken, address); !errors.Is(err, api.ErrUnknownToken) {
			t.Fatalf("%v, want an unknown token", err)
		}
	}
	if _, _, err := w.server.Authenticate(t.Context(), unknownToken, address); !errors.Is(err, api.ErrTooManyGuesses) {
		t.Errorf("%v after three, want a limit", err)
	}
	_, _, err := w.server.Authenticate(t.Context(), unknownToken, "192.0.2.2:1")
	if !errors.Is(err, api.ErrUnknownToken) {
		t.Errorf("another address: %v, want an unknown token", err)
	}
	for _, from := range []string{address, ""} { // "" is a session's
		if caller, _, err := w.server.Authenticate(t.Context(), admin, from); err != nil || caller.Role != api.Admin {
			t.Errorf("a valid token of %q: %+v, %v", from, caller, err)
		}
	}
	if _, _, err := w.server.Authenticate(t.Context(), revoked, ""); !errors.Is(err, api.ErrUnknownToken) {
		t.Errorf("the revoked token of a session: %v", err)
	}
	_, _, err = w.server.Authenticate(t.Context(), away, address)
	if err == nil || errors.Is(err, api.ErrUnknownToken) {
		t.Errorf("without a database: %v, want another error than an unknown token", err)
	}
}

func TestSignInsWithOneTokenAreLimitedApartFromItsRequestsAndSessions(t *testing.T) {
	t.Parallel()
	w := open(t, func(o *api.Options) {
		o.Limits, o.Rates = memory.New(memory.Options{Now: clock}), api.Rates{SignIns: 3}
	})
	signIn := func(secret string, from int) (time.Duration, error) {
		_, wait, err := w.server.Authenticate(t.Context(), secret, fmt.Sprintf("192.0.2.%d:4711", from))
		return wait, err
	}
	for i := range 3 {
		if wait, err := signIn(admin, i); wait != 0 || err != nil {
			t.Fatalf("sign-in %d: %v, wait %v", i, err, wait)
		}
	}
	wait, err := signIn(admin, 9)
	if !errors.Is(err, api.ErrTooManySignIns) || wait < time.Second || wait > time.Minute {
		t.Errorf("the fourth sign-in, from another address: %v, wait %v", err, wait)
	}
	if _, err := signIn(viewer, 9); err != nil {
		t.Errorf("with another token from that address: %v", err)
	}
	if caller, _, err := w.server.Authenticate(t.Context(), admin, ""); err != nil || caller.Token != "ann" {
		t.Errorf("a session of the token: %+v, %v", caller, err)
	}
	w.want(w.as("GET", policies, ""), http.StatusOK)
}

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

// may lists the operations by the roles that may use them, in the order of roles: y may, . is forbidden, ? has no valid
// token. Every operation is there: one that is not fails the test.
var may = map[string]string{
	"yy..???": `list-policies get-policy list-all-overrides get-general-override list-ended-overrides preview-override
		list-general-webhooks get-general-webhook list-general-webhook-deliveries list-denials list-denial-groups
		list-audit get-fleet
		list-candidates get-candidate diff-candidate report-candidate list-costs get-cost list-prices get-price
		get-document diff-document
		list-abuse get-org-abuse list-tokens get-token list-orgs list-tiers get-usage-top get-usage-total list-org-usage
		list-near-limit export-usage
		list-quota-notices`,
	"y...???": `create-policy put-policy put-policy-by-id delete-policy create-override put-override delete-override
		create-general-override put-general-override delete-general-override create-general-webhook
		delete-general-webhook enable-general-webhook disable-general-webhook rotate-general-webhook
		test-general-webhook forget-node create-candidate drop-candidate put-candidate-policy put-candidate-policies
		delete-candidate-policy assign-candidate promote-candidate roll-back-candidate rebase-candidate put-cost
		delete-cost put-price delete-price apply-document forgive-org create-token revoke-token put-tier delete-tier
		put-org delete-org reset-org-usage`,
	"yyy.???": `list-overrides get-override list-webhooks get-webhook list-webhook-deliveries list-org-tokens
		list-org-denials list-org-denial-groups get-org get-org-policies get-org-usage get-org-usage-history`,
	"y.y.???": `create-webhook delete-webhook enable-webhook disable-webhook rotate-webhook test-webhook
		create-org-token rotate-org-token revoke-org-token check check-batch`, // a viewer may check with dry_run
	"yyyy???": `get-denial`,
	"y.yy???": `settle`, // an org's token settles what it has reserved, and finds nothing else
	"yyyyyyy": `get-healthz get-readyz`,
}

func TestEachRoleMayUseOnlyItsOperations(t *testing.T) {
	t.Parallel()
	w := equipped(t)
	byID := map[string]string{}
	for who, ids := range may {
		for _, id := range strings.Fields(ids) {
			byID[id] = who
		}
	}
	for _, o := range operations(w) {
		want, ok := byID[o.id]
		if !ok {
			t.Errorf("the matrix has no %s", o.id)
			continue
		}
		delete(byID, o.id)
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
	if len(byID) > 0 {
		t.Errorf("there are no operations %v", byID)
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
