package portal

import (
	"net/http"
	"slices"
)

// policyFields are the fields of a policy that can change, the usual ones first.
const policyFields = "limit window period algorithm burst scope mode reason! | fail_mode accuracy description " +
	"public_note soft_threshold_pct hard_threshold_pct soft_only cost max_duration time_zone unit anchor match settle fair"

// policyKey are the fields that identify a policy. Some of them can change within one, such as names of parameters.
const policyKey = "name tier tenant endpoint "

// Pages of policies, and of what belongs to them.
var (
	policyList = listing{
		At: "policies", Title: "Policies", Read: policiesAPI, Filters: []string{"name", "tier", "tenant", "endpoint"},
		About: "Of the database. They go before those of the plugin's config with the same name.",
		Columns: []column{
			{Label: "Policy", Field: "name"}, {Label: "For", Cell: targetCell}, {Label: "Endpoint", Field: "endpoint"},
			{Label: "Limit", Cell: limitCell}, {Label: "Mode", Field: "mode"}, {Label: "Namespace", Field: "namespace"},
		},
		New: [][2]string{{"new/policies", "New policy"}},
		Row: []rowAction{{Label: "Edit", At: "policies/{id}/edit"}, {Label: "Delete", At: "policies/{id}/delete"}},
	}
	tierList = listing{
		At: "tiers", Title: "Tiers", Read: tiersAPI, Filters: []string{"prefix"},
		About:   "Of the database; the plugin's config may have others. Policies of a tier say what its tenants may use.",
		Columns: []column{{Label: "Tier", Field: "name"}, {Label: "Description", Field: "description"}},
		New:     [][2]string{{"new/tiers", "New tier"}},
		Row:     []rowAction{{Label: "Edit", At: "tiers/{name}/edit"}, {Label: "Delete", At: "tiers/{name}/delete"}},
	}
	costList = listing{
		At: "costs", Title: "Costs", Read: costsAPI, Filters: []string{"endpoint"},
		About: "What requests to endpoints cost, in tokens. Other requests cost what the plugin's config says, or 1.",
		Columns: []column{
			{Label: "Endpoint", Field: "endpoint"}, {Label: "Cost", Field: "cost"}, {Label: "Namespace", Field: "namespace"},
		},
		New: [][2]string{{"new/costs", "New cost"}},
		Row: []rowAction{{Label: "Edit", At: "costs/{id}/edit"}, {Label: "Delete", At: "costs/{id}/delete"}},
	}
	priceList = listing{
		At: "prices", Title: "Prices", Read: pricesAPI, Filters: []string{"model", "state"},
		About: "Of models, in US dollars for a million tokens. Of each model and namespace one price is in force; without any " +
			"the price in the plugin's config is.",
		Columns: []column{
			{Label: "Model", Field: "model"}, {Label: "State", Field: "state"}, {Label: "Prompt", Field: "prompt"},
			{Label: "Completion", Field: "completion"}, {Label: "From", Field: "starts_at"},
			{Label: "Namespace", Field: "namespace"},
		},
		New: [][2]string{{"new/prices", "New price"}},
		Row: []rowAction{{Label: "Edit", At: "prices/{id}/edit"}, {Label: "Delete", At: "prices/{id}/delete"}},
	}
)

const (
	policiesAPI = "/v1/ratelimit/policies"
	tiersAPI    = "/v1/ratelimit/tiers"
	costsAPI    = "/v1/ratelimit/costs"
	pricesAPI   = "/v1/ratelimit/prices"
	webhooksAPI = "/v1/ratelimit/webhooks"
	tokensAPI   = "/v1/ratelimit/tokens"
)

// deleting returns the action that deletes the row of a path.
func deleting(at, what, write, read string) action {
	return action{
		At: at + "/delete", Title: "Delete " + what, Write: http.MethodDelete + " " + write, Read: read,
		Fields: whyField + "!", Button: "Delete", Done: "The " + what + " is deleted", Now: true, Danger: true,
	}
}

// to returns actions after which the page is one of a listing.
func to(l *listing, list ...action) []action {
	for i := range list {
		list[i].To = l.At
	}
	return list
}

