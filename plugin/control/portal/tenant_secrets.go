package portal

import (
	"cmp"
	"net/http"
	"net/url"
	"slices"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/control/answers"
)

// eventKind is a type of events that an org may subscribe to.
type eventKind struct{ Type, Label string }

// eventPrefix begins the types of events.
const eventPrefix = "io.github.tenant-rate-limiting."

// orgEvents are the events that an org may read.
var orgEvents = []eventKind{
	{eventPrefix + "quota.threshold", "50, 80 or 100 % of a quota is used"},
	{eventPrefix + "denial", "Requests are denied"},
	{eventPrefix + "policy.updated", "A limit changes"},
	{eventPrefix + "webhook.disabled", "A webhook is disabled, because it fails"},
}

// subscribes reports whether a form or a webhook has a type; none means all.
func subscribes(types []string, kind string) bool {
	return len(types) == 0 || slices.Contains(types, kind)
}

// eventsOf returns what a webhook is sent, in words.
func eventsOf(w answers.Webhook) (labels []string) {
	for _, e := range orgEvents {
		if subscribes(w.Types, e.Type) {
			labels = append(labels, e.Label)
		}
	}
	return labels
}

// deliveryLevels are the classes of badges of the states of deliveries.
var deliveryLevels = map[string]string{"delivered": "ok", "waiting": "warn", "failed": "bad"}

// orgWebhooks is the page of webhooks.
type orgWebhooks struct {
	Org      string
	Webhooks []answers.Webhook
	Events   []eventKind
	Form     answers.Webhook // what was entered
	outcome
}

// outcome is what a page shows of the write that it answers: its fault, or the secret that it made.
type outcome struct {
	Fault *problem
	Shown *shownSecret
}

// shownSecret is a secret that is shown once.
type shownSecret struct{ What, Secret string }

// renderOutcome answers a write with a page, whose data has the outcome.
func (v *visit) renderOutcome(
	o *outcome, failed error, made shownSecret, template, title string, data any,
) error {
	if failed != nil {
		return v.renderFault(failed, &o.Fault, template, title, data)
	}
	o.Shown = &made
	return v.render(template, title, data)
}

const webhooksTitle = "Webhooks"

// readOrgWebhooks reads the webhooks of the org, for a page with a form for a new one.
func readOrgWebhooks(v *visit) (*orgWebhooks, error) {
	var found answers.Page[answers.Webhook]
	err := v.get(v.orgPath("/ratelimit/webhooks"), nil, &found)
	return &orgWebhooks{Org: v.caller.Org, Webhooks: found.Items, Events: orgEvents}, err
}

// createOrgWebhook creates a webhook, and shows its secret. There is no redirect: the secret is in this answer only.
func createOrgWebhook(v *visit) error {
	form := answers.Webhook{URL: v.r.PostFormValue("url"), Types: v.r.PostForm["types"]}
	var made answers.WebhookSecret
	failed := v.send(http.MethodPost, v.orgPath("/ratelimit/webhooks"), map[string]any{
		"url": form.URL, "types": append([]string{}, form.Types...), "reason": portalReason,
	}, &made)
	data, err := readOrgWebhooks(v)
	if err != nil {
		return cmp.Or(failed, err)
	}
	if failed != nil {
		data.Form = form
	}
	shown := shownSecret{"webhook " + made.Webhook.URL, made.Secret}
	return v.renderOutcome(&data.outcome, failed, shown, "tenant_webhooks", webhooksTitle, data)
}

// portalReason is the reason of changes in the audit.
const portalReason = "changed by its org in the portal"

// orgWebhookPage is the page of one webhook.
type orgWebhookPage struct {
	Webhook    answers.Webhook
	Deliveries []answers.Delivery
	outcome
}

// webhookPath returns the path of the API of the webhook that a page names. One of another org does not exist there.
func (v *visit) webhookPath() string {
	return v.orgPath("/ratelimit/webhooks/" + answers.PathSegment(v.r.PathValue("id")))
}

// readOrgWebhook reads the page of one webhook.
func readOrgWebhook(v *visit) (*orgWebhookPage, error) {
	var data orgWebhookPage
	if err := v.get(v.webhookPath(), nil, &data.Webhook); err != nil {
		return nil, notFound(err)
	}
	var list answers.Deliveries
	err := v.get(v.webhookPath()+"/deliveries", url.Values{"limit": {"50"}}, &list)
	data.Deliveries = list.Items
	return &data, notFound(err)
}

// notFound returns 404 for a path that cannot name anything.
func notFound(err error) error {
	if isStatus(err, http.StatusUnprocessableEntity) {
		return &problem{Status: http.StatusNotFound}
	}
	return err
}

