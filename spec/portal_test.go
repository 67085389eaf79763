package spec

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/await"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/browser"
)

// portal is a process that serves the portal, and a browser.
type portal struct {
	*plane
	*api
	node1   *node
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
	for org, tier := range map[string]string{
		"acme": "enterprise", "beta": "essentials", `<script>alert(1)</script>`: "enterprise",
	} {
		p.operate("tenant", "set", org, "--tier", tier, "--reason", `<b>"a reason"</b> & more`)
	}
	p.operate("override", "add", "--tenant", "acme", "--kind", "multiplier", "--factor", "2", "--policy", "year",
		"--expires-in", "30d", "--reason", "internal: a pilot", "--public-note", "a pilot")
	for role, name := range map[string]string{"admin": "ann", "viewer": "vic", "tenant:acme": "acme-portal"} {
		if p.tokens[role] = p.admin; role != "admin" {
			p.tokens[role] = p.token(name, role)
		}
	}
	p.node1 = p.node("node-1", p.dsn)
	for range 45 { // more than acme may send
		if _, err := p.node1.send("GET", "/records", "apikey", "alice"); err != nil {
			t.Fatal(err)
		}
	}
	p.api = p.serve("--keeper-database", p.dsn, "--webhook-allow-http", "--webhook-allow-private", "127.0.0.1")
	p.awaitAnswer(t, "/v1/orgs/acme/ratelimit/usage/history?step=1m", `"admitted":`)
	p.browser = browser.Start(t)
	return p
}

// awaitAnswer waits until the API answers with a text. A page that shows the same takes far more of the processor.
func (p *portal) awaitAnswer(t *testing.T, path, text string) {
	t.Helper()
	await.That(t, path+" to have "+text, func() bool {
		a, err := p.api.send(http.MethodGet, path, "")
		return err == nil && strings.Contains(a.Body, text)
	})
}

// tab opens a tab, and signs in as a role.
func (p *portal) tab(t *testing.T, role string, screen browser.Screen) *browser.Tab {
	t.Helper()
	tab := p.browser.Tab(t, screen)
	status := tab.Open(p.url + "/portal/")
	if status != http.StatusOK || !strings.HasPrefix(tab.Path(), "/portal/sign-in") {
		t.Fatalf("a caller who is not signed in sees %d at %s", status, tab.Path())
	}
	tab.Fill("#token", p.tokens[role])
	if status := tab.Click("main form button"); status != http.StatusOK {
		t.Fatalf("signing in as %s: %d at %s", role, status, tab.Path())
	}
	return tab
}

func TestThePortalServesOperatorsAndTenants(t *testing.T) {
	t.Parallel()
	p := newPortal(t)
	t.Run("a tenant's open pages follow its denials and no others", p.testLive)
	t.Run("denials of a node and of checks are on the pages", p.testDenials)
	t.Run("the id of a denied request leads to why it was denied", p.testRequest)
	t.Run("an operator gives a tenant more", p.testOperator)
	t.Run("a tenant makes, copies, uses and revokes a token", p.testTenant)
	t.Run("a tenant makes and tests a webhook", p.testTenantWebhook)
	t.Run("pages work without JavaScript", p.testWithoutScript)
	t.Run("the fleet follows an outage of Redis by itself", p.testOutage)
}

