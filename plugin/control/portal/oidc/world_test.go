package oidc

import (
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/cookiejar"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/leaktest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/control/portal/session"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

const clientID = "ratelimit-portal"

// site is a portal that answers with what a Flow does.
type site struct {
	*httptest.Server
	flow  *Flow
	jar   *session.Jar
	ahead atomic.Int64 // nanoseconds of the portal's clock
}

// newSite starts a portal without a Flow.
func newSite(t *testing.T) *site {
	t.Helper()
	s := &site{}
	var err error
	if s.jar, err = session.NewJar(make([]byte, session.KeySize), s.now); err != nil {
		t.Fatal(err)
	}
	s.Server = httptest.NewServer(http.HandlerFunc(s.answer))
	t.Cleanup(s.Close)
	return s
}

// answer answers with what the Flow does.
func (s *site) answer(w http.ResponseWriter, r *http.Request) {
	if r.URL.Path == StartPath {
		if fault := s.flow.Start(w, r, s.jar); fault != nil {
			http.Error(w, fault.Text, fault.Status)
		}
		return
	}
	c, next, fault := s.flow.Finish(w, r, s.jar)
	if fault != nil {
		http.Error(w, fault.Text, fault.Status)
		return
	}
	fmt.Fprintf(w, "%s is %s %s at %s", c.Token, c.Role, c.Org, next)
}

func (s *site) now() time.Time { return time.Now().Add(time.Duration(s.ahead.Load())) }

// use gives the portal a Flow with an issuer and the other settings that are not zero.
func (s *site) use(t *testing.T, settings Settings) {
	t.Helper()
	settings.ClientID, settings.RedirectURL, settings.Scopes = clientID, s.URL+CallbackPath, DefaultScopes
	if settings.RolesClaim == "" {
		settings.RolesClaim = DefaultRolesClaim
	}
	require.NoError(t, settings.Validate())
	s.flow = New(Options{Settings: settings, Now: s.now, Log: slog.New(slog.DiscardHandler)})
}

// newBrowser returns a client that keeps cookies and follows redirects, without idle connections.
func newBrowser(t *testing.T) *http.Client {
	t.Helper()
	jar, err := cookiejar.New(nil)
	require.NoError(t, err)
	return &http.Client{Jar: jar, Transport: &http.Transport{DisableKeepAlives: true}}
}

// stopAtCallback has a client not follow the redirect back to the portal.
func stopAtCallback(b *http.Client) *http.Client {
	b.CheckRedirect = func(r *http.Request, _ []*http.Request) error {
		if r.URL.Path == CallbackPath {
			return http.ErrUseLastResponse
		}
		return nil
	}
	return b
}

// callbackOf returns the URL of the callback that a response redirects to.
func callbackOf(t *testing.T, r *http.Response, err error) *url.URL {
	t.Helper()
	require.NoError(t, err)
	r.Body.Close()
	to, err := r.Location()
	if err != nil || to.Path != CallbackPath {
		t.Fatalf("status %d at %s leads to %v, %v; want the callback", r.StatusCode, r.Request.URL, to, err)
	}
	return to
}

// expect fails the test unless a response has a status and a part of its text.
func expect(t *testing.T, r *http.Response, err error, status int, part string) {
	t.Helper()
	require.NoError(t, err)
	defer r.Body.Close()
	text, err := io.ReadAll(r.Body)
	require.NoError(t, err)
	if r.StatusCode != status || !strings.Contains(string(text), part) {
		t.Errorf("%s: status %d and %q, want %d and %q", r.Request.URL.Path, r.StatusCode, text, status, part)
	}
}

// get opens a page.
func get(t *testing.T, b *http.Client, page string, status int, part string) {
	t.Helper()
	r, err := b.Get(page)
	expect(t, r, err, status, part)
}
