package portal

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"net/http/cookiejar"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/logtest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/control/api"
)

// Secrets of the tokens of these tests.
const (
	adminSecret  = "secret-admin"
	viewerSecret = "secret-viewer"
	acmeSecret   = "secret-acme"
	awaySecret   = "secret-away"  // the database is unavailable
	manySecret   = "secret-many"  // the address has sent too many
	oftenSecret  = "secret-often" // the token has signed in too often
	panicSecret  = "secret-panic" // the look-up panics
)

// ring resolves these tokens, which can be revoked.
type ring struct {
	mu     sync.Mutex
	tokens map[string]api.Caller
	from   []string // the addresses of the look-ups
}

func newRing() *ring {
	return &ring{tokens: map[string]api.Caller{
		adminSecret:  {Token: "ann", Role: api.Admin},
		viewerSecret: {Token: "vic", Role: api.Viewer},
		acmeSecret:   {Token: "acme-portal", Role: api.Tenant, Org: "acme"},
	}}
}

// Authenticate implements API.
func (t *ring) Authenticate(_ context.Context, secret, address string) (api.Caller, time.Duration, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.from = append(t.from, address)
	caller, ok := t.tokens[secret]
	switch {
	case ok:
		return caller, 0, nil
	case secret == awaySecret:
		return api.Caller{}, 0, errors.New("no connection: password=hunter2")
	case secret == manySecret:
		return api.Caller{}, 1500 * time.Millisecond, api.ErrTooManyGuesses
	case secret == oftenSecret:
		return api.Caller{}, time.Second, api.ErrTooManySignIns
	case secret == panicSecret:
		panic("a bug: hunter2")
	}
	return api.Caller{}, 0, api.ErrUnknownToken
}

// CountSignIn implements API.
func (*ring) CountSignIn(_ context.Context, c api.Caller, _ string) (time.Duration, error) {
	if c.Token == "oidc:often" {
		return time.Second, api.ErrTooManySignIns
	}
	return 0, nil
}

func (t *ring) set(secret string, to api.Caller) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.tokens = maps.Clone(t.tokens)
	if t.tokens[secret] = to; to == (api.Caller{}) {
		delete(t.tokens, secret)
	}
}

// scripted is an API that answers by path, and records the callers of its requests.
type scripted struct {
	mu      sync.Mutex
	answers map[string]func(http.ResponseWriter, *http.Request, api.Caller)
	calls   []string
}

// ServeAs implements API.
func (s *scripted) ServeAs(w http.ResponseWriter, r *http.Request, c api.Caller) {
	s.mu.Lock()
	s.calls = append(s.calls, c.Token+" "+r.Method+" "+r.URL.RequestURI())
	answer := s.answers[r.Method+" "+r.URL.Path]
	s.mu.Unlock()
	if answer == nil {
		w.Header().Set("Content-Type", "application/problem+json")
		w.WriteHeader(http.StatusNotFound)
		_, _ = io.WriteString(w, `{"status":404,"title":"Not Found","detail":"nothing is here"}`)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	answer(w, r, c)
}

// requests returns the requests so far, as "caller method path".
func (s *scripted) requests() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.calls)
}

// answer has the API answer a request with a status and a body.
func (s *scripted) answer(request string, status int, body string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.answers == nil {
		s.answers = map[string]func(http.ResponseWriter, *http.Request, api.Caller){}
	}
	s.answers[request] = func(w http.ResponseWriter, _ *http.Request, _ api.Caller) {
		w.WriteHeader(status)
		_, _ = io.WriteString(w, body)
	}
}

// joined is an API that answers by one thing and resolves tokens by another.
type joined struct {
	answering interface {
		ServeAs(w http.ResponseWriter, r *http.Request, c api.Caller)
	}
	*ring
}

// ServeAs implements API.
func (j joined) ServeAs(w http.ResponseWriter, r *http.Request, c api.Caller) {
	j.answering.ServeAs(w, r, c)
}

// world is a portal behind a server on this machine.
type world struct {
	testing.TB
	portal *Portal
	api    *scripted
	tokens *ring
	server *httptest.Server
	log    *logtest.Text
	// transport is not that of other tests, whose servers close the idle connections of the default one.
	transport *http.Transport
}

// open starts a portal; edit changes its options.
func open(t testing.TB, edit ...func(*Options)) *world {
	t.Helper()
	w := &world{TB: t, api: &scripted{}, tokens: newRing(), log: &logtest.Text{}, transport: &http.Transport{}}
	o := Options{API: joined{w.api, w.tokens}, Log: slog.New(slog.NewTextHandler(w.log, nil))}
	for _, e := range edit {
		e(&o)
	}
	var err error
	if w.portal, err = New(o); err != nil {
		t.Fatal(err)
	}
	w.server = httptest.NewServer(w.portal)
	t.Cleanup(func() { w.transport.CloseIdleConnections(); w.server.Close() })
	return w
}

// browser is a client with cookies that does not follow redirects.
type browser struct {
	*world
	client *http.Client
}

func (w *world) browser() *browser {
	w.Helper()
	jar, err := cookiejar.New(nil)
	require.NoError(w, err)
	return &browser{w, &http.Client{
		Transport: w.transport, Jar: jar,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}
}

// signedIn returns a browser with the session of a token.
func (w *world) signedIn(secret string) *browser {
	w.Helper()
	b := w.browser()
	if a := b.post(signInPath, url.Values{"token": {secret}}); a.StatusCode != http.StatusSeeOther {
		w.Fatalf("signing in: %s\n%s", a.Status, a.text)
	}
	return b
}

// shown is an answer with its text.
type shown struct {
	*http.Response
	text string
}

func (b *browser) do(method, path, body string, header ...string) shown {
	b.Helper()
	r, err := http.NewRequestWithContext(b.Context(), method, b.server.URL+path, strings.NewReader(body))
	require.NoError(b, err)
	for i := 0; i < len(header); i += 2 {
		r.Header.Add(header[i], header[i+1])
	}
	a, err := b.client.Do(r)
	require.NoError(b, err)
	defer a.Body.Close()
	text, err := io.ReadAll(a.Body)
	require.NoError(b, err)
	return shown{a, string(text)}
}

// get returns the page of a path.
func (b *browser) get(path string) shown { b.Helper(); return b.do("GET", path, "") }

// post sends a form as a page of the portal does.
func (b *browser) post(path string, form url.Values) shown {
	b.Helper()
	return b.do("POST", path, form.Encode(),
		"Content-Type", "application/x-www-form-urlencoded", "Sec-Fetch-Site", "same-origin")
}

// want fails the test unless a page has a status and contains texts.
func (w *world) want(a shown, status int, texts ...string) shown {
	w.Helper()
	if a.StatusCode != status {
		w.Errorf("%s %s: %s, want %d\n%s", a.Request.Method, a.Request.URL, a.Status, status, a.text)
	}
	for _, text := range texts {
		if !strings.Contains(a.text, text) {
			w.Errorf("%s %s: no %q in\n%s", a.Request.Method, a.Request.URL, text, a.text)
		}
	}
	return a
}