// testOperator gives acme a higher limit in three clicks after the search, and sees that its node enforces it.
func (p *portal) testOperator(t *testing.T) {
	tab := p.tab(t, "admin", browser.Desktop)
	tab.Open(p.url + "/portal/tenants")
	tab.Fill("#q", "acme")
	tab.Click("form[role=search] button")
	tab.Click(`a[href="/portal/tenants/acme"]`)
	tab.Click(`a[href="/portal/tenants/acme/overrides/new"]`)
	tab.Fill("#kind", "custom_limit")
	tab.Fill("#policy", "year")
	tab.Fill("#limit", "2,000,000")
	tab.Fill("#reason", "launch week")
	tab.Click("form.fields button")
	if preview := tab.Text("main"); !strings.Contains(preview, "→ 2,000,000") {
		t.Fatalf("the preview does not name the limit: %s", preview)
	}
	tab.Click("section form button")
	if path := tab.Path(); !strings.HasPrefix(path, "/portal/tenants/acme") {
		t.Fatalf("after an override the operator is at %s: %s", path, tab.Text("main"))
	}
	await.That(t, "the page to say that the nodes enforce it", func() bool {
		return strings.Contains(tab.Text("main"), "All live nodes enforce it")
	})
	await.That(t, "the node to enforce it", func() bool {
		a, err := p.node1.send("GET", "/records", "apikey", "alice")
		return err == nil && a.Status == http.StatusOK
	})
	if faults := tab.Faults(); len(faults) > 0 {
		t.Errorf("faults: %q", faults)
	}
}

// testRequest finds out why a request was denied, as an operator by the search, and as the tenant on its page.
func (p *portal) testRequest(t *testing.T) {
	denied, err := p.node1.send("GET", "/records", "apikey", "alice")
	id := denied.Header.Get("X-Kong-Request-Id")
	if err != nil || denied.Status != http.StatusTooManyRequests || id == "" {
		t.Fatalf("%d with the id %q (%v)", denied.Status, id, err)
	}
	p.awaitAnswer(t, "/v1/ratelimit/denials/"+id, `"year"`)
	operator, tenant := p.tab(t, "admin", browser.Desktop), p.tab(t, "tenant:acme", browser.Phone)
	operator.Fill("header [name=q]", id)
	operator.Click("header form.row button")
	tenant.Open(p.url + "/portal/org/denials")
	tenant.Fill("#request_id", id)
	tenant.Click("main form button")
	for tab, texts := range map[*browser.Tab][]string{
		operator: {"year: 40 per", "quota", "What would admit it"}, tenant: {"year", "What would have admitted it"},
	} {
		for _, text := range texts {
			if shown := tab.Text("main"); !strings.Contains(shown, text) {
				t.Errorf("%s: no %q: %s", tab.Path(), text, shown)
			}
		}
		if faults := append(tab.Faults(), tab.Audit()...); len(faults) > 0 {
			t.Errorf("%s: faults: %q", tab.Path(), faults)
		}
	}
}

// testTenant makes a token, copies it, signs in with it, and revokes it.
func (p *portal) testTenant(t *testing.T) {
	tab := p.tab(t, "tenant:acme", browser.Phone)
	if tab.Path() != "/portal/org" {
		t.Errorf("a tenant begins at %s", tab.Path())
	}
	tab.Click(`nav a[href="/portal/org/tokens"]`)
	tab.Fill("#name", "billing")
	tab.Click(`form[action="/portal/org/new/tokens"] button`)
	tab.Press("[data-copy]")
	await.That(t, "the button to say that it has copied", func() bool { return tab.Text("[data-copy]") == "Copied" })
	first := tab.Pasted()
	if shown := browser.Eval[string](tab, `document.querySelector("#secret").value`); first != shown || first == "" {
		t.Fatalf("the clipboard has %q, and the page shows %q", first, shown)
	}
	if faults := append(tab.Faults(), tab.Audit()...); len(faults) > 0 {
		t.Errorf("faults: %q", faults)
	}
	if got := p.api.as(first).status("/v1/orgs/acme/ratelimit/usage"); got != http.StatusOK {
		t.Errorf("the new token reads its org with status %d", got)
	}
	if got := p.api.as(first).status("/v1/orgs/beta/ratelimit/usage"); got != http.StatusForbidden {
		t.Errorf("the new token reads another org with status %d", got)
	}
	p.tokens["billing"] = first
	own := p.tab(t, "billing", browser.Phone)
	own.Open(p.url + "/portal/org/tokens")
	if shown := own.Text("tbody tr"); !strings.Contains(shown, "billing signed in with it") {
		t.Errorf("the list does not know the token in use: %s", shown)
	}
	tab.Open(p.url + "/portal/org/tokens")
	browser.Eval[bool](tab, `document.querySelectorAll("details").forEach(d => d.open = true), true`)
	tab.Click(`form[action="/portal/org/tokens/billing/revoke"] button`)
	await.That(t, "the revoked token to be denied", func() bool {
		return p.api.as(first).status("/v1/orgs/acme/ratelimit/usage") == http.StatusUnauthorized
	})
}

