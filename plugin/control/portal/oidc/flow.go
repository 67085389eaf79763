// Package oidc signs people in to the portal by OpenID Connect: the authorization code flow with PKCE (S256), for a
// confidential client or a public one.
//
// [Flow.Start] sends a browser to the provider, and [Flow.Finish] gets it back. Between the two, a sealed cookie of
// its own for each sign-in keeps the nonce, the verifier of PKCE and the page to return to, so that two tabs do not
// disturb each other and a sign-in ends in the browser where it began. The callback exchanges the code, verifies the ID
// token, and reads the role from a claim. Package portal starts the session, which is not kept here.
//
// The provider's configuration is fetched when it is needed. A provider that is unavailable
// is therefore no failure of the process: sign-in says so, and works again once the provider does.
package oidc

import (
	"crypto/rand"
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"strings"
	"sync/atomic"
	"time"
	"unicode"

	gooidc "github.com/coreos/go-oidc/v3/oidc"
	"golang.org/x/oauth2"
	"golang.org/x/sync/singleflight"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/control/api"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/control/portal/session"
)

const (
	// cookiePrefix begins the names of the cookies of sign-ins. The state follows.
	cookiePrefix = "ratelimit_oidc_"
	// attemptLife bounds how long a person may take at the provider.
	attemptLife = 10 * time.Minute
	// maxAttempts bounds the sign-ins that a browser has begun, so that its headers stay short.
	maxAttempts = 6
	// stateLength is the length of a state.
	stateLength = 26
	// maxNext bounds the bytes of the page to return to, as the cookie has it: with maxAttempts cookies, the headers of a
	// browser must be shorter than the 16 KiB that the server reads.
	maxNext = 1024
)

// Options configure a Flow.
type Options struct {
	Settings
	Now func() time.Time
	Log *slog.Logger
}

// Flow signs people in. It is safe for concurrent use. Create it with New.
type Flow struct {
	Options
	client  *http.Client
	fetches singleflight.Group
	kept    atomic.Pointer[configuration] // the last that was fetched; nil: none was
}

// attempt is a sign-in that a browser has begun. Its cookie is named after its state.
type attempt struct {
	Nonce    string `json:"n"`
	Verifier string `json:"v"`
	Next     string `json:"r"` // the page to show afterwards
}

// New returns a Flow. Its settings must be valid. It makes no connection.
func New(o Options) *Flow {
	transport := &http.Transport{Proxy: http.ProxyFromEnvironment, DisableKeepAlives: true} // sign-ins are rare
	return &Flow{Options: o, client: &http.Client{
		Transport: boundedAnswers{transport}, Timeout: providerTimeout, CheckRedirect: denyRedirects,
	}}
}

// Start sends a browser to the provider, if that is available. The query may have next, the page to show afterwards,
// and switch, so that the provider does not take the account that the browser is signed in with. The jar keeps what
// lasts until the way back.
func (f *Flow) Start(w http.ResponseWriter, r *http.Request, jar *session.Jar) *Fault {
	found, err := f.discover(r.Context(), keepAvailable)
	if err != nil {
		return discoveryFault(err)
	}
	dropMany(w, r, jar)
	state := rand.Text()
	a := attempt{Nonce: rand.Text(), Verifier: oauth2.GenerateVerifier()}
	next := r.URL.Query().Get("next")
	if text, err := json.Marshal(next); err == nil && len(text) <= maxNext {
		a.Next = next
	}
	if err := jar.Put(w, r, cookiePrefix+state, a, attemptLife); err != nil {
		return &Fault{http.StatusForbidden, "Signing in is denied, because " + err.Error() + ".", err}
	}
	options := []oauth2.AuthCodeOption{oauth2.S256ChallengeOption(a.Verifier), gooidc.Nonce(a.Nonce)}
	if r.URL.Query().Has("switch") {
		options = append(options, oauth2.SetAuthURLParam("prompt", "login"))
	}
	http.Redirect(w, r, found.client.AuthCodeURL(state, options...), http.StatusSeeOther)
	return nil
}

// Finish gets a browser back from the provider, and returns who signs in there, and the page to show afterwards. The
// name of the caller is the actor in the audit.
func (f *Flow) Finish(w http.ResponseWriter, r *http.Request, jar *session.Jar) (c api.Caller, next string, _ *Fault) {
	a, fault := f.takeAttempt(w, r, jar)
	if fault == nil {
		c, fault = f.identify(r.Context(), r.URL.Query().Get("code"), a)
	}
	return c, a.Next, fault
}

