package portal

import (
	"fmt"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	chromium "github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/browser"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/control/api"
)

// Screens of screenshots: two widths, light and dark. They are in the order of docs/screenshots.md.
var screens = []chromium.Screen{
	{Name: "wide", Width: 1400, Height: 900},
	{Name: "wide-dark", Width: 1400, Height: 900, Dark: true},
	{Name: "phone", Width: 390, Height: 844, Mobile: true},
	{Name: "phone-dark", Width: 390, Height: 844, Mobile: true, Dark: true},
}

// report has all nodes report that they enforce the newest version.
const report = `UPDATE rate_limiter.nodes SET reported_at = now(), version = (SELECT version FROM rate_limiter.version)`

const deniedRequest = "23362be3186b8717e61304664ec43cb1"

// openFull is openBusy with something on every page, and with texts that are long.
func openFull(t *testing.T) *realWorld {
	t.Helper()
	w := openBusy(t, nil)
	const long = "GET /v1/organizations/{organization}/reports/annual-financial-statements/export"
	for _, write := range [][3]string{
		{"PUT", "/v1/ratelimit/policies", `{"name":"daily","tier":"basic","limit":450000,"window":"1d","reason":"a test"}`},
		{"PUT", "/v1/ratelimit/costs", `{"endpoint":"POST /v1/records/export","cost":25,"reason":"a test"}`},
		{"POST", "/v1/ratelimit/candidates", `{"name":"july","reason":"smaller days for the basic tier"}`},
		{"PUT", "/v1/ratelimit/candidates/july/policies", `{"name":"daily","tier":"basic","limit":300000,"window":"1d"}`},
		{"PUT", "/v1/ratelimit/prices", `{"model":"gpt-4o*","prompt":"2.50","completion":"10","reason":"the list of July"}`},
		{"PUT", "/v1/ratelimit/prices", `{"model":"claude-sonnet-4-20250514","prompt":"3","completion":"15","reason":"new"}`},
		{"POST", "/v1/ratelimit/check", `{"org_id":"acme","cost":5600}`},
		{"POST", "/v1/orgs/acme/ratelimit/webhooks", `{"url":"https://example.com/webhooks/limits","reason":"a test"}`},
		{"POST", "/v1/orgs/acme/tokens", `{"name":"billing-job","reason":"a test"}`},
		{"POST", "/v1/ratelimit/tokens", `{"name":"billing-job","role":"viewer","reason":"a test"}`},
	} {
		w.write(write[0], write[1], write[2])
	}
	w.exec(`INSERT INTO rate_limiter.webhook_deliveries (id, webhook, events, body, state, created_at, due_at, tries,
			status, error, tried_at)
		SELECT 'd' || i, w.id, 1, '{}', (ARRAY['delivered', 'waiting', 'failed'])[1 + i % 3], now() - i * interval '1 hour',
			now() + interval '5 minutes', i, CASE WHEN i % 3 = 0 THEN 204 ELSE 503 END,
			CASE WHEN i % 3 = 0 THEN '' ELSE 'the receiver answered 503 Service Unavailable' END, now() - i * interval '1 hour'
		FROM rate_limiter.webhooks w, generate_series(1, 9) i`)
	w.exec(`INSERT INTO rate_limiter.recent_denials (login, node, event, at, tenant, endpoint, policy, scope, "limit",
			window_size, reason, shadow, count, tenant_count, "user", ip, retry_after, tier, policy_for, cost, remaining,
			request_ids)
		SELECT 'node', 'edge-1', i::text, now() - i * i * interval '7 seconds', (ARRAY['acme', 'globex', 'stark-industries',
			'cyberdyne-systems'])[1 + i % 4], CASE WHEN i % 3 = 0 THEN '` + long + `' WHEN i % 7 = 1 THEN '' ELSE
			'GET /v1/records' END, (ARRAY['minute', 'daily'])[1 + i % 2], 'tenant', CASE WHEN i % 2 = 0 THEN 5000 ELSE
			500000 END, CASE WHEN i % 2 = 0 THEN 60 ELSE 86400 END, 'quota', i % 11 = 0, i, i, '', '', 60, 'pro',
			'tier', 1, 0, CASE WHEN i = 4 THEN ARRAY['` + deniedRequest + `'] END
		FROM generate_series(1, 90) i`)
	w.exec(`INSERT INTO rate_limiter.abuse_tenants (tenant, state, mode, reason, scored_at)
		SELECT name, jsonb_build_object('step', step), 'enforce', 'denied 90 % of its requests for 12 minutes', now()
		FROM (VALUES ('acme', 'warn'), ('cyberdyne-systems', 'half')) v (name, step)`)
	w.exec(`INSERT INTO rate_limiter.candidate_sources (candidate, source, login, last_seq, first_at, last_at)
		VALUES ('july', 'edge-1', 'kong', 1, now() - interval '3 hours', now())`)
	w.exec(`INSERT INTO rate_limiter.candidate_counts (candidate, tenant, endpoint, policy, requests, active_only,
			candidate_only, "both", examples, first_at, last_at)
		SELECT 'july', t, '` + long + `', p, 1000, 3, 40, 5, '[]', now(), now()
		FROM unnest(ARRAY['acme', 'globex', 'stark-industries']) t, unnest(ARRAY['', 'daily']) p`)
	return w
}

