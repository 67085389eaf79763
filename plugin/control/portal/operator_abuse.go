package portal

import (
	"fmt"
	"net/http"
	"strings"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/control/answers"
)

// serveAbuse shows the tenants that abuse detection has flagged.
func serveAbuse(v *visit) error {
	filters := v.filters("step")
	page := v.rankedPage()
	var found answers.AbuseList
	if err := v.get("/v1/ratelimit/abuse", page.query(filters), &found); err != nil {
		return err
	}
	return v.render("operator_abuse", "Abuse", map[string]any{
		"Filters": filters, "Items": cutPage(v, page, filters, found.Items), "Page": page, "CanWrite": v.isAdmin(),
	})
}

// forgiveView is the page that forgives a tenant.
type forgiveView struct {
	Org, For, Reason string
	State            answers.AbuseState
	Problem          *problem
}

// confirmForgive shows why a tenant was flagged, and takes the reason.
func confirmForgive(v *visit) error {
	f := &forgiveView{Org: v.org(), For: "1h"}
	if err := v.get(orgAPI(f.Org, "/ratelimit/abuse"), nil, &f.State); err != nil {
		return err
	}
	return v.render("operator_forgive", "Forgive a tenant", f)
}

// forgive takes a tenant off the ladder of abuse detection.
func forgive(v *visit) error {
	f := &forgiveView{
		Org: v.org(), For: strings.TrimSpace(v.r.PostFormValue("for")),
		Reason: strings.TrimSpace(v.r.PostFormValue("reason")),
	}
	var done answers.OrgForgiven
	body := map[string]any{"for": f.For, "reason": f.Reason}
	err := v.send(http.MethodPost, orgAPI(f.Org, "/ratelimit/abuse/forgive?wait="+waitForNodes), body, &done)
	if err != nil {
		f.Problem = asProblem(err)
		return v.renderFault(err, "operator_forgive", "Forgive a tenant", f)
	}
	until := clockTime(done.Until, v.portal.Now())
	return v.redirect(home+"abuse", noticeOf(&done.Written, fmt.Sprintf("%s is forgiven until %s", f.Org, until)))
}