// takeAttempt returns the sign-in that a callback belongs to, and has the browser delete its cookie. What the provider
// reports is shown only then: anyone can make a link to the callback.
func (f *Flow) takeAttempt(w http.ResponseWriter, r *http.Request, jar *session.Jar) (a attempt, _ *Fault) {
	query := r.URL.Query()
	state := query.Get("state")
	if len(state) != stateLength || !jar.Get(r, cookiePrefix+state, &a) {
		origin := strings.TrimSuffix(f.RedirectURL, CallbackPath)
		return a, &Fault{http.StatusBadRequest, "This sign-in was not started in this browser at " + origin +
			", was used already, or took longer than 10 minutes. Start again.", errors.New("no cookie for the state")}
	}
	jar.Delete(w, r, cookiePrefix+state)
	switch code, more := query.Get("error"), query.Get("error_description"); {
	case query.Has("iss") && query.Get("iss") != f.Issuer:
		return a, invalid(errors.New("the callback names another issuer"))
	case code != "":
		text := code
		if more != "" {
			text += ": " + more
		}
		return a, &Fault{http.StatusForbidden, "The identity provider reports: " + shorten(text), errors.New(text)}
	case query.Get("code") == "":
		return a, invalid(errors.New("the callback has no code"))
	}
	return a, nil
}

// dropMany has the browser delete the cookies of all sign-ins if it has begun many.
func dropMany(w http.ResponseWriter, r *http.Request, jar *session.Jar) {
	var begun []string
	for _, c := range r.Cookies() {
		if name := strings.TrimPrefix(c.Name, "__Host-"); strings.HasPrefix(name, cookiePrefix) {
			begun = append(begun, name)
		}
	}
	if len(begun) < maxAttempts {
		return
	}
	for _, name := range begun {
		jar.Delete(w, r, name)
	}
}

// Fault is the reason why a person was not signed in.
type Fault struct {
	Status int
	Text   string // for the person
	err    error  // for the log
}

// Error implements error. It is for the log.
func (f *Fault) Error() string { return shorten(f.err.Error()) }

const (
	unavailableText = "The identity provider is not available at the moment. Try again in a minute, or sign in with a " +
		"token."
	setupText = "Sign-in with the identity provider is not set up correctly: an operator finds the cause in the log " +
		"of this process. Until then, sign in with a token."
	invalidText = "The answer of the identity provider is not valid. Start again; if it happens again, an operator " +
		"finds the cause in the log of this process."
	usedText = "The identity provider does not accept this sign-in: it was used already, or took too long. Start again."
	// maxReported bounds what is shown of an error that the provider reports, in characters.
	maxReported = 300
)

// invalid returns the fault of an answer that must not be trusted.
func invalid(err error) *Fault { return &Fault{http.StatusBadGateway, invalidText, err} }

// discoveryFault returns the fault of a failure to fetch the provider's configuration.
func discoveryFault(err error) *Fault {
	if errors.Is(err, errUnavailable) {
		return &Fault{http.StatusServiceUnavailable, unavailableText, err}
	}
	return &Fault{http.StatusServiceUnavailable, setupText, err}
}

// exchangeFault returns the fault of a failure to exchange a code.
func exchangeFault(err error) *Fault {
	denied := new(oauth2.RetrieveError)
	if !errors.As(err, &denied) || denied.Response.StatusCode >= http.StatusInternalServerError {
		return &Fault{http.StatusServiceUnavailable, unavailableText, err}
	}
	switch denied.ErrorCode {
	case "invalid_grant":
		return &Fault{http.StatusBadRequest, usedText, err}
	case "invalid_client", "unauthorized_client", "invalid_scope", "unsupported_grant_type":
		return &Fault{http.StatusServiceUnavailable, setupText, err}
	}
	return invalid(err)
}

// shorten returns a text of the provider for a page: on one line, and not long.
func shorten(text string) string {
	clean := strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return ' '
	}, strings.ToValidUTF8(text, "�"))
	if runes := []rune(clean); len(runes) > maxReported {
		return string(runes[:maxReported]) + "…"
	}
	return clean
}
