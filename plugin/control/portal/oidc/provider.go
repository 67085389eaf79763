package oidc

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strings"
	"time"

	gooidc "github.com/coreos/go-oidc/v3/oidc"
	"golang.org/x/oauth2"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/control/portal/session"
)

const (
	// CallbackPath is the path that the provider sends browsers back to.
	CallbackPath = "/portal/oidc/callback"
	// StartPath is the path that begins a sign-in.
	StartPath = "/portal/oidc/start"
	// DefaultRolesClaim is the claim with the roles if no other is named.
	DefaultRolesClaim = "roles"
	// DefaultScopes are the scopes that a sign-in requests if no others are named.
	DefaultScopes = "openid email profile"
)

// Settings name the provider and how this portal is registered there. Without an issuer, OpenID Connect is off.
type Settings struct {
	Issuer      string // exactly as the provider writes it in its tokens
	ClientID    string
	SecretFile  string // of a confidential client; "": a public client
	RedirectURL string // of this portal, with CallbackPath
	RolesClaim  string // the name of a claim, or a path of names with dots
	Scopes      string // separated by spaces, with openid
}

// Validate returns an error that names the flag of a setting that is missing, malformed or unsafe.
func (s *Settings) Validate() error {
	if s.Issuer == "" {
		if s.ClientID != "" || s.SecretFile != "" || s.RedirectURL != "" {
			return errors.New("--portal-oidc-issuer is missing: give it with the other --portal-oidc flags, or none of them")
		}
		return nil
	}
	if _, err := parseURL(s.Issuer); err != nil {
		return fmt.Errorf("--portal-oidc-issuer: %q: %w", s.Issuer, err)
	}
	redirect, err := parseURL(s.RedirectURL)
	switch {
	case s.ClientID == "":
		return errors.New("--portal-oidc-client-id is missing: give the id that the provider has for this portal")
	case s.RedirectURL == "":
		return errors.New("--portal-oidc-redirect-url is missing: give the URL of this portal for browsers, such as " +
			"https://limits.example.org" + CallbackPath)
	case err != nil:
		return fmt.Errorf("--portal-oidc-redirect-url: %q: %w", s.RedirectURL, err)
	case redirect.Path != CallbackPath:
		return fmt.Errorf("--portal-oidc-redirect-url: %q: the path must be %s", s.RedirectURL, CallbackPath)
	case strings.TrimSpace(s.RolesClaim) == "":
		return errors.New("--portal-oidc-roles-claim must name a claim, such as roles or realm_access.roles")
	case !slices.Contains(strings.Fields(s.Scopes), "openid"):
		return fmt.Errorf("--portal-oidc-scopes: %q: must include openid", s.Scopes)
	}
	_, err = s.secret()
	return err
}

// parseURL parses a URL of the provider or of the portal. It must be https, or http on this machine.
func parseURL(text string) (*url.URL, error) {
	u, err := url.Parse(text)
	switch {
	case err != nil || u.Host == "" || u.Scheme != "https" && u.Scheme != "http":
		return nil, errors.New("must be a URL such as https://login.example.org")
	case u.RawQuery != "" || u.ForceQuery || u.Fragment != "" || u.User != nil:
		return nil, errors.New("must have no query, fragment or password")
	case u.Scheme == "http" && !session.IsLoopback(u.Hostname()):
		return nil, errors.New("must be https, because others may read http; http is for this machine only")
	}
	return u, nil
}

// secret reads the client's secret, or returns "" for a public client. The file is read for every sign-in, so that a
// new secret is used.
func (s *Settings) secret() (string, error) {
	if s.SecretFile == "" {
		return "", nil
	}
	text, err := os.ReadFile(s.SecretFile)
	if err != nil {
		return "", fmt.Errorf("--portal-oidc-client-secret-file: %w", err)
	}
	secret := strings.TrimSpace(string(text))
	if secret == "" {
		return "", fmt.Errorf("--portal-oidc-client-secret-file: %s is empty", s.SecretFile)
	}
	return secret, nil
}

