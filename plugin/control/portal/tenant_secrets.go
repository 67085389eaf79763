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

// eventsOf returns what a webhook is sent, in words.
func eventsOf(w answers.Webhook) (labels []string) {
	list := orgEvents
	if w.Org == "" {
		list = operatorEvents
	}
	for _, e := range list {
		if len(w.Types) == 0 || slices.Contains(w.Types, e.Value) {
			labels = append(labels, e.Label)
		}
	}
	return labels
}

// deliveryLevels are the classes of badges of the states of deliveries.
var deliveryLevels = map[string]string{"delivered": "ok", "waiting": "warn", "failed": "bad"}

// shownSecret is a secret that is shown once, in the answer to the write that made it.
type shownSecret struct{ What, Secret string }

const (
	ownTokensAPI   = "/v1/orgs/{org}/tokens"
	ownWebhooksAPI = "/v1/orgs/{org}/ratelimit/webhooks"

	ownWebhookAt, ownWebhookAPI = "org/webhooks/{id}", ownWebhooksAPI + "/{id}"

	showsSecret = "Make a new secret, and show it"
)

// ownActions change what an org manages itself. The forms of its pages post to them.
var ownActions = []action{
	{
		At: "org/new/webhooks", Title: "New webhook", Write: "POST " + ownWebhooksAPI, Fields: "url types reason",
		Button: "Create, and show its secret", Done: "webhook {url}", To: "org/webhooks", Now: true,
	},
	clicking(ownWebhookAt, ownWebhookAPI, "test", "Send a test event",
		"A test event is on its way: reload this page to see what became of it", whyField, ownWebhookAt),
	clicking(ownWebhookAt, ownWebhookAPI, "enable", "Enable the webhook", "The webhook is enabled", whyField,
		ownWebhookAt),
	clicking(ownWebhookAt, ownWebhookAPI, "disable", "Disable the webhook",
		"The webhook is disabled: it gets no new events", whyField, ownWebhookAt),
	clicking(ownWebhookAt, ownWebhookAPI, "rotate", showsSecret, "webhook {url}", "now reason", ownWebhookAt),
	deleting(ownWebhookAt+"/delete", "Delete", "webhook {url}", "deleted", ownWebhookAPI, ownWebhookAPI, "org/webhooks"),
	{
		At: "org/new/tokens", Title: "New token", Write: "POST " + ownTokensAPI, Fields: "name expires_in reason",
		Button: "Create, and show its secret", Done: "token {name}", To: "org/tokens", Now: true,
	},
	{
		At: "org/tokens/{name}/rotate", Title: "Rotate {name}", Write: "POST " + ownTokensAPI + "/{name}/rotate",
		Fields: "overlap reason", Button: showsSecret, Done: "token {name}", To: "org/tokens", Now: true,
	},
	deleting("org/tokens/{name}/revoke", "Revoke", "token {name}", "revoked", ownTokensAPI+"/{name}", "", "org/tokens"),
}

// ownReason is the reason of each of them.
const ownReason = "changed by its org in the portal"

// ownChoices are fieldChoices of orgs.
var ownChoices = map[string][]choice{
	"types":      orgEvents,
	"expires_in": {{"90d", "90 days"}, {"7d", "7 days"}, {"30d", "30 days"}, {"365d", "a year"}},
}

// showOrgWebhooks shows the webhooks of the org, with a form for a new one.
func showOrgWebhooks(v *visit) error {
	var found answers.Page[answers.Webhook]
	if err := v.get(v.orgPath("/ratelimit/webhooks"), nil, &found); err != nil {
		return err
	}
	return v.render("tenant_webhooks", "Webhooks", map[string]any{
		"Org": v.caller.Org, "Webhooks": found.Items, "Events": orgEvents,
	})
}

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
		"Webhook": found, "Deliveries": list.Items,
	})
}

// notFound returns 404 for a path that cannot name anything.
func notFound(err error) error {
	if isStatus(err, http.StatusUnprocessableEntity) {
		return &problem{Status: http.StatusNotFound}
	}
	return err
}

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
		"Org": v.caller.Org, "Tokens": found.Tokens, "Lives": ownChoices["expires_in"],
	})
}
