package spec

import (
	"net/http"
	"strings"
	"testing"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/await"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/browser"
)

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
	t.Run("the form of an override shows the fields of the chosen kind", p.testKinds)
	p.api.want(http.StatusCreated, nil, "POST", "/v1/ratelimit/candidates", `{"name":"august","reason":"a spec"}`)
	p.api.want(http.StatusOK, nil, "PUT", "/v1/ratelimit/candidates/august/policies",
		`{"name":"year","tenant":"acme","limit":25,"window":"365d","algorithm":"fixed_window"}`)
	t.Run("two operators edit at once", p.testTwoOperators)
	t.Run("two operators click at once", p.testTwoClicks)
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

// contest is a form that two operators have open, and what they enter into its field. The second one is late.
type contest struct {
	form, field, first, second string
	shows                      []string // what the first one has changed
}

var contests = []contest{
	{"policies/1/edit", "#limit", "30", "50", []string{"limit", "20", "30"}},
	{"tiers/enterprise/edit", "#title", "Team", "Business", []string{"title", "Team"}},
	{"tenants/acme/edit", "#time_zone", "Europe/Berlin", "Europe/Paris", []string{"time_zone", "Europe/Berlin"}},
	{"costs/1/edit", "#cost", "60", "70", []string{"cost", "50", "60"}},
	{"prices/1/edit", "#prompt", "3", "4", []string{"prompt", "2.5", "3"}},
	{"candidates/august/assign", "#percent", "10", "20", []string{"percent", "0", "10"}},
	{"candidates/august/policies/1", "#limit", "21", "22", []string{"limit", "25", "21"}},
	{"new/tiers", "#name", "gold", "gold", []string{"name", "gold"}},
}

// testTwoOperators edits a row of each kind in two tabs. The second operator sees what the first one wrote, keeps what
// it has entered, and writes that over it.
func (p *portal) testTwoOperators(t *testing.T) {
	first, second := p.tab(t, "admin", browser.Desktop), p.tab(t, "admin", browser.Desktop)
	const preview, apply = "form.fields p > button", "section form button"
	for _, c := range contests {
		for tab, value := range map[*browser.Tab]string{first: c.first, second: c.second} {
			tab.Open(p.url + "/portal/" + c.form)
			tab.Fill(c.field, value)
			tab.Fill("#reason", "a spec")
			tab.Click(preview)
		}
		first.Click(apply)
		p.late(t, second, c, apply)
		if kept := browser.Eval[string](second, `document.querySelector("`+c.field+`").value`); kept != c.second {
			t.Errorf("%s: the second operator has entered %s, and the form has %s", c.form, c.second, kept)
		}
		second.Click(preview)
		second.Click(apply)
		if path := second.Path(); strings.HasSuffix(path, c.form) {
			t.Errorf("%s: the second operator does not get ahead: %s", c.form, second.Text("main"))
		}
	}
}

// late applies the form of the second operator, who sees a 409 and what the first one has changed.
func (p *portal) late(t *testing.T, second *browser.Tab, c contest, button string) {
	t.Helper()
	if status := second.Click(button); status != http.StatusConflict {
		t.Errorf("%s: the second write is answered with %d: %s", c.form, status, second.Text("main"))
	}
	shown := second.Text("section[aria-labelledby=moved]")
	for _, text := range c.shows {
		if !strings.Contains(shown, text) {
			t.Errorf("%s: the second operator sees no %s: %s", c.form, text, shown)
		}
	}
	if faults := append(second.Faults(), second.Audit()...); len(faults) > 1 { // the browser logs the status
		t.Errorf("%s: faults: %q", c.form, faults)
	}
}

// clicked are forms that are applied at once, in the order in which the first operator and then the second one clicks.
var clicked = []struct{ first, second, shows string }{
	{"webhooks/1/disable", "webhooks/1/rotate", "enabled"},
	{"webhooks/1/rotate", "webhooks/1/delete", "old_secret_until"},
	{"tokens/gone/revoke", "tokens/gone/revoke", "revoked"},
	{"candidates/august/drop", "candidates/august/promote", "dropped"},
}

// testTwoClicks has two operators click what is applied at once.
func (p *portal) testTwoClicks(t *testing.T) {
	first, second := p.tab(t, "admin", browser.Desktop), p.tab(t, "admin", browser.Desktop)
	p.token("gone", "viewer")
	for _, c := range clicked {
		for tab, form := range map[*browser.Tab]string{first: c.first, second: c.second} {
			tab.Open(p.url + "/portal/" + form)
			tab.Fill("#reason", "a spec")
		}
		const click = "form.fields p > button"
		first.Click(click)
		p.late(t, second, contest{form: c.second, shows: []string{c.shows}}, click)
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
	policies := browser.Eval[string](tab, `[...document.querySelectorAll("select#policy option")].map(o => o.value).join()`)
	if policies != ",year" { // those of the tenant
		t.Errorf("the policies are listed as %q", policies)
	}
}
