package portal

import (
	"cmp"
	"net/http"
	"net/url"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/control/answers"
)

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