// testTenantWebhook makes a webhook, sends a test event, and sees that it was delivered.
func (p *portal) testTenantWebhook(t *testing.T) {
	r := newHookReceiver(t)
	tab := p.tab(t, "tenant:acme", browser.Desktop)
	tab.Click(`nav a[href="/portal/org/webhooks"]`)
	tab.Fill("#url", r.URL)
	tab.Click(`form[action="/portal/org/new/webhooks"] button`)
	r.mu.Lock()
	r.secret = browser.Eval[string](tab, `document.querySelector("#secret").value`)
	r.mu.Unlock()
	tab.Click("main a.button")
	tab.Click("tbody a")
	at := tab.Path()
	tab.Click(`form[action$="/test"] button`)
	if shown := tab.Text("main"); tab.Path() != at || !strings.Contains(shown, "A test event is on its way") {
		t.Errorf("after the test: %s: %s", tab.Path(), shown)
	}
	await.That(t, "the page to show the attempt", func() bool {
		tab.Open(p.url + at)
		shown := tab.Text("tbody tr")
		return strings.Contains(shown, "delivered") && strings.Contains(shown, "204")
	})
	if faults := append(tab.Faults(), tab.Audit()...); len(faults) > 0 {
		t.Errorf("faults: %q", faults)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.events) == 0 {
		t.Error("the receiver got nothing")
	}
}

// testOutage sees on an open page that Redis does not answer, and that it answers again.
func (p *portal) testOutage(t *testing.T) {
	tab := p.tab(t, "viewer", browser.Desktop)
	tab.Open(p.url + "/portal/fleet")
	if shown := tab.Text("main"); !strings.Contains(shown, "0 degraded") {
		t.Errorf("before the outage the fleet is\n%s", shown)
	}
	p.redis.Kill()
	const away = "does not answer since 2"
	await.That(t, "the page to show the outage", func() bool { return strings.Contains(tab.Text("main"), away) })
	p.redis.Restart(t)
	await.That(t, "the page to show its end", func() bool { return strings.Contains(tab.Text("main"), "0 degraded") })
	if faults := append(tab.Faults(), tab.Audit()...); len(faults) > 0 {
		t.Errorf("faults: %q", faults)
	}
}

// testWithoutScript reads the main pages without JavaScript.
func (p *portal) testWithoutScript(t *testing.T) {
	screen := browser.Desktop
	screen.NoScript = true
	tab := p.tab(t, "admin", screen)
	for path, text := range map[string]string{"fleet": "node-1", "tenants?q=ac": "acme", "tenants/acme": "year"} {
		tab.Open(p.url + "/portal/" + path)
		if shown := tab.Text("main"); !strings.Contains(shown, text) {
			t.Errorf("/portal/%s lacks %q: %s", path, text, shown)
		}
	}
}

// hasRow returns a script that reports whether a table of the page has a row with a text.
func hasRow(text string) string {
	return fmt.Sprintf(`[...document.querySelectorAll("main tbody tr")].some(row => row.innerText.includes(%q))`, text)
}

