package spec

import (
	"net/http"
	"testing"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/await"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/browser"
)

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
