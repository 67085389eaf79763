package server

import (
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/control/api"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/control/portal"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/control/portal/oidc"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/control/portal/session"
)

// Portal configures the pages for people.
type Portal struct {
	On      bool
	KeyFile string // "": a random key
	Idle    time.Duration
	OIDC    oidc.Settings // without an issuer: people sign in with tokens only
}

// newPortal returns the portal, or nil if it is off.
func (s *Settings) newPortal(
	rest *api.Server, numbers prometheus.Registerer, log *slog.Logger,
) (*portal.Portal, error) {
	if !s.Portal.On {
		return nil, nil
	}
	key, err := s.Portal.readKey()
	if err != nil {
		return nil, err
	}
	o := portal.Options{
		API: portalAPI{rest}, Tokens: portalAPI{rest}, Log: log, Key: key, Idle: s.Portal.Idle, Metrics: numbers,
	}
	if s.Portal.OIDC.Issuer != "" {
		o.Provider = oidc.New(oidc.Options{Settings: s.Portal.OIDC, Now: time.Now, Log: log})
	}
	return portal.New(o)
}

// readKey returns the key of the file: 32 bytes, as they are or in base64.
func (p *Portal) readKey() ([]byte, error) {
	if p.KeyFile == "" {
		return nil, nil
	}
	text, err := os.ReadFile(p.KeyFile)
	if err != nil {
		return nil, fmt.Errorf("--portal-key-file: %w", err)
	}
	if len(text) == session.KeySize {
		return text, nil
	}
	key, err := base64.StdEncoding.DecodeString(string(bytes.TrimSpace(text)))
	if err != nil || len(key) != session.KeySize {
		return nil, fmt.Errorf("--portal-key-file: %s must have %d random bytes, as they are or in base64: make one with "+
			"openssl rand -base64 32", p.KeyFile, session.KeySize)
	}
	return key, nil
}

// portalAPI connects the portal with the API of the process.
type portalAPI struct{ *api.Server }

// ServeAs implements [portal.API].
func (a portalAPI) ServeAs(w http.ResponseWriter, r *http.Request, c portal.Caller) {
	a.Server.ServeAs(w, r, api.Caller{Token: c.Name, Role: api.Role(c.Role), Org: c.Org, Routine: c.Poll})
}

// Authenticate implements [portal.Authenticator].
func (a portalAPI) Authenticate(
	ctx context.Context, secret, address string,
) (portal.Caller, time.Duration, error) {
	caller, wait, err := a.Server.Authenticate(ctx, secret, address)
	switch {
	case errors.Is(err, api.ErrUnknownToken):
		err = portal.ErrUnknownToken
	case errors.Is(err, api.ErrTooManyGuesses):
		err = portal.ErrTooManyTokens
	case errors.Is(err, api.ErrTooManySignIns):
		err = portal.ErrTooManySignIns
	}
	return portal.Caller{Name: caller.Token, Role: string(caller.Role), Org: caller.Org}, wait, err
}

// httpServer returns the HTTP server of the API, and of the portal unless it is nil.
func (s *Settings) httpServer(rest *api.Server, pages *portal.Portal) *http.Server {
	server := rest.HTTPServer()
	if pages != nil {
		server.Handler = mount(rest, pages)
		server.RegisterOnShutdown(pages.Close)
	}
	server.Handler = s.TrustedProxies.replacePeer(server.Handler)
	return server
}

// mount returns a handler of the API and of the portal beside it. Browsers that open the address itself get the portal.
func mount(api http.Handler, pages *portal.Portal) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch path := r.URL.Path; {
		case strings.HasPrefix(path, "/portal/"):
			pages.ServeHTTP(w, r)
		case path == "/portal", path == "/" && strings.Contains(r.Header.Get("Accept"), "text/html"):
			w.Header().Set("Cache-Control", "no-store")
			http.Redirect(w, r, "/portal/", http.StatusSeeOther)
		default:
			api.ServeHTTP(w, r)
		}
	})
}
