package portal

import (
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/control/answers"
)

// choice is a value of a form, with its label.
type choice struct{ Value, Label string }

const eventPrefix = "io.github.tenant-rate-limiting."

// orgEvents are the events that an org may read.
var orgEvents = []choice{
	{eventPrefix + "quota.threshold", "50, 80 or 100 % of a quota is used"},
	{eventPrefix + "denial", "Requests are denied"},
	{eventPrefix + "policy.updated", "A limit changes"},
	{eventPrefix + "webhook.disabled", "A webhook is disabled, because it fails"},
}

// operatorEvents are the events that a webhook of all orgs may have.
var operatorEvents = slices.Concat(orgEvents, []choice{
	{eventPrefix + "abuse.step", "Abuse detection changes what it does with a tenant"},
})

// subscribes reports whether a form or a webhook has a type; none means all.
func subscribes(types []string, kind string) bool {
	return len(types) == 0 || slices.Contains(types, kind)
}

// eventsOf returns what a webhook is sent, in words.
func eventsOf(w answers.Webhook) (labels []string) {
	list := orgEvents
	if w.Org == "" {
		list = operatorEvents
	}
	for _, e := range list {
		if subscribes(w.Types, e.Value) {
			labels = append(labels, e.Label)
		}
	}
	return labels
}

// deliveryLevels are the classes of badges of the states of deliveries.
var deliveryLevels = map[string]string{"delivered": "ok", "waiting": "warn", "failed": "bad"}

// outcome is what a page shows of the write that it answers: its fault and what was entered, or the secret it made.
// There is no redirect after such a write: the secret is in this answer only.
type outcome struct {
	Fault *problem
	Form  url.Values
	Shown *shownSecret
}

// shownSecret is a secret that is shown once.
type shownSecret struct{ What, Secret string }

// showOutcome answers a write with a page, which shows the outcome.
func (v *visit) showOutcome(failed error, made shownSecret, page func(*visit) error) error {
	v.Shown = &made
	if failed != nil {
		v.outcome = outcome{Fault: answers.ProblemOf(failed), Form: v.r.PostForm}
		if v.Fault == nil || !isFault(v.Fault) {
			return failed
		}
		v.status = v.Fault.Status
	}
	return page(v)
}

// showOrgWebhooks shows the webhooks of the org, with a form for a new one.
func showOrgWebhooks(v *visit) error {
	var found answers.Page[answers.Webhook]
	if err := v.get(v.orgPath("/ratelimit/webhooks"), nil, &found); err != nil {
		return err
	}
	return v.render("tenant_webhooks", "Webhooks", map[string]any{
		"Org": v.caller.Org, "Webhooks": found.Items, "Events": orgEvents, "Fault": v.Fault, "Form": v.Form, "Shown": v.Shown,
	})
}

func createOrgWebhook(v *visit) error {
	var made answers.WebhookSecret
	err := v.send(http.MethodPost, v.orgPath("/ratelimit/webhooks"), map[string]any{
		"url": v.r.PostFormValue("url"), "types": append([]string{}, v.r.PostForm["types"]...), "reason": portalReason,
	}, &made)
	return v.showOutcome(err, shownSecret{"webhook " + made.Webhook.URL, made.Secret}, showOrgWebhooks)
}

const portalReason = "changed by its org in the portal"

// webhookPath returns the path of the API of the webhook that a page names. One of another org does not exist there.
func (v *visit) webhookPath() string {
	return v.orgPath("/ratelimit/webhooks/" + answers.PathSegment(v.r.PathValue("id")))
}

func showOrgWebhook(v *visit) error {
	var found answers.Webhook
	if err := v.get(v.webhookPath(), nil, &found); err != nil {
		return notFound(err)
	}
	var list answers.Deliveries
	if err := v.get(v.webhookPath()+"/deliveries", url.Values{"limit": {"50"}}, &list); err != nil {
		return notFound(err)
	}
	return v.render("tenant_webhook", "Webhooks", map[string]any{
		"Webhook": found, "Deliveries": list.Items, "Fault": v.Fault, "Shown": v.Shown,
	})
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
	return v.showOutcome(err, shownSecret{"webhook " + made.Webhook.URL, made.Secret}, showOrgWebhook)
}

// tokenLives are the times that a new token may last; the first one is the default.
var tokenLives = []choice{{"90d", "90 days"}, {"7d", "7 days"}, {"30d", "30 days"}, {"365d", "a year"}}

// showOrgTokens shows the tokens of the org, with a form for a new one.
func showOrgTokens(v *visit) error {
	var found answers.OrgTokens
	if err := v.get(v.orgPath("/tokens"), nil, &found); err != nil {
		return err
	}
	signedInBy := v.caller.Token
	isPerson := strings.HasPrefix(signedInBy, "oidc:")
	_, own, isOwn := strings.Cut(signedInBy, "/") // a token that an org manages has the org before its name
	if isPerson {
		own = ""
	}
	return v.render("tenant_tokens", "Tokens", map[string]any{
		"SignedInBy": signedInBy, "Own": own, "IsOther": !isOwn && !isPerson,
		"Org": v.caller.Org, "Tokens": found.Tokens, "Lives": tokenLives, "Fault": v.Fault, "Form": v.Form, "Shown": v.Shown,
	})
}

func createOrgToken(v *visit) error {
	body := map[string]any{"name": v.r.PostFormValue("name"), "reason": portalReason}
	if life := v.r.PostFormValue("expires_in"); life != "" {
		body["expires_in"] = life
	}
	var made answers.IssuedToken
	err := v.send(http.MethodPost, v.orgPath("/tokens"), body, &made)
	return v.showOutcome(err, shownSecret{"token " + made.Name, made.Secret}, showOrgTokens)
}

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
		return v.showOutcome(err, shownSecret{"token " + made.Name, made.Secret}, showOrgTokens)
	case "revoke":
		if err := v.send(http.MethodDelete, at+"?reason="+url.QueryEscape(portalReason), nil, nil); err != nil {
			return notFound(err)
		}
		return v.redirect(orgTokensPath, notice{Text: "The token " + name + " is revoked."})
	}
	return &problem{Status: http.StatusNotFound}
}