var policyActions = slices.Concat(
	to(&policyList,
		action{
			At: "new/policies", Title: "New policy", Write: "POST " + policiesAPI, Row: "policy", Done: "The policy {name} is made",
			Fields: policyKey + policyFields + " user credential ip for namespace",
		},
		action{
			At: "policies/{id}/edit", Title: "Policy {name}", Write: "PUT " + policiesAPI + "/{id}",
			Read: policiesAPI + "/{id}", Row: "policy", Fields: policyFields + " endpoint", Done: "The policy {name} is changed",
		},
		deleting("policies/{id}", "policy {name}", policiesAPI+"/{id}", policiesAPI+"/{id}"),
	),
	to(&tierList,
		action{
			At: "new/tiers", Title: "New tier", Write: "PUT " + tiersAPI + "/{name}", Read: tiersAPI + "?limit=1&prefix={name}",
			Row: "tier", Fields: "name! description reason!", Done: "The tier {name} is made",
		},
		action{
			At: "tiers/{name}/edit", Title: "Tier {name}", Write: "PUT " + tiersAPI + "/{name}",
			Read: tiersAPI + "?limit=1&prefix={name}", Row: "tier", Fields: "description reason!", Done: "The tier {name} is changed",
		},
		deleting("tiers/{name}", "tier {name}", tiersAPI+"/{name}", tiersAPI+"?limit=1&prefix={name}"),
	),
	to(&costList,
		action{
			At: "new/costs", Title: "New cost", Write: "PUT " + costsAPI, Row: "cost", Done: "The cost of {endpoint} is set",
			Read:   costsAPI + "?endpoint={endpoint}&namespace={namespace}",
			Fields: "endpoint cost reason! | namespace",
		},
		action{
			At: "costs/{id}/edit", Title: "Cost of {endpoint}", Write: "PUT " + costsAPI, Read: costsAPI + "/{id}", Row: "cost",
			Fields: "cost reason!", Done: "The cost of {endpoint} is set",
		},
		deleting("costs/{id}", "cost of {endpoint}", costsAPI+"/{id}", costsAPI+"/{id}"),
	),
	to(&priceList,
		action{
			At: "new/prices", Title: "New price", Write: "PUT " + pricesAPI, Row: "price", Done: "The price of {model} is set",
			Fields: "model prompt completion starts_at reason! | namespace",
		},
		action{
			At: "prices/{id}/edit", Title: "Price of {model}", Write: "PUT " + pricesAPI, Read: pricesAPI + "/{id}",
			Row: "price", Fields: "prompt completion reason!", Done: "The price of {model} is set",
		},
		deleting("prices/{id}", "price of {model}", pricesAPI+"/{id}", pricesAPI+"/{id}"),
	),
)

// Pages of webhooks and tokens, those of tenants too.
var (
	webhookList = listing{
		At: "webhooks", Title: "Webhooks", Read: webhooksAPI,
		About: "Events are posted to these URLs. Those of a tenant get its events only.",
		Columns: []column{
			{Label: "URL", Field: "url"}, {Label: "Tenant", Field: "org"}, {Label: "Events", Field: "types"},
			{Label: "State", Cell: webhookCell}, {Label: "Last delivery", Field: "delivered_at"},
		},
		New: [][2]string{{"new/webhooks", "New webhook"}},
		Row: []rowAction{
			{Label: "Test", At: "webhooks/{id}/test", If: "enabled=true"},
			{Label: "Disable", At: "webhooks/{id}/disable", If: "enabled=true"},
			{Label: "Enable", At: "webhooks/{id}/enable", If: "enabled=false"},
			{Label: "Rotate", At: "webhooks/{id}/rotate"}, {Label: "Delete", At: "webhooks/{id}/delete"},
		},
	}
	tokenList = listing{
		At: "tokens", Title: "Tokens", Read: tokensAPI, Filters: []string{"name", "state"},
		About: "Who may use the API and these pages. A secret is shown once, when its token is made.",
		Columns: []column{
			{Label: "Token", Field: "name"}, {Label: "Role", Field: "role"}, {Label: "Tenant", Field: "org"},
			{Label: "State", Field: "state"}, {Label: "Expires", Field: "expires_at"}, {Label: "Last used", Field: "last_used_at"},
			{Label: "Created by", Field: "created_by"},
		},
		New: [][2]string{{"new/tokens", "New token"}},
		Row: []rowAction{{Label: "Revoke", At: "tokens/{name}/revoke", If: "state=live"}},
	}
)

// webhookAction returns an action that needs no more than a click and a reason.
func webhookAction(verb, title, done, fields string) action {
	return action{
		At: "webhooks/{id}/" + verb, Title: title, Write: "POST " + webhooksAPI + "/{id}/" + verb, Button: title,
		Read: webhooksAPI + "/{id}?every=true", Fields: fields + whyField + "!", Done: done, Now: true,
	}
}

