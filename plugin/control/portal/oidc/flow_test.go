package oidc

import (
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/oidctest"
)

// accounts are the people whom the provider of the tests has.
var accounts = map[string]map[string]any{
	"ann": {"roles": []string{"staff", "ratelimit:viewer", "ratelimit:admin"}, "email": "ann@example.org"},
	"ben": {"roles": "ratelimit:viewer", "preferred_username": "ben"},
	"cat": {"roles": []string{"ratelimit:tenant:acme"}},
	"dan": {"email": "dan@example.org"},
	"eve": {"roles": []string{"ratelimit:tenant:acme", "ratelimit:tenant:other"}},
}

// newWorld starts a portal and a provider that has its client, with a secret or without.
func newWorld(t *testing.T, secret string, inIDToken bool) (*site, provider) {
	t.Helper()
	s, settings := newSite(t), Settings{}
	p := provider{oidctest.Start(t, oidctest.Config{
		ClientID: clientID, Secret: secret, RedirectURL: s.URL + CallbackPath, Accounts: accounts, ClaimsInIDToken: inIDToken,
	})}
	if secret != "" {
		settings.SecretFile = filepath.Join(t.TempDir(), "secret")
		require.NoError(t, os.WriteFile(settings.SecretFile, []byte(secret+"\n"), 0o600))
	}
	settings.Issuer = p.Issuer
	s.use(t, settings)
	return s, p
}

func TestPeopleSignInWithTheRoleOfTheirClaims(t *testing.T) {
	t.Parallel()
	for name, secret := range map[string]string{"public client": "", "confidential client": "a secret: 100% safe+"} {
		s, p := newWorld(t, secret, secret != "")
		for account, c := range map[string]struct {
			status int
			text   string
		}{
			"ann": {http.StatusOK, "oidc:ann@example.org is admin  at /portal/top"},
			"ben": {http.StatusOK, "oidc:ben is viewer  at /portal/top"},
			"cat": {http.StatusOK, "oidc:cat is tenant acme at /portal/top"},
			"dan": {http.StatusForbidden, "You are dan@example.org, but the claim roles gives you no role here: it has none of"},
			"eve": {http.StatusForbidden, `it names several tenants, "acme" and "other"`},
		} {
			t.Log(name, account)
			r, err := p.SignIn(newBrowser(t), s.URL+StartPath+"?next=/portal/top", account)
			expect(t, r, err, c.status, c.text)
		}
	}
}

func TestASignInEndsOnceInTheBrowserWhereItBegan(t *testing.T) {
	t.Parallel()
	s, p := newWorld(t, "", false)
	b := stopAtCallback(newBrowser(t))
	start := s.URL + StartPath
	first, err := p.SignIn(b, start+"?next=/portal/first", "ann")
	back := callbackOf(t, first, err)
	site := &url.URL{Scheme: "http", Host: back.Host, Path: "/"}
	cookies := b.Jar.Cookies(site)
	second, err := b.Get(start + "?next=/portal/second&switch") // another tab
	require.NoError(t, err)
	second.Body.Close()

	const notHere = "was not started in this browser"
	get(t, newBrowser(t), back.String(), http.StatusBadRequest, notHere)
	forged := *back
	query := forged.Query()
	query.Set("state", "AAAAAAAAAAAAAAAAAAAAAAAAAA")
	forged.RawQuery = query.Encode()
	get(t, b, forged.String(), http.StatusBadRequest, notHere)

	get(t, b, back.String(), http.StatusOK, "at /portal/first")
	get(t, b, back.String(), http.StatusBadRequest, notHere) // its cookie is gone
	b.Jar.SetCookies(site, cookies)
	get(t, b, back.String(), http.StatusBadRequest, "it was used already")
}

func TestAnErrorOfTheProviderIsShownToTheBrowserThatItIsFor(t *testing.T) {
	t.Parallel()
	s, p := newWorld(t, "", false)
	r, err := p.Cancel(newBrowser(t), s.URL+StartPath)
	expect(t, r, err, http.StatusForbidden, "The identity provider reports: access_denied: End-User aborted interaction")
	get(t, newBrowser(t), s.URL+CallbackPath+"?error=call+1-800&state=x", http.StatusBadRequest, "was not started")
}

func TestAProviderThatWasAwayOrHasOtherKeysIsUsedAgain(t *testing.T) {
	t.Parallel()
	s, p := newWorld(t, "", false)
	start := s.URL + StartPath
	p.Stop()
	get(t, newBrowser(t), start, http.StatusServiceUnavailable, "Try again in a minute, or sign in")
	p.Restart()
	r, err := p.SignIn(newBrowser(t), start, "ann")
	expect(t, r, err, http.StatusOK, "oidc:ann@example.org is admin")

	p.Restart() // with other keys
	r, err = p.SignIn(newBrowser(t), start, "ann")
	expect(t, r, err, http.StatusOK, "oidc:ann@example.org is admin")

	b := stopAtCallback(newBrowser(t))
	r, err = p.SignIn(b, start, "ann")
	back := callbackOf(t, r, err)
	p.Stop() // between the form and the callback
	get(t, b, back.String(), http.StatusServiceUnavailable, "not available at the moment")
}

func TestAWrongSecretIsReportedAsAFaultOfTheSetUp(t *testing.T) {
	t.Parallel()
	s, p := newWorld(t, "right", false)
	require.NoError(t, os.WriteFile(s.flow.SecretFile, []byte("wrong"), 0o600))
	r, err := p.SignIn(newBrowser(t), s.URL+StartPath, "ann")
	expect(t, r, err, http.StatusServiceUnavailable, "not set up correctly")
	require.NoError(t, os.WriteFile(s.flow.SecretFile, []byte("right"), 0o600))
	r, err = p.SignIn(newBrowser(t), s.URL+StartPath, "ann") // the file is read again
	expect(t, r, err, http.StatusOK, "is admin")
}