// view is a page to look at, behind /portal/. Without a name there is no screenshot of it.
type view struct{ name, path string }

// viewsOf returns all pages that a role reads, and some more views of them.
func viewsOf(role api.Role) (views []view) {
	sample := strings.NewReplacer("{$}", "", "/candidates/{name}", "/candidates/july", "/tiers/{name}", "/tiers/pro",
		"/tokens/{name}", "/tokens/billing-job", "{org}", "acme", "{id}", "1")
	one := strings.NewReplacer("{$}", "overview", "ies/{id}", "y", "s/{id}", "", "s/{name}", "", "s/{org}", "", "/", "-")
	for _, page := range pages() {
		method, path, _ := strings.Cut(page.Pattern, " ")
		isPart := path == "/portal/reach" || path == "/portal/search" // of a page, or leads to one
		if method != http.MethodGet || !slices.Contains(page.For, role) || isPart {
			continue
		}
		name, path := one.Replace(strings.TrimPrefix(path, home)), sample.Replace(path)
		views = append(views, view{name, strings.TrimPrefix(path, home)})
	}
	if role == api.Tenant {
		views[0].name = "" // leads to the next
		return append(views, view{"org-usage-month", "org/usage?span=30d"},
			view{"", "org/denials?endpoint=GET+/v1/records"}, view{"", "nowhere"})
	}
	return append(views, view{"", "?range=1h"}, view{"overview-month", "?range=30d"},
		view{"tenant-policy", "tenants/acme?policy=daily"},
		view{"", "tenants/globex?range=7d"}, view{"", "denials?tenant=acme"}, view{"denials-list", "denials?view=list"},
		view{"denied-request", "denials?request_id=" + deniedRequest}, view{"", "tenants?sort=denied&range=30d"},
		view{"", "candidates/july?policy=daily"}, view{"", "audit?kind=override"},
		view{"", "tenants/" + strings.Repeat("x", 120)}, view{"", "tenants/" + url.PathEscape("<script>alert(1)</script>")},
		view{"", "denials?request_id=unknown"}, view{"", "tenants?q=ac"}, view{"not-found", "nowhere"})
}

// make screenshots runs this test with a folder for the screenshots.
func TestEveryPageIsRightOnEveryScreen(t *testing.T) {
	t.Parallel()
	w := openFull(t)
	b := chromium.Start(t)
	var names []string
	for _, role := range []api.Role{api.Admin, api.Tenant} {
		tab := b.Tab(t, screens[0])
		check := func(of view) {
			if !slices.Contains(names, of.name) && of.name != "" {
				names = append(names, of.name)
			}
			checkScreens(t, tab, of)
		}
		tab.Open(w.server.URL + "/portal/")
		check(view{"sign-in", "sign-in"})
		tab.Fill("#token", map[api.Role]string{api.Admin: adminSecret, api.Tenant: acmeSecret}[role])
		require.EqualValues(t, http.StatusOK, tab.Click("main form button"))
		for _, of := range viewsOf(role) {
			w.exec(report)
			status := tab.Open(w.server.URL + "/portal/" + of.path)
			if of.path == "nowhere" {
				tab.Faults() // the browser logs the status
			} else if status != http.StatusOK {
				t.Errorf("/portal/%s: %d: is the sample of its parameter known?", of.path, status)
			}
			check(of)
		}
		if role == api.Admin {
			tab.Open(w.server.URL + "/portal/tenants/acme/overrides/new")
			for field, value := range map[string]string{
				"kind": "custom_limit", "policy": "daily", "limit": "2,000,000", "reason": "launch week",
			} {
				tab.Fill("main [name="+field+"]", value)
			}
			require.EqualValues(t, http.StatusOK, tab.Click("main form button:not(.quiet)"))
			check(view{"override-preview", "tenants/acme/overrides/new"})
		}
	}
	listScreens(t, names)
}

