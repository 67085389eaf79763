package portal

import (
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/control/answers"
)

type pricesView struct {
	Form     url.Values
	Problem  *problem
	CanWrite bool
	Filters  url.Values
	Found    answers.Page[modelPrice]
	Next     string
}

type modelPrice struct {
	Namespace, Model, Prompt, Completion, State string

	StartsAt time.Time `json:"starts_at"`
}

// servePrices lists what models cost. A POST sets a price, and waits a moment for the nodes.
func servePrices(v *visit) error {
	const pricesAPI = "/v1/ratelimit/prices"
	p := pricesView{Form: v.r.PostForm, CanWrite: v.isAdmin()}
	var failed error
	if v.r.Method == http.MethodPost {
		body := map[string]string{}
		for _, name := range []string{"namespace", "model", "prompt", "completion", "starts_at", "reason"} {
			if text := strings.TrimSpace(p.Form.Get(name)); text != "" {
				body[name] = text
			}
		}
		var done answers.Written
		failed = v.send(http.MethodPut, pricesAPI+"?overwrite=true&wait="+waitForNodes, body, &done)
		if failed == nil {
			return v.redirect(home+"prices", noticeOf(&done, "The price of "+body["model"]+" is set"))
		}
	}
	p.Filters = v.filters("model", "state")
	if err := v.get(pricesAPI, v.withPage(p.Filters), &p.Found); err != nil {
		return err
	}
	p.Next = nextPage(v.r.URL.Path, p.Filters, p.Found.NextCursor)
	if failed != nil {
		return v.renderFault(failed, &p.Problem, "operator_prices", "Prices", &p)
	}
	return v.render("operator_prices", "Prices", &p)
}
