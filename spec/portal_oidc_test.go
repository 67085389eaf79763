package spec

import (
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/await"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/browser"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/freeport"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/oidctest"
)

// people are the accounts of the provider.
var people = map[string]map[string]any{
	"ann": {"roles": []string{"staff", "ratelimit:admin"}, "email": "ann@example.org"},
	"cat": {"roles": "ratelimit:tenant:acme", "preferred_username": "cat"},
	"dan": {"roles": []string{"staff"}, "email": "dan@example.org"},
}

// oidcPortal is a process that serves the portal, the provider that signs people in there, and a tab of a browser.
type oidcPortal struct {
	*plane
	*api
	provider *oidctest.Provider
	tab      *browser.Tab
}

// newOIDCPortal starts a portal while its provider is away.
func newOIDCPortal(t *testing.T) *oidcPortal {
	t.Helper()
	p := &oidcPortal{plane: newPlane(t)}
	p.write(`INSERT INTO rate_limiter.tiers (name) VALUES ('enterprise'), ('essentials')`)
	p.operate("tenant", "set", "acme", "--tier", "enterprise", "--reason", "a spec")
	address := freeport.Address(t)
	back := "http://" + address + "/portal/oidc/callback"
	p.provider = oidctest.Start(t, oidctest.Config{ClientID: "portal", RedirectURL: back, Accounts: people})
	p.provider.Stop()
	p.api = p.launch("--listen", address, "--portal-oidc-issuer", p.provider.Issuer, "--portal-oidc-client-id", "portal",
		"--portal-oidc-redirect-url", back)
	p.api.url = "http://" + address
	await.That(t, "the API is ready", func() bool { return p.status("/readyz") == http.StatusOK })
	p.tab = browser.Start(t).Tab(t, browser.Desktop)
	return p
}

// Links of the sign-in page.
const (
	toProvider     = "a.button"
	anotherAccount = `a[href$="&switch"]`
)

// fill fills in the provider's forms, the name and the consent, and returns the status of the page after them.
func (p *oidcPortal) fill(account string) int64 {
	p.tab.Fill("input[name=login]", account)
	p.tab.Fill("input[name=password]", "any")
	p.tab.Click("button[type=submit]")
	return p.tab.Click("button[type=submit]")
}

// want fails the test unless the tab is at a path of the portal with a text in a part of the page.
func (p *oidcPortal) want(t *testing.T, path, selector, text string) {
	t.Helper()
	shown, at := p.tab.Text(selector), p.tab.Location()
	if at != p.api.url+path || !strings.Contains(shown, text) {
		t.Fatalf("the browser is at %s and shows %q, want %s%s and %q", at, shown, p.api.url, path, text)
	}
}

// signOut signs out, and checks that the pages are closed.
func (p *oidcPortal) signOut(t *testing.T) {
	t.Helper()
	p.tab.Click(`form[action="/portal/sign-out"] button`)
	p.want(t, "/portal/sign-in", "main", "You are signed out.")
	p.tab.Open(p.api.url + "/portal/audit")
	p.want(t, "/portal/sign-in?next=%2Fportal%2Faudit", "h1", "Sign in")
}

func TestPeopleSignInToThePortalWithOpenIDConnect(t *testing.T) {
	t.Parallel()
	p := newOIDCPortal(t)
	p.testProviderAway(t)
	p.testOperatorSignsIn(t)
	p.testNextStaysOnTheSite(t)
	p.signOut(t)
	p.testTenantSignsIn(t)
	p.signOut(t)
	p.provider.Restart() // with other keys
	p.tab.Click(toProvider)
	if status := p.fill("ann"); status != http.StatusOK {
		t.Errorf("after the provider has other keys: status %d", status)
	}
	p.want(t, "/portal/audit", ".who", "oidc:ann@example.org")
}

