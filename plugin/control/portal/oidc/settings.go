package oidc

import (
	"errors"
	"fmt"
	"net/url"
	"os"
	"slices"
	"strings"

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
