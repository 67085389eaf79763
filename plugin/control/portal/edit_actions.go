package portal

import (
	"net/http"
	"slices"
	"strings"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/control/answers"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/control/api"
)

// Fields of policies: the usual ones first.
const (
	policyKey    = "name tier tenant endpoint "
	policyMore   = " user credential ip for namespace"
	policyFields = "limit window period algorithm burst scope mode reason! | fail_mode accuracy description public_note " +
		"soft_threshold_pct hard_threshold_pct soft_only cost max_duration time_zone unit anchor match settle fair"
)

const (
	policiesAPI   = "/v1/ratelimit/policies"
	tiersAPI      = "/v1/ratelimit/tiers"
	costsAPI      = "/v1/ratelimit/costs"
	pricesAPI     = "/v1/ratelimit/prices"
	webhooksAPI   = "/v1/ratelimit/webhooks"
	tokensAPI     = "/v1/ratelimit/tokens"
	candidatesAPI = "/v1/ratelimit/candidates"
)

// listings are the pages beside each other under one link of the navigation.
var listings = []listing{
	{
		At: "policies", Title: "Policies", API: policiesAPI, read: listOf[answers.Policy],
		Filters: "name tier tenant endpoint", Row: "policy",
		About: "Of the database. They go before those of the plugin's config with the same name.",
		What:  "policy {name}", Create: "POST " + policiesAPI, Change: "PUT " + policiesAPI + "/{id}",
		Key: policyKey, Fields: policyFields, More: policyMore,
	},
	{
		At: "tiers", Title: "Tiers", API: tiersAPI, read: listOf[answers.Tier],
		Filters: "prefix", Row: "tier",
		About: "Of the database; the plugin's config may have others. Policies of a tier are for all its tenants.",
		What:  "tier {name}", Create: "PUT " + tiersAPI + "/{name}", Change: "PUT " + tiersAPI + "/{name}",
		Same: "?limit=1&prefix={name}", Key: "name! ", Fields: "title price_text description reason!",
	},
	{
		At: "costs", Title: "Costs", API: costsAPI, read: listOf[answers.Cost],
		Filters: "endpoint", Row: "cost",
		About: "What requests to endpoints cost, in tokens. Other requests cost what the plugin's config says, or 1.",
		What:  "cost of {endpoint}", Create: "PUT " + costsAPI, Change: "PUT " + costsAPI,
		Same: "?endpoint={endpoint}&namespace={namespace}", Key: "endpoint ", Fields: "cost reason!", More: " | namespace",
	},
	{
		At: "prices", Title: "Prices", API: pricesAPI, read: listOf[answers.Price],
		Filters: "model state", Row: "price",
		About: "Of models, in US dollars for a million tokens. Of each model and namespace one price is in force; without " +
			"any the price in the plugin's config is.",
		What: "price of {model}", Create: "PUT " + pricesAPI, Change: "PUT " + pricesAPI,
		Key: "model starts_at ", Fields: "prompt completion reason!", More: " | namespace",
	},
	{
		At: "webhooks", Title: "Webhooks", API: webhooksAPI, read: listOf[answers.Webhook],
		Row:   "webhook",
		About: "Events are posted to these URLs. Those of a tenant get its events only.",
		What:  "webhook {url}", Create: "POST " + webhooksAPI, Fields: "url types reason!",
	},
	{
		At: "tokens", Title: "Tokens", API: tokensAPI, read: listOf[answers.Token],
		Filters: "name state", Row: "token",
		About: "Who may use the API and these pages. A secret is shown once, when its token is made.",
		What:  "token {name}", Create: "POST " + tokensAPI, Fields: "name role expires_at reason",
	},
}

// actions returns the actions that make the rows of a listing, and where it has Change, that change and delete them.
func (l *listing) actions() []action {
	list := []action{{
		At: "new/" + l.At, Title: "New " + l.Row, Write: l.Create, Row: l.Row, Fields: l.Key + l.Fields + l.More, To: l.At,
		Done: "The " + l.What + " is set",
	}}
	if l.Same != "" {
		list[0].Read = l.API + l.Same
	}
	if l.Change == "" { // the answer has a secret, of what this names
		list[0].Done = l.What
		return list
	}
	at, row := l.At+"/{id}", l.API+"/{id}"
	read := row
	if strings.HasSuffix(l.Change, "{name}") { // the API has no operation that reads one
		at, row, read = l.At+"/{name}", l.API+"/{name}", l.API+l.Same
	}
	return append(list, action{
		At: at + "/edit", Title: strings.ToUpper(l.What[:1]) + l.What[1:], Write: l.Change, Read: read, Row: l.Row,
		Fields: l.Fields, Done: "The " + l.What + " is set", To: l.At,
	}, deleting(at+"/delete", "Delete", l.What, "deleted", row, read, l.At))
}

