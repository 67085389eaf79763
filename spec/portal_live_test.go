package spec

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/await"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/browser"
)

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
	for path, tab := range map[string]*browser.Tab{"denials": denials, "usage": usage} {
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
	for path, tab := range map[string]*browser.Tab{"denials": denials, "usage": usage} {
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
