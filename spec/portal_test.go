package spec

import (
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/browser"
)

// portal is a process that serves the portal, and a browser.
type portal struct {
	*plane
	*api
	browser *browser.Browser
	tokens  map[string]string // role → the secret of its token
}


// newPortal starts a portal over data: tenants with usage and denials, overrides, one of them named like markup, and an
// open candidate.
func newPortal(t *testing.T) *portal {
	t.Helper()
	p := &portal{plane: planeOf(t, `tiers: [{name: enterprise, limits: [
		{name: year, scope: tenant, limit: 20, window_size: 31536000, algorithm: fixed_window},
		{name: each, scope: user, limit: 1000, window_size: 31536000}]}, {name: essentials}]`), tokens: map[string]string{}}
	p.write(`INSERT INTO rate_limiter.tiers (name) VALUES ('enterprise'), ('essentials')`)
	for org, tier := range map[string]string{"acme": "enterprise", "beta": "essentials", `<script>alert(1)</script>`: "enterprise"} {
		p.operate("tenant", "set", org, "--tier", tier, "--reason", `<b>"a reason"</b> & more`)
	}
	p.operate("override", "add", "--tenant", "acme", "--kind", "multiplier", "--factor", "2", "--policy", "year",
		"--expires-in", "30d", "--reason", "internal: a pilot", "--public-note", "a pilot")
	for role, name := range map[string]string{"admin": "ann", "viewer": "vic", "tenant:acme": "acme-portal"} {
		if p.tokens[role] = p.admin; role != "admin" {
			p.tokens[role] = p.token(name, role)
		}
	}
	n := p.node("node-1", p.dsn)
	for range 45 { // more than acme may send
		if _, err := n.send("GET", "/records", "apikey", "alice"); err != nil {
			t.Fatal(err)
		}
	}
	p.api = p.serve("--keeper-database", p.dsn)
	await(t, "the usage of acme", func() bool {
		a, err := p.api.send(http.MethodGet, "/v1/orgs/acme/ratelimit/usage/history?step=1m", "")
		return err == nil && strings.Contains(a.Body, `"admitted":`)
	})
	p.browser = browser.Start(t)
	return p
}

// tab opens a tab, and signs in as a role.
func (p *portal) tab(t *testing.T, role string, screen browser.Screen) *browser.Tab {
	t.Helper()
	tab := p.browser.Tab(t, screen)
	if status := tab.Open(p.url + "/portal/"); status != http.StatusOK || !strings.HasPrefix(tab.Path(), "/portal/sign-in") {
		t.Fatalf("a caller who is not signed in sees %d at %s", status, tab.Path())
	}
	tab.Fill("#token", p.tokens[role])
	if status := tab.Click("main form button"); status != http.StatusOK {
		t.Fatalf("signing in as %s: %d at %s", role, status, tab.Path())
	}
	return tab
}

// pagesOf has the paths of the portal that each role sees.
var pagesOf = map[string][]string{
	"admin": {
		"", "fleet", "tenants", "tenants?q=ac", "tenants/acme", "tenants/acme/usage", "tenants/acme/overrides/new", "top",
		"near-limit", "denials", "candidates", "abuse", "audit", "tenants/" + url.PathEscape(`<script>alert(1)</script>`),
	},
	"viewer":      {"tenants/acme"},
	"tenant:acme": {"org", "org/usage", "org/denials", "org/webhooks", "org/tokens"},
}

func TestEveryPageOfThePortalIsSoundForEachOfItsRoles(t *testing.T) {
	t.Parallel()
	p := newPortal(t)
	for role, paths := range pagesOf {
		for _, screen := range []browser.Screen{browser.Desktop, browser.Phone, browser.Dark} {
			tab := p.tab(t, role, screen)
			tab.Faults()
			for _, path := range paths {
				if status := tab.Open(p.url + "/portal/" + path); status != http.StatusOK {
					t.Errorf("%s sees %d at /portal/%s", role, status, path)
					continue
				}
				if faults := append(tab.Faults(), tab.Audit()...); len(faults) > 0 {
					t.Errorf("%s, %s: /portal/%s:\n%s", role, screen.Name, path, strings.Join(faults, "\n"))
				}
				keep(t, tab, screen.Name+"-"+role+"-"+path)
			}
		}
	}
}

// keep writes a screenshot into the folder of the environment variable SCREENSHOTS, if it is set.
func keep(t *testing.T, tab *browser.Tab, name string) {
	t.Helper()
	dir := os.Getenv("SCREENSHOTS")
	if dir == "" {
		return
	}
	name = strings.Map(func(r rune) rune {
		if strings.ContainsRune("/?=:<>()%", r) {
			return '-'
		}
		return r
	}, name)
	if err := os.WriteFile(filepath.Join(dir, name+".png"), tab.Screenshot(), 0o644); err != nil {
		t.Fatal(err)
	}
}