// deleting returns an action that deletes a row; verb is what its button says, and done the same of what was done.
func deleting(at, verb, what, done, row, read, to string) action {
	return action{
		At: at, Title: verb + " " + what, Write: http.MethodDelete + " " + row, Read: read, Fields: whyField + "!",
		Button: verb, Done: "The " + what + " is " + done, To: to, Now: true, Danger: true,
	}
}

// clicking returns an action that posts to a path below a row's, and that needs no more than a reason.
func clicking(at, row, verb, title, done, fields, to string) action {
	return action{
		At: at + "/" + verb, Title: title, Write: "POST " + strings.TrimSuffix(row, everyOrg) + "/" + verb, Read: row,
		Fields: fields, Button: strings.TrimSuffix(title, " {name}"), Done: done, To: to, Now: true,
	}
}

// everyOrg selects a row by its id, whichever org it is of.
const everyOrg = "?every=true"

const (
	webhookAt, webhookAPI     = "webhooks/{id}", webhooksAPI + "/{id}" + everyOrg
	candidateAt, candidateAPI = "candidates/{name}", candidatesAPI + "/{name}"
)

// accessActions change webhooks and tokens.
var accessActions = []action{
	clicking(webhookAt, webhookAPI, "test", "Send a test event", "A test event is on its way", "reason!",
		"webhooks"),
	clicking(webhookAt, webhookAPI, "enable", "Enable the webhook", "It is enabled", "reason!", "webhooks"),
	clicking(webhookAt, webhookAPI, "disable", "Disable the webhook", "It is disabled", "reason!", "webhooks"),
	clicking(webhookAt, webhookAPI, "rotate", "Rotate the secret", "webhook {url}", "now reason!", "webhooks"),
	deleting(webhookAt+"/delete", "Delete", "webhook {url}", "deleted", webhooksAPI+"/{id}", webhookAPI, "webhooks"),
	deleting("tokens/{name}/revoke", "Revoke", "token {name}", "revoked", tokensAPI+"/{name}",
		tokensAPI+"/{name}", "tokens"),
}

// candidateActions start, widen, promote and end candidates.
var candidateActions = []action{
	{
		At: "new/candidates", Title: "Open a candidate", Write: "POST " + candidatesAPI, Row: "candidate",
		Fields: "name reason", Done: "The candidate {name} is open: it changes no policy yet", To: candidateAt,
	},
	{
		At: candidateAt + "/new-policy", Title: "A policy of the candidate {name}", To: candidateAt,
		Write: "PUT " + candidateAPI + "/policies", Fields: policyKey + policyFields + policyMore, Draft: true,
		Done: "The candidate {name} is changed",
	},
	{
		At: candidateAt + "/policies/{id}", Title: "A policy of the candidate {name}", To: candidateAt,
		Write: "PUT " + candidateAPI + "/policies", Read: policiesAPI + "/{id}", Fields: policyFields,
		Draft: true, Done: "The candidate {name} is changed",
	},
	{
		At: candidateAt + "/undo", Title: "A policy of the candidate {name}", To: candidateAt,
		Write:  "DELETE " + candidateAPI + "/policies",
		Fields: "policy tier tenant user credential ip for endpoint namespace undo reason", Draft: true,
		Done: "The candidate {name} is changed",
	},
	{
		At: candidateAt + "/assign", Title: "Enforce {name} for some tenants", Write: "POST " + candidateAPI + "/assign",
		Read: candidateAPI, Row: "candidate", Fields: "percent add remove reason", To: candidateAt,
		Done: "The candidate {name} is enforced for these tenants",
	},
	clicking(candidateAt, candidateAPI, "promote", "Promote {name}", "{name} is promoted", "reason | if_version",
		candidateAt),
	clicking(candidateAt, candidateAPI, "rollback", "Roll back {name}", "{name} is rolled back", whyField, candidateAt),
	clicking(candidateAt, candidateAPI, "rebase", "Rebase {name}", "{name} is rebased", "reason | version", candidateAt),
	deleting(candidateAt+"/drop", "Drop", "candidate {name}", "dropped", candidateAPI, candidateAPI, candidateAt),
}

func actionPages() []page {
	list := slices.Concat(accessActions, candidateActions, tenantActions)
	for i := range listings {
		list = append(list, listings[i].actions()...)
	}
	return pagesOf(list, admins)
}

func pagesOf(list []action, roles []api.Role) (all []page) {
	for i := range list {
		for _, method := range []string{"GET ", "POST "} {
			all = append(all, page{Pattern: method + home + list[i].At, For: roles, Serve: list[i].serve})
		}
	}
	return all
}