// testProviderAway begins while the provider does not answer, and ends when it does.
func (p *oidcPortal) testProviderAway(t *testing.T) {
	p.tab.Open(p.api.url + "/portal/audit")
	if status := p.tab.Click(toProvider); status != http.StatusServiceUnavailable {
		t.Fatalf("while the provider is away: status %d", status)
	}
	const away = "The identity provider is not available at the moment. Try again in a minute, or sign in with a token."
	if fault := p.tab.Text("[role=alert]"); fault != away {
		t.Errorf("while the provider is away: %s", fault)
	}
	p.tab.Fill("#token", p.admin)
	if status := p.tab.Click("main form button"); status != http.StatusOK {
		t.Errorf("with a token meanwhile: status %d", status)
	}
	p.want(t, "/portal/", ".who", "ann")
	p.signOut(t)
	p.provider.Restart()
	await.That(t, "the provider is used again", func() bool {
		p.tab.Open(p.api.url + "/portal/sign-in?next=%2Fportal%2Faudit")
		return p.tab.Click(toProvider) == http.StatusOK
	})
}

// testOperatorSignsIn is at the provider's form. It denies a person without a role, who chooses another account.
func (p *oidcPortal) testOperatorSignsIn(t *testing.T) {
	if status := p.fill("dan"); status != http.StatusForbidden {
		t.Errorf("without a role: status %d", status)
	}
	if fault := p.tab.Text("[role=alert]"); !strings.Contains(fault, "You are dan@example.org") {
		t.Errorf("without a role: %s", fault)
	}
	p.tab.Open(p.api.url + "/portal/sign-in?next=%2Fportal%2Faudit")
	p.tab.Click(anotherAccount)
	if status := p.fill("ann"); status != http.StatusOK {
		t.Errorf("as an operator: status %d", status)
	}
	p.want(t, "/portal/audit", ".who", "oidc:ann@example.org")
	p.tab.Faults() // of the provider's pages, whose fonts cannot be had
	p.tab.Open(p.api.url + "/portal/tenants/acme/overrides/new")
	p.tab.Fill("#kind", "multiplier")
	p.tab.Fill("#factor", "2")
	p.tab.Fill("#reason", "a launch")
	p.tab.Click("form.fields > p > button")
	p.tab.Click("section form button")
	p.tab.Open(p.api.url + "/portal/audit")
	p.want(t, "/portal/audit", "main", "oidc:ann@example.org")
	if faults := p.tab.Faults(); len(faults) > 0 {
		t.Errorf("faults: %q", faults)
	}
}

// testNextStaysOnTheSite signs in again, without a form because the provider has a session, to pages of others.
func (p *oidcPortal) testNextStaysOnTheSite(t *testing.T) {
	for next, want := range map[string]string{
		"/portal/top":                          "/portal/top",
		"https://evil.example/portal/":         "/portal/",
		"//evil.example/portal/":               "/portal/",
		`/\evil.example/portal/`:               "/portal/",
		`/portal/..\..\\evil.example/`:         "/portal/",
		"/portal/\t/evil.example/":             "/portal/",
		"javascript:alert(1)":                  "/portal/",
		"/v1/ratelimit/policies":               "/portal/",
		"/portal/" + strings.Repeat("x", 2000): "/portal/",
	} {
		p.tab.Open(fmt.Sprintf("%s/portal/oidc/start?next=%s", p.api.url, url.QueryEscape(next)))
		p.want(t, want, ".who", "oidc:ann@example.org")
	}
	p.tab.Open(p.api.url + "/portal/oidc/start?next=" + url.QueryEscape("/portal/..//evil.example/"))
	if at := p.tab.Location(); !strings.HasPrefix(at, p.api.url+"/") {
		t.Errorf("a path with dots leads to %s", at)
	}
	p.tab.Open(p.api.url + "/portal/audit")
}

// testTenantSignsIn chooses another account than the one that the provider has a session of.
func (p *oidcPortal) testTenantSignsIn(t *testing.T) {
	p.tab.Open(p.api.url + "/portal/sign-in")
	p.tab.Click(anotherAccount)
	if status := p.fill("cat"); status != http.StatusOK {
		t.Errorf("as a tenant: status %d", status)
	}
	p.want(t, "/portal/org", ".who", "oidc:cat")
	for path, want := range map[string]int64{
		"org/usage": http.StatusOK, "org/denials": http.StatusOK, "fleet": http.StatusForbidden,
		"tenants/beta": http.StatusForbidden, "audit": http.StatusForbidden,
	} {
		if status := p.tab.Open(p.api.url + "/portal/" + path); status != want {
			t.Errorf("a tenant sees %d at /portal/%s, want %d", status, path, want)
		}
	}
}
