package oidctest_test

import (
	"net/http"
	"net/http/cookiejar"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/oidctest"
)

// newBrowser returns a client that keeps cookies and follows redirects, without idle connections.
func newBrowser(t *testing.T) *http.Client {
	t.Helper()
	jar, err := cookiejar.New(nil)
	require.NoError(t, err)
	return &http.Client{Jar: jar, Transport: &http.Transport{DisableKeepAlives: true}}
}

func TestAProviderSendsBrowsersBackWithACodeOrAnError(t *testing.T) {
	t.Parallel()
	client := httptest.NewServer(http.NotFoundHandler())
	t.Cleanup(client.Close)
	p := oidctest.Start(t, oidctest.Config{
		ClientID: "portal", RedirectURL: client.URL + "/callback",
		Accounts: map[string]map[string]any{"ann": {"roles": "a"}},
	})
	page := p.Issuer + "/auth?" + url.Values{
		"client_id": {"portal"}, "response_type": {"code"}, "redirect_uri": {client.URL + "/callback"}, "scope": {"openid"},
		"state": {"s"}, "code_challenge": {strings.Repeat("a", 43)}, "code_challenge_method": {"S256"},
	}.Encode()
	for name, c := range map[string]struct {
		open func(*http.Client) (*http.Response, error)
		want string
	}{
		"code":  {func(b *http.Client) (*http.Response, error) { return p.SignIn(b, page, "ann") }, "code"},
		"error": {func(b *http.Client) (*http.Response, error) { return p.Cancel(b, page) }, "error"},
	} {
		response, err := c.open(newBrowser(t))
		require.NoErrorf(t, err, "%s", name)
		response.Body.Close()
		to := response.Request.URL
		if to.Path != "/callback" || to.Query().Get(c.want) == "" || to.Query().Get("state") != "s" {
			t.Errorf("%s: the browser ends at %s", name, to)
		}
	}
}
