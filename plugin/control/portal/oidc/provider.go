package oidc

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	gooidc "github.com/coreos/go-oidc/v3/oidc"
	"golang.org/x/oauth2"
	"golang.org/x/sync/singleflight"
)

const (
	// providerTimeout bounds one request to the provider.
	providerTimeout = 5 * time.Second
	// maxAnswer bounds the bytes of an answer of the provider.
	maxAnswer = 1 << 20
	// keepConfiguration is how long the provider's configuration is used before it is fetched again.
	keepConfiguration = time.Hour
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

// discovery fetches the provider's configuration when it is needed, and keeps it. It is safe for concurrent use.
type discovery struct {
	settings *Settings
	client   *http.Client
	now      func() time.Time
	log      *slog.Logger
	fetches  singleflight.Group

	mu   sync.Mutex
	kept *configuration
}

func newDiscovery(s *Settings, now func() time.Time, log *slog.Logger) *discovery {
	transport := &http.Transport{Proxy: http.ProxyFromEnvironment, DisableKeepAlives: true} // sign-ins are rare
	return &discovery{settings: s, now: now, log: log, client: &http.Client{
		Transport: boundedAnswers{transport}, Timeout: providerTimeout, CheckRedirect: denyRedirects,
	}}
}

// get returns the provider's configuration. If it cannot be fetched again, the former one stays in use.
func (d *discovery) get(ctx context.Context) (*configuration, error) {
	found, err := d.fetchedWithin(ctx, keepConfiguration)
	d.mu.Lock()
	defer d.mu.Unlock()
	if err != nil && d.kept != nil {
		return d.kept, nil
	}
	return found, err
}

// fetchedWithin returns the provider's configuration as it was fetched within a time.
func (d *discovery) fetchedWithin(ctx context.Context, age time.Duration) (*configuration, error) {
	d.mu.Lock()
	kept := d.kept
	d.mu.Unlock()
	if kept != nil && d.now().Sub(kept.fetched) < age {
		return kept, nil
	}
	fetch := d.fetches.DoChan("", func() (any, error) { return d.fetch() })
	select {
	case <-ctx.Done():
		return nil, errUnavailable
	case result := <-fetch:
		found, _ := result.Val.(*configuration)
		return found, result.Err
	}
}

// fetch fetches the configuration and keeps it.
func (d *discovery) fetch() (*configuration, error) {
	found, err := d.read(gooidc.ClientContext(context.Background(), d.client))
	if err != nil {
		d.log.Warn("fetching the configuration of the identity provider failed", "issuer", d.settings.Issuer, "error", err)
		return nil, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.kept = found
	return found, nil
}

func (d *discovery) read(ctx context.Context) (*configuration, error) {
	provider, err := gooidc.NewProvider(ctx, d.settings.Issuer)
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
	if d.settings.SecretFile == "" || !hasBasic {
		endpoint.AuthStyle = oauth2.AuthStyleInParams
	}
	verifier := provider.VerifierContext(ctx, &gooidc.Config{
		ClientID: d.settings.ClientID,
		Now:      func() time.Time { return d.now().Add(-skew) },
	})
	return &configuration{provider, verifier, endpoint, d.now()}, nil
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