const (
	// providerTimeout bounds one request to the provider.
	providerTimeout = 5 * time.Second
	// maxAnswer bounds the bytes of an answer of the provider.
	maxAnswer = 1 << 20
	// keepAvailable is how long the provider counts as available after a fetch. Sign-ins begin only then, because
	// browsers that are sent to a provider which is away show an error of their own.
	keepAvailable = 30 * time.Second
	// skew is how far the clocks of this process and of the provider may differ.
	skew = time.Minute
)

// errUnavailable reports that the provider does not answer, or not as it should.
var errUnavailable = errors.New("the identity provider is not available")

// configuration is what the provider publishes of itself, and what follows of it.
type configuration struct {
	provider *gooidc.Provider
	verifier *gooidc.IDTokenVerifier
	client   oauth2.Config // without the secret
	fetched  time.Time
}

// discover returns the provider's configuration as it was fetched within a time.
func (f *Flow) discover(ctx context.Context, age time.Duration) (*configuration, error) {
	if kept := f.kept.Load(); kept != nil && f.Now().Sub(kept.fetched) < age {
		return kept, nil
	}
	select {
	case <-ctx.Done():
		return nil, errUnavailable
	case result := <-f.fetches.DoChan("", func() (any, error) { return f.fetch() }):
		found, _ := result.Val.(*configuration)
		return found, result.Err
	}
}

// fetch fetches the configuration and keeps it.
func (f *Flow) fetch() (*configuration, error) {
	found, err := f.read(gooidc.ClientContext(context.Background(), f.client))
	if err != nil {
		f.Log.Warn("fetching the configuration of the identity provider failed", "issuer", f.Issuer, "error", err)
		return nil, err
	}
	f.kept.Store(found)
	return found, nil
}

func (f *Flow) read(ctx context.Context) (*configuration, error) {
	provider, err := gooidc.NewProvider(ctx, f.Issuer)
	if err != nil {
		if mismatch := new(gooidc.IssuerMismatchError); errors.As(err, &mismatch) {
			return nil, fmt.Errorf("--portal-oidc-issuer: the provider calls itself %q: %w", mismatch.Discovered, err)
		}
		return nil, fmt.Errorf("%w: %s", errUnavailable, shorten(err.Error()))
	}
	var claims struct {
		Keys    string   `json:"jwks_uri"`
		Methods []string `json:"token_endpoint_auth_methods_supported"`
	}
	if err := provider.Claims(&claims); err != nil {
		return nil, fmt.Errorf("read the configuration: %w", err)
	}
	endpoint := provider.Endpoint()
	for name, text := range map[string]string{
		"authorization_endpoint": endpoint.AuthURL, "token_endpoint": endpoint.TokenURL, "jwks_uri": claims.Keys,
	} {
		if err := checkEndpoint(text); err != nil {
			return nil, fmt.Errorf("the provider's %s: %q: %w", name, text, err)
		}
	}
	endpoint.AuthStyle = oauth2.AuthStyleInHeader
	hasBasic := len(claims.Methods) == 0 || slices.Contains(claims.Methods, "client_secret_basic")
	if f.SecretFile == "" || !hasBasic {
		endpoint.AuthStyle = oauth2.AuthStyleInParams
	}
	verifier := provider.VerifierContext(ctx, &gooidc.Config{
		ClientID: f.ClientID,
		Now:      func() time.Time { return f.Now().Add(-skew) },
	})
	client := oauth2.Config{
		ClientID: f.ClientID, Endpoint: endpoint, RedirectURL: f.RedirectURL, Scopes: strings.Fields(f.Scopes),
	}
	return &configuration{provider, verifier, client, f.Now()}, nil
}

// checkEndpoint checks a URL of the provider, which may have a query.
func checkEndpoint(text string) error {
	before, _, _ := strings.Cut(text, "?")
	_, err := parseURL(before)
	return err
}

func denyRedirects(r *http.Request, _ []*http.Request) error {
	return fmt.Errorf("the provider redirects to %s, which it must not", r.URL.Redacted())
}

// boundedAnswers bounds the size of answers.
type boundedAnswers struct{ next http.RoundTripper }

// RoundTrip implements http.RoundTripper.
func (b boundedAnswers) RoundTrip(r *http.Request) (*http.Response, error) {
	response, err := b.next.RoundTrip(r)
	if err != nil {
		return nil, err
	}
	response.Body = http.MaxBytesReader(nil, response.Body, maxAnswer)
	return response, nil
}