// webhookActions has what the buttons of a webhook do, with the notice that says so.
var webhookActions = map[string]string{
	"test":    "A test event is on its way: reload this page to see what became of it.",
	"enable":  "The webhook is enabled.",
	"disable": "The webhook is disabled: it gets no new events.",
	"delete":  "The webhook is deleted.",
	"rotate":  "",
}

// changeOrgWebhook does what a button of a webhook says. A rotation shows the new secret.
func changeOrgWebhook(v *visit) error {
	action := v.r.PathValue("action")
	done, ok := webhookActions[action]
	if !ok {
		return &problem{Status: http.StatusNotFound}
	}
	page, err := orgWebhooksPath+"/"+answers.PathSegment(v.r.PathValue("id")), error(nil)
	var made answers.WebhookSecret
	switch action {
	case "delete":
		page = orgWebhooksPath
		err = v.send(http.MethodDelete, v.webhookPath()+"?reason="+url.QueryEscape(portalReason), nil, nil)
	case "rotate":
		body := map[string]any{"now": v.r.PostFormValue("now") == "yes", "reason": portalReason}
		err = v.send(http.MethodPost, v.webhookPath()+"/rotate", body, &made)
	default:
		err = v.send(http.MethodPost, v.webhookPath()+"/"+action, map[string]any{"reason": portalReason}, nil)
	}
	if err == nil && made.Secret == "" {
		return v.redirect(page, notice{Text: done})
	}
	if isStatus(err, http.StatusUnprocessableEntity) || isStatus(err, http.StatusNotFound) {
		return notFound(err)
	}
	data, readErr := readOrgWebhook(v)
	if readErr != nil {
		return cmp.Or(err, readErr)
	}
	shown := shownSecret{"webhook " + made.Webhook.URL, made.Secret}
	return v.renderOutcome(&data.outcome, err, shown, "tenant_webhook", webhooksTitle, data)
}

// tokenForm is what is entered for a new token.
type tokenForm struct{ Name, ExpiresIn string }

// tokenLife is a time that a new token may last.
type tokenLife struct{ Value, Label string }

// tokenLives are the times that a new token may last; the first one is the default.
var tokenLives = []tokenLife{{"90d", "90 days"}, {"7d", "7 days"}, {"30d", "30 days"}, {"365d", "a year"}}

// orgTokens is the page of tokens.
type orgTokens struct {
	Org    string
	Tokens []answers.OrgToken
	Lives  []tokenLife
	Form   tokenForm
	outcome
}

const tokensTitle = "Tokens"

// readOrgTokens reads the tokens of the org, for a page with a form for a new one.
func readOrgTokens(v *visit) (*orgTokens, error) {
	data := &orgTokens{Org: v.caller.Org, Lives: tokenLives}
	var found answers.OrgTokens
	err := v.get(v.orgPath("/tokens"), nil, &found)
	data.Tokens = found.Tokens
	return data, err
}

// createOrgToken creates a token, and shows its secret. There is no redirect: the secret is in this answer only.
func createOrgToken(v *visit) error {
	form := tokenForm{v.r.PostFormValue("name"), v.r.PostFormValue("expires_in")}
	body := map[string]any{"name": form.Name, "reason": portalReason}
	if form.ExpiresIn != "" {
		body["expires_in"] = form.ExpiresIn
	}
	var made answers.IssuedToken
	err := v.send(http.MethodPost, v.orgPath("/tokens"), body, &made)
	return v.showToken(&made, form, err)
}

// changeOrgToken rotates or revokes a token.
func changeOrgToken(v *visit) error {
	name := v.r.PathValue("name")
	at := v.orgPath("/tokens/" + answers.PathSegment(name))
	switch v.r.PathValue("action") {
	case "rotate":
		body := map[string]any{"overlap": "1h", "reason": portalReason}
		if v.r.PostFormValue("now") == "yes" {
			body["overlap"] = "0s"
		}
		var made answers.IssuedToken
		err := v.send(http.MethodPost, at+"/rotate", body, &made)
		return v.showToken(&made, tokenForm{}, err)
	case "revoke":
		if err := v.send(http.MethodDelete, at+"?reason="+url.QueryEscape(portalReason), nil, nil); err != nil {
			return notFound(err)
		}
		return v.redirect(orgTokensPath, notice{Text: "The token " + name + " is revoked."})
	}
	return &problem{Status: http.StatusNotFound}
}

// showToken serves the page of tokens after a write, with the secret that it made, or with its fault.
func (v *visit) showToken(made *answers.IssuedToken, form tokenForm, failed error) error {
	data, err := readOrgTokens(v)
	if err != nil {
		return cmp.Or(failed, err)
	}
	if failed != nil {
		data.Form = form
	}
	shown := shownSecret{"token " + made.Name, made.Secret}
	return v.renderOutcome(&data.outcome, failed, shown, "tenant_tokens", tokensTitle, data)
}
