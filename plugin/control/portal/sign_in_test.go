package portal

import (
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/control/api"
)

// location returns the path that a page redirects to.
func (w *world) location(a shown) string {
	w.Helper()
	w.want(a, http.StatusSeeOther)
	return a.Header.Get("Location")
}

func TestATokenSignsInUntilItsHolderSignsOut(t *testing.T) {
	w := open(t)
	b := w.browser()
	if to := w.location(b.get(home)); to != signInPath {
		t.Errorf("without a session: %s", to)
	}
	w.want(b.get(signInPath), http.StatusOK, `<label for="token">`)
	a := b.post(signInPath, url.Values{"token": {" " + adminSecret + "\n"}})
	if to := w.location(a); to != home {
		t.Errorf("after signing in: %s", to)
	}
	cookie := a.Cookies()[0]
	if !cookie.HttpOnly || cookie.SameSite != http.SameSiteLaxMode || cookie.Path != "/" ||
		strings.Contains(cookie.Value, adminSecret) {
		t.Errorf("the cookie is %+v", cookie)
	}
	w.want(b.get(home), http.StatusOK, "<h1>Overview</h1>", "ann", "Sign out")
	if from := w.tokens.from; len(from) != 2 || !strings.HasPrefix(from[0], "127.0.0.1:") || from[1] != "" {
		t.Errorf("tokens are looked up for %q, want that of the session for no address", from)
	}
	if to := w.location(b.get(signInPath)); to != home {
		t.Errorf("the sign-in page with a session: %s", to)
	}
	if to := w.location(b.post("/portal/sign-out", nil)); to != signInPath {
		t.Errorf("after signing out: %s", to)
	}
	w.want(b.get(signInPath), http.StatusOK, signedOut)
	if a := w.want(b.get(signInPath), http.StatusOK); strings.Contains(a.text, signedOut) {
		t.Error("the notice is shown twice")
	}
	if to := w.location(b.do("GET", home, "", "Cookie", cookie.Name+"="+cookie.Value)); to != signInPath {
		t.Errorf("a copy of the cookie after signing out leads to %s", to)
	}
}

func TestARevokedTokenEndsItsSessionAndAChangedRoleCountsAtOnce(t *testing.T) {
	w := open(t)
	b := w.signedIn(adminSecret)
	w.tokens.set(adminSecret, api.Caller{Token: "ann", Role: api.Tenant, Org: "acme"})
	if to := w.location(b.get(home)); to != "/portal/org" {
		t.Errorf("as a tenant: %s", to)
	}
	w.tokens.set(adminSecret, api.Caller{})
	if to := w.location(b.get(home)); to != signInPath {
		t.Errorf("after the token was revoked: %s", to)
	}
	w.want(b.get(signInPath), http.StatusOK, tokenEnded)
	w.tokens.set(adminSecret, api.Caller{Token: "ann", Role: api.Admin})
	if to := w.location(b.get(home)); to != signInPath {
		t.Errorf("the session of a revoked token began again: %s", to)
	}
}

func TestWrongTokensGetOnePlainTextAndNoSession(t *testing.T) {
	w := open(t)
	for secret, want := range map[string]struct {
		status int
		text   string
		wait   string
	}{
		"": {http.StatusForbidden, wrongToken, ""}, "secret-guess": {http.StatusForbidden, wrongToken, ""},
		strings.Repeat("x", 300): {http.StatusForbidden, wrongToken, ""},
		`"><script>alert(1)`:     {http.StatusForbidden, wrongToken, ""},
		awaySecret:               {http.StatusServiceUnavailable, "Tokens cannot be checked at the moment", ""},
		manySecret:               {http.StatusTooManyRequests, "Too many unknown tokens", "2"},
		oftenSecret:              {http.StatusTooManyRequests, "Too many sign-ins with this token", "1"},
		panicSecret:              {http.StatusInternalServerError, "The log of the process has the reason", ""},
	} {
		a := w.want(w.browser().post(signInPath, url.Values{"token": {secret}}), want.status, want.text)
		if len(a.Cookies()) > 0 || secret != "" && strings.Contains(a.text, secret) || strings.Contains(a.text, "hunter2") {
			t.Errorf("%q: cookies %v in\n%s", secret, a.Cookies(), a.text)
		}
		if got := a.Header.Get("Retry-After"); got != want.wait {
			t.Errorf("%q: Retry-After %q, want %q", secret, got, want.wait)
		}
	}
}

func TestAPersonSignsInAsOftenAsAToken(t *testing.T) {
	w := open(t)
	r := signedInRequest(t, w.portal, adminSecret, home)
	for name, want := range map[string]int{"oidc:often": http.StatusTooManyRequests, "oidc:ann": http.StatusSeeOther} {
		a := httptest.NewRecorder()
		w.portal.startPerson(a, r, api.Caller{Token: name, Role: api.Admin}, home)
		if isOver := want != http.StatusSeeOther; a.Code != want || (a.Header().Get("Retry-After") == "1") != isOver {
			t.Errorf("%s: %d, want %d; headers %v", name, a.Code, want, a.Header())
		}
	}
}

