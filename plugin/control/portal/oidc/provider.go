package oidc

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	gooidc "github.com/coreos/go-oidc/v3/oidc"
	"golang.org/x/oauth2"
)

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
	endpoint oauth2.Endpoint
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
		if u, err := parseEndpoint(text); err != nil {
			return nil, fmt.Errorf("the provider's %s: %q: %w", name, u, err)
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
	return &configuration{provider, verifier, endpoint, f.Now()}, nil
}

// parseEndpoint parses a URL of the provider, which may have a query.
func parseEndpoint(text string) (string, error) {
	before, _, _ := strings.Cut(text, "?")
	_, err := parseURL(before)
	return text, err
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
