package oidc

import (
	"fmt"
	"html"
	"io"
	"net/http"
	"net/url"
	"regexp"
	"strings"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/oidctest"
)

// provider is a provider whose forms are answered as a browser would.
type provider struct{ *oidctest.Provider }

// Parts of the provider's forms.
var (
	formAction = regexp.MustCompile(`<form[^>]* action="([^"]+)"`)
	formPrompt = regexp.MustCompile(`name="prompt" value="(\w+)"`)
	cancelLink = regexp.MustCompile(`<a href="([^"]+/abort)"`)
)

// maxForms bounds the forms of one sign-in: one with the name, and one to agree.
const maxForms = 3

// SignIn opens a page that leads to the provider, fills in its forms with an account, and returns the first response
// that is not one of its forms. The client must have a cookie jar. Callers close the body.
func (p provider) SignIn(client *http.Client, page, account string) (*http.Response, error) {
	return p.answer(client, page, func(form string) (*http.Response, error) {
		prompt, action := formPrompt.FindStringSubmatch(form), formAction.FindStringSubmatch(form)
		if prompt == nil || action == nil {
			return nil, fmt.Errorf("the provider shows no form: %s", form)
		}
		values := url.Values{"prompt": {prompt[1]}, "login": {account}, "password": {"any"}}
		return client.PostForm(html.UnescapeString(action[1]), values)
	})
}

// Cancel opens a page that leads to the provider, cancels there, and returns the response of the page after it.
func (p provider) Cancel(client *http.Client, page string) (*http.Response, error) {
	return p.answer(client, page, func(form string) (*http.Response, error) {
		link := cancelLink.FindStringSubmatch(form)
		if link == nil {
			return nil, fmt.Errorf("the provider shows no link to cancel: %s", form)
		}
		return client.Get(html.UnescapeString(link[1]))
	})
}

// answer opens a page, and answers the forms of the provider until a response is not one of them.
func (p provider) answer(
	client *http.Client, page string, fill func(form string) (*http.Response, error),
) (*http.Response, error) {
	response, err := client.Get(page)
	for range maxForms {
		if err != nil || response.StatusCode != http.StatusOK || !p.isAt(response.Request.URL) {
			return response, err
		}
		form, readErr := io.ReadAll(response.Body)
		_ = response.Body.Close() // it was read
		if readErr != nil {
			return nil, readErr
		}
		response, err = fill(string(form))
	}
	return response, err
}

// isAt reports whether a URL is the provider's.
func (p provider) isAt(u *url.URL) bool { return strings.HasPrefix(u.String(), p.Issuer+"/") }