// checkScreens audits the page of a tab on all screens, and leaves it on the first.
func checkScreens(t *testing.T, tab *chromium.Tab, of view) {
	t.Helper()
	for _, screen := range screens {
		if screen.Dark && screen.Mobile && os.Getenv("SCREENSHOTS") == "" {
			continue // the widths of one, the colors of the other
		}
		tab.Show(screen)
		assert.Empty(t, append(tab.Faults(), tab.Audit()...), "%s: /portal/%s", screen.Name, of.path)
		if of.name != "" {
			keepScreen(t, tab, of.name+"-"+screen.Name)
		}
	}
	tab.Show(screens[0])
}

// listScreens writes the page of docs that shows the screenshots.
func listScreens(t *testing.T, names []string) {
	t.Helper()
	dir := os.Getenv("SCREENSHOTS")
	if dir == "" {
		return
	}
	list := "# Screenshots\n\nEvery page of the [portal](portal.md), wide and on a phone, light and dark, with example data.\n`make " +
		"screenshots` takes them. Long pages are cut off. The pages of tenants begin with `org`.\n\n" +
		"| page | wide | wide, dark | phone | phone, dark |\n|---|---|---|---|---|\n"
	for _, name := range names {
		list += "| " + name
		for _, screen := range screens {
			file := "img/pages/" + name + "-" + screen.Name + ".webp"
			width := map[bool]int{false: 240, true: 100}[screen.Mobile]
			list += fmt.Sprintf(` | <a href="%[1]s"><img src="%[1]s" width="%[2]d" alt="%[3]s, %[4]s"></a>`,
				file, width, name, screen.Name)
		}
		list += " |\n"
	}
	require.NoError(t, os.WriteFile(filepath.Join(dir, "screenshots.md"), []byte(list), 0o644))
}

// On paper, from a dark screen, the pages of usage are light, in the width of the paper, and without forms.
func TestUsageIsPrinted(t *testing.T) {
	t.Parallel()
	w := openBusy(t, nil)
	b := chromium.Start(t)
	for name, path := range map[string]string{
		"tenant-print": "tenants/acme?policy=daily", "org-usage-print": "org/usage",
	} {
		secret := map[bool]string{true: acmeSecret, false: adminSecret}[path == "org/usage"]
		screen := chromium.Screen{Name: "print", Width: 718, Height: 1000, Dark: true} // A4 without its margins
		tab := b.Tab(t, screen)
		tab.Open(w.server.URL + "/portal/")
		tab.Fill("#token", secret)
		tab.Click("main form button")
		tab.Open(w.server.URL + "/portal/" + path)
		tab.Print()
		paper := chromium.Eval[string](tab, "getComputedStyle(document.documentElement).backgroundColor")
		assert.Equal(t, "rgb(255, 255, 255)", paper)
		for _, hidden := range []string{"nav", "form", "button", ".tip"} {
			shown := chromium.Eval[int](tab,
				`[...document.querySelectorAll("`+hidden+`")].filter(e => e.checkVisibility()).length`)
			assert.Zero(t, shown, "%s: %s", path, hidden)
		}
		assert.Empty(t, tab.Audit(), path)
		keepScreen(t, tab, name)
	}
}

// keepScreen writes a screenshot into the folder SCREENSHOTS, without a focus, which the audit has moved.
func keepScreen(t *testing.T, tab *chromium.Tab, name string) {
	t.Helper()
	dir := os.Getenv("SCREENSHOTS")
	if dir == "" {
		return
	}
	chromium.Eval[int](tab, `document.activeElement.blur(),
		document.querySelectorAll("nav, .tabs").forEach(e => e.scrollLeft = 0),
		document.querySelectorAll(":is(nav, .tabs) [aria-current]").forEach(e => e.scrollIntoView({ inline: "center" })),
		scrollTo(0, 0), 0`)
	lowest, scale := 1200.0, 0.8 // all screenshots together take 5 MB
	if strings.Contains(name, "phone") {
		scale = 1
	}
	require.NoError(t, os.WriteFile(filepath.Join(dir, name+".webp"), tab.Screenshot(lowest, scale), 0o644))
}