var accessActions = slices.Concat(
	to(&webhookList,
		action{
			At: "new/webhooks", Title: "New webhook", Write: "POST " + webhooksAPI, Row: "webhook", Done: "webhook {url}",
			Fields:  "url types reason!",
			Choices: map[string]func(*form, *visit) ([]choice, error){"types": chosen(orgEvents...)},
		},
		webhookAction("test", "Send a test event", "A test event is on its way", ""),
		webhookAction("enable", "Enable the webhook", "The webhook is enabled", ""),
		webhookAction("disable", "Disable the webhook", "The webhook is disabled", ""),
		webhookAction("rotate", "Rotate the secret", "webhook {url}", "now "),
		deleting("webhooks/{id}", "webhook {url}", webhooksAPI+"/{id}", webhooksAPI+"/{id}?every=true"),
	),
	to(&tokenList,
		action{
			At: "new/tokens", Title: "New token", Write: "POST " + tokensAPI, Row: "token", Done: "token {name}",
			Fields: "name role expires_at reason",
		},
		action{
			At: "tokens/{name}/revoke", Title: "Revoke {name}", Write: "DELETE " + tokensAPI + "/{name}",
			Read: tokensAPI + "?limit=1&state=live&name={name}", Fields: whyField + "!", Button: "Revoke",
			Done: "The token {name} is revoked", Now: true, Danger: true,
		},
	),
)

const (
	candidatesAPI = "/v1/ratelimit/candidates"
	candidateAPI  = candidatesAPI + "/{name}"
	candidateAt   = "candidates/{name}"
)

// candidateActions start, widen, promote and end candidates.
var candidateActions = []action{
	{
		At: "new/candidates", Title: "Open a candidate", Write: "POST " + candidatesAPI, Row: "candidate",
		Fields: "name reason", Done: "The candidate {name} is open: it changes no policy yet", To: candidateAt,
	},
	{
		At: candidateAt + "/new-policy", Title: "A policy of the candidate {name}", To: candidateAt,
		Write: "PUT " + candidateAPI + "/policies", Done: "The candidate {name} is changed",
		Fields: policyKey + policyFields + " user credential ip for namespace",
	},
	{
		At: candidateAt + "/policies/{id}", Title: "A policy of the candidate {name}", To: candidateAt,
		Write: "PUT " + candidateAPI + "/policies", Read: policiesAPI + "/{id}", Done: "The candidate {name} is changed",
		Fields: policyFields,
	},
	{
		At: candidateAt + "/undo", Title: "A policy of the candidate {name}", To: candidateAt, Button: "Change the candidate",
		Write: "DELETE " + candidateAPI + "/policies", Done: "The candidate {name} is changed",
		Fields: "policy tier tenant user credential ip for endpoint namespace undo reason",
	},
	{
		At: candidateAt + "/assign", Title: "Enforce {name} for some tenants", Write: "POST " + candidateAPI + "/assign",
		Read: candidateAPI, Row: "candidate", Fields: "percent add remove reason", To: candidateAt,
		Done: "The candidate {name} is enforced for these tenants",
	},
	{
		At: candidateAt + "/promote", Title: "Promote {name}", Write: "POST " + candidateAPI + "/promote", Button: "Promote",
		Read: candidateAPI, Fields: "reason | if_version", Done: "The candidate {name} is promoted", To: candidateAt, Now: true,
	},
	{
		At: candidateAt + "/rollback", Title: "Roll back {name}", Write: "POST " + candidateAPI + "/rollback", Now: true,
		Read: candidateAPI, Fields: whyField, Button: "Roll back", Done: "The candidate {name} is rolled back",
		To: candidateAt, Danger: true,
	},
	{
		At: candidateAt + "/rebase", Title: "Rebase {name}", Write: "POST " + candidateAPI + "/rebase", Button: "Rebase",
		Read: candidateAPI, Row: "candidate", Fields: "reason | version", Done: "The candidate {name} is rebased",
		To: candidateAt, Now: true,
	},
	{
		At: candidateAt + "/drop", Title: "Drop {name}", Write: "DELETE " + candidateAPI, Read: candidateAPI,
		Row: "candidate", Fields: whyField + "!", Button: "Drop", Done: "The candidate {name} is dropped", To: candidateAt,
		Now: true, Danger: true,
	},
}