// testLive sees on open pages of a tenant that a request was denied. The pages show nothing of another tenant, whose
// requests were denied before, and what has the focus keeps it.
func (p *portal) testLive(t *testing.T) {
	operator := p.tab(t, "admin", browser.Desktop)
	operator.Open(p.url + "/portal/denials")
	denials, usage := p.tab(t, "tenant:acme", browser.Desktop), p.tab(t, "tenant:acme", browser.Phone)
	p.awaitAnswer(t, "/v1/orgs/acme/ratelimit/denials", "records")
	pages := map[string]*browser.Tab{"denials": denials, "usage?span=7d": usage} // today's usage ends at midnight UTC
	for path, tab := range pages {
		await.That(t, "the page of "+path+" to show the requests at first", func() bool {
			tab.Open(p.url + "/portal/org/" + path)
			return browser.Eval[bool](tab, hasRow("records"))
		})
		if browser.Eval[bool](tab, hasRow("search")) {
			t.Fatalf("the page of %s shows an endpoint before it had requests", path)
		}
		browser.Eval[bool](tab, "window.isSame = true")
	}
	const focused = `a[href$="endpoint=records"]`
	browser.Eval[bool](denials, "document.querySelector('"+focused+"').focus(), true")

	p.operate("override", "add", "--tenant", "beta", "--kind", "ban", "--expires-in", "1h", "--reason", "a spec")
	p.sendDenied(t, "beth")
	await.That(t, "an operator's page to show the denial of beta", func() bool {
		return browser.Eval[bool](operator, hasRow("beta"))
	})
	p.sendDenied(t, "alice")
	for path, tab := range pages {
		await.That(t, "the page of "+path+" to show the denial", func() bool {
			return browser.Eval[bool](tab, hasRow("search"))
		})
		for _, text := range []string{"beta", "banned"} {
			if shown := tab.Text("main"); strings.Contains(shown, text) {
				t.Errorf("the page of %s shows %q of another tenant:\n%s", path, text, shown)
			}
		}
		if !browser.Eval[bool](tab, "window.isSame === true") {
			t.Errorf("the page of %s was loaded again", path)
		}
	}
	if !browser.Eval[bool](denials, "document.activeElement.matches('"+focused+"')") {
		t.Error("another element has the focus after a change")
	}
	for _, tab := range []*browser.Tab{operator, denials, usage} {
		if faults := append(tab.Faults(), tab.Audit()...); len(faults) > 0 {
			t.Errorf("faults of %s: %q", tab.Path(), faults)
		}
	}
}

// sendDenied sends requests of a credential to an endpoint without earlier requests until the node denies one.
func (p *portal) sendDenied(t *testing.T, key string) {
	t.Helper()
	await.That(t, "the node to deny "+key, func() bool {
		a, err := p.node1.send("GET", "/search", "apikey", key)
		return err == nil && a.Status == http.StatusTooManyRequests
	})
}

// testDenials reads, as an operator and as the tenant, what the node has denied and what a check denies.
func (p *portal) testDenials(t *testing.T) {
	var d decision
	p.api.want(http.StatusOK, &d, http.MethodPost, check, `{"org_id":"acme","user_id":"u_1","endpoint":"export"}`)
	if d.Allowed {
		t.Fatal("a check of acme is admitted, although its limit is used up")
	}
	endpoints := []string{"records", "export"} // of the node, and of the check
	for _, endpoint := range endpoints {
		p.awaitAnswer(t, "/v1/orgs/acme/ratelimit/denials?endpoint="+endpoint, `"year"`)
	}
	for role, page := range map[string]string{
		"admin": "denials?tenant=acme&endpoint=", "tenant:acme": "org/denials?endpoint=",
	} {
		tab := p.tab(t, role, browser.Desktop)
		for _, endpoint := range endpoints {
			await.That(t, role+" reads the denials of "+endpoint, func() bool {
				return tab.Open(p.url+"/portal/"+page+endpoint) == http.StatusOK && browser.Eval[bool](tab,
					`[...document.querySelectorAll("tbody tr")].some(row => row.innerText.includes("year"))`)
			})
		}
		tab.Open(p.url + "/portal/" + page + "others")
		if browser.Eval[bool](tab, `document.querySelector("tbody tr") !== null`) {
			t.Errorf("%s reads denials of an endpoint that has none: %s", role, tab.Text("main"))
		}
	}
}
