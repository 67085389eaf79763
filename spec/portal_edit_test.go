package spec

import (
	"net/http"
	"strings"
	"testing"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/await"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/browser"
)

// editPages have the lists and the forms of what operators edit.
var editPages = []string{
	"policies", "new/policies", "policies/1/edit", "policies/1/delete", "tiers", "costs", "prices", "webhooks", "tokens",
	"new/webhooks", "new/tokens", "candidates/august", "candidates/august/assign", "candidates/august/promote",
	"candidates/july/rollback",
	"tenants/acme/overrides/new",
}

func TestOperatorsEditInTheConsole(t *testing.T) {
	t.Parallel()
	p := newPortal(t)
	for path, body := range map[string]string{
		"POST /v1/ratelimit/policies": `{"name":"year","tenant":"acme","limit":40,"window":"365d","algorithm":"fixed_window"}`,
		"PUT /v1/ratelimit/costs":     `{"endpoint":"POST /exports","cost":50}`,
		"PUT /v1/ratelimit/prices":    `{"model":"gpt-4o*","prompt":"2.5","completion":"10"}`,
		"POST /v1/ratelimit/webhooks": `{"url":"https://example.com/hook"}`,
	} {
		method, at, _ := strings.Cut(path, " ")
		p.api.want(http.StatusCreated, nil, method, at, body)
	}
	t.Run("an operator rolls a candidate out to 5 percent and promotes it", p.testRollout)
	t.Run("two operators edit at once", p.testTwoOperators)
	t.Run("the form of an override shows the fields of the chosen kind", p.testKinds)
	p.api.want(http.StatusCreated, nil, "POST", "/v1/ratelimit/candidates", `{"name":"august","reason":"a spec"}`)
	p.api.want(http.StatusOK, nil, "PUT", "/v1/ratelimit/candidates/august/policies",
		`{"name":"year","tenant":"acme","limit":25,"window":"365d","algorithm":"fixed_window"}`)
	for _, screen := range []browser.Screen{browser.Desktop, browser.Phone, browser.Dark} {
		t.Run(screen.Name, func(t *testing.T) {
			p.checkPages(t, "admin", screen, editPages)
			tab := p.tab(t, "admin", screen)
			tab.Open(p.url + "/portal/policies/1/edit")
			tab.Fill("#limit", "60")
			tab.Fill("#reason", "a spec")
			tab.Click("form.fields button")
			if faults := append(tab.Faults(), tab.Audit()...); len(faults) > 0 {
				t.Errorf("%s: the preview:\n%s", screen.Name, strings.Join(faults, "\n"))
			}
		})
	}
	p.checkPages(t, "viewer", browser.Desktop, []string{"policies", "tiers", "costs", "prices", "webhooks", "tokens"})
}

// testRollout opens a candidate, halves a limit in it, enforces it for 5 percent of tenants, and promotes it, without
// JavaScript.
func (p *portal) testRollout(t *testing.T) {
	screen := browser.Desktop
	screen.NoScript = true
	tab := p.tab(t, "admin", screen)
	write := func(path, button string, fields ...string) {
		t.Helper()
		tab.Open(p.url + "/portal/" + path)
		for i := 0; i < len(fields); i += 2 {
			tab.Fill(fields[i], fields[i+1])
		}
		tab.Fill("#reason", "a spec")
		if tab.Click("form.fields p > button"); button != "" {
			tab.Click(button)
		}
		if notice := tab.Text("main"); !strings.Contains(notice, "july is ") {
			t.Fatalf("%s ends at %s: %s", path, tab.Path(), notice)
		}
	}
	const apply = "section form button"
	write("new/candidates", apply, "#name", "july")
	write("candidates/july/policies/1", apply, "#limit", "20")
	write("candidates/july/assign", apply, "#percent", "5")
	if shown := tab.Text("main"); !strings.Contains(shown, "Enforced for 5 %") {
		t.Errorf("after the assignment: %s", shown)
	}
	write("candidates/july/promote", "")
	tab.Open(p.url + "/portal/policies")
	if shown := tab.Text("main"); !strings.Contains(shown, "20 requests per 365 days") {
		t.Errorf("after the promotion: %s", shown)
	}
}

// testTwoOperators edits a policy in two tabs. The second one sees what the first one wrote.
func (p *portal) testTwoOperators(t *testing.T) {
	first, second := p.tab(t, "admin", browser.Desktop), p.tab(t, "admin", browser.Desktop)
	for i, tab := range []*browser.Tab{first, second} {
		tab.Open(p.url + "/portal/policies/1/edit")
		tab.Fill("#limit", []string{"30", "50"}[i])
		tab.Fill("#reason", "a spec")
		tab.Click("form.fields button")
	}
	first.Click("section form button")
	if status := second.Click("section form button"); status != http.StatusConflict {
		t.Errorf("the second write is answered with %d", status)
	}
	if shown := second.Text("#moved + p + div"); !strings.Contains(shown, "20") || !strings.Contains(shown, "30") {
		t.Errorf("the second operator sees %s", shown)
	}
	if faults := append(second.Faults(), second.Audit()...); len(faults) > 1 { // the browser logs the status
		t.Errorf("faults: %q", faults)
	}
}

// testKinds chooses kinds of an override, without JavaScript.
func (p *portal) testKinds(t *testing.T) {
	tab := p.tab(t, "admin", browser.Desktop)
	tab.Open(p.url + "/portal/tenants/acme/overrides/new")
	for kind, field := range map[string]string{
		"custom_limit": "#limit", "multiplier": "#factor", "topup": "#amount", "ban": "#expires_at",
	} {
		tab.Fill("#kind", kind)
		for _, other := range []string{"#limit", "#factor", "#amount"} {
			await.That(t, "the fields of "+kind, func() bool {
				shown := browser.Eval[bool](tab, `document.querySelector("`+other+`").getClientRects().length > 0`)
				return shown == (other == field)
			})
		}
	}
	if got := browser.Eval[string](tab, `document.querySelector("#expires_at").type`); got != "datetime-local" {
		t.Errorf("an end is entered as %s", got)
	}
}
