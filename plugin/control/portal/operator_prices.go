package portal

import (
	"net/http"
	"strings"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/control/answers"
)

const pricesAPI = "/v1/ratelimit/prices"

// showPrices lists what models cost, with a form for a price.
func showPrices(v *visit) error {
	filters := v.filters("model", "state")
	var found answers.Page[answers.Price]
	if err := v.get(pricesAPI, v.withPage(filters), &found); err != nil {
		return err
	}
	return v.render("operator_prices", "Prices", map[string]any{
		"Filters": filters, "Items": found.Items, "Next": nextPage(v.r.URL.Path, filters, found.NextCursor),
		"CanWrite": v.isAdmin(), "Problem": v.Fault, "Form": v.Form,
	})
}

// setPrice sets the price of a form, and waits a moment for the nodes.
func setPrice(v *visit) error {
	body := map[string]string{}
	for _, name := range []string{"namespace", "model", "prompt", "completion", "starts_at", "reason"} {
		if text := strings.TrimSpace(v.r.PostForm.Get(name)); text != "" {
			body[name] = text
		}
	}
	var done answers.Written
	if err := v.send(http.MethodPut, pricesAPI+"?overwrite=true&wait="+waitForNodes, body, &done); err != nil {
		return v.showOutcome(err, shownSecret{}, showPrices)
	}
	return v.redirect(home+"prices", noticeOf(&done, "The price of "+body["model"]+" is set"))
}