func TestSigningInLeadsToThePageThatWasWantedButNeverElsewhere(t *testing.T) {
	w := open(t)
	for path, want := range map[string]string{
		"/portal/tenants?q=a+b":             "/portal/tenants?q=a+b",
		"https://evil.example/":             home,
		"//evil.example/portal/":            home,
		"/portal/\\evil.example":            home,
		"/portal//../..//evil.example":      home,
		"/portal/../v1/orgs":                home,
		"/portal/%2e%2e/v1/orgs":            home,
		"/portal/a/.%2E/%2e./v1/orgs":       home,
		"/portal/..":                        home,
		"/portal/a/../tenants":              "/portal/a/../tenants",
		"/v1/orgs":                          home,
		"javascript:alert(1)":               home,
		"/portal/\r\nSet-Cookie: a=b":       home,
		"http:/portal/":                     home,
		"/portal/%0d%0aSet-Cookie:%20a=b":   "/portal/%0d%0aSet-Cookie:%20a=b",
		"https://user@127.0.0.1:1/portal/x": home,
	} {
		b := w.browser()
		w.want(b.get(signInPath+"?next="+url.QueryEscape(path)), http.StatusOK)
		a := b.post(signInPath, url.Values{"token": {adminSecret}, "next": {path}})
		if to := w.location(a); to != want {
			t.Errorf("%q leads to %q, want %q", path, to, want)
		}
	}
	if to := w.location(w.browser().get("/portal/?a=b")); to != signInPath+"?next=%2Fportal%2F%3Fa%3Db" {
		t.Errorf("without a session: %s", to)
	}
}

func TestAWriteFromAnotherSiteIsDenied(t *testing.T) {
	w := open(t)
	form := url.Values{"token": {adminSecret}}.Encode()
	const kind = "application/x-www-form-urlencoded"
	for _, header := range [][]string{
		{"Sec-Fetch-Site", "cross-site"},
		{"Sec-Fetch-Site", "same-site"},
		{"Origin", "https://evil.example"},
		{"Origin", "null"},
		nil,
	} {
		for _, path := range []string{signInPath, "/portal/sign-out", home} {
			a := w.browser().do("POST", path, form, append([]string{"Content-Type", kind}, header...)...)
			if w.want(a, http.StatusForbidden, "another site"); len(a.Cookies()) > 0 {
				t.Errorf("%v: cookies %v", header, a.Cookies())
			}
		}
	}
	w.want(w.browser().do("POST", signInPath, form, "Content-Type", kind, "Origin", w.server.URL), http.StatusSeeOther)
	b := w.signedIn(adminSecret)
	w.want(b.do("POST", "/portal/sign-out", "", "Sec-Fetch-Site", "cross-site"), http.StatusForbidden)
	w.want(b.get(home), http.StatusOK)
}

func TestSigningInOverPlainHTTPIsDeniedUnlessOnThisMachine(t *testing.T) {
	w := open(t)
	for _, header := range [][]string{
		{"X-Forwarded-For", "192.0.2.1"}, {"X-Forwarded-Proto", "http"}, {"Forwarded", "for=192.0.2.1"},
	} {
		a := w.browser().do("POST", signInPath, url.Values{"token": {adminSecret}}.Encode(), append([]string{
			"Content-Type", "application/x-www-form-urlencoded", "Sec-Fetch-Site", "same-origin",
		}, header...)...)
		if w.want(a, http.StatusForbidden, "the connection is not encrypted"); len(a.Cookies()) > 0 {
			t.Errorf("%v: cookies %v", header, a.Cookies())
		}
	}
	a := w.browser().do("POST", signInPath, url.Values{"token": {adminSecret}}.Encode(), "X-Forwarded-Proto", "https",
		"Content-Type", "application/x-www-form-urlencoded", "Sec-Fetch-Site", "same-origin")
	w.want(a, http.StatusSeeOther)
	if c := a.Cookies(); len(c) != 1 || !c[0].Secure || !strings.HasPrefix(c[0].Name, "__Host-") {
		t.Errorf("behind a proxy with TLS: %v", c)
	}
}

func TestASessionEndsWithoutRequestsAndAtTheLatestAfterTwelveHours(t *testing.T) {
	now := time.Now()
	w := open(t, func(o *Options) { o.Now = func() time.Time { return now } })
	b := w.signedIn(adminSecret)
	for elapsed := time.Duration(0); elapsed < 11*time.Hour+40*time.Minute; elapsed += 20 * time.Minute {
		w.want(b.get(home), http.StatusOK)
		now = now.Add(20 * time.Minute)
	}
	w.want(b.get(home), http.StatusOK)
	now = now.Add(20 * time.Minute)
	if to := w.location(b.get(home)); to != signInPath {
		t.Errorf("after 12 hours: %s", to)
	}
	b = w.signedIn(adminSecret)
	now = now.Add(31 * time.Minute)
	if to := w.location(b.get(home)); to != signInPath {
		t.Errorf("after 31 minutes without a request: %s", to)
	}
}
