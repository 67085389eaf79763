package portal

import (
	"errors"
	"math"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/control/api"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/control/portal/oidc"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/control/portal/session"
)

const (
	signInPath = home + "sign-in"
	// maxSecret bounds a pasted token, in bytes.
	maxSecret = 256
)

// Notices of the sign-in page.
const (
	wrongToken  = "This token is unknown, expired or revoked."
	tokenEnded  = "You are signed out, because your token is no longer valid."
	signedOut   = "You are signed out."
	notSignedIn = "Your session has ended, so nothing was done. Sign in and try again."
)

// enter returns the caller of a request. Without a session, or with a token that is no longer valid, it has answered. A
// page that is left open does not prolong its session, and its live part ends with 401 when the session ends.
func (p *Portal) enter(w http.ResponseWriter, r *http.Request, isLive bool) (caller api.Caller, ok bool) {
	var who session.Session
	if isLive {
		who, ok = p.sessions.Read(r)
	} else {
		who, ok = p.sessions.Resume(w, r)
	}
	err := api.ErrUnknownToken
	if ok {
		caller, err = p.callerOf(r, who)
	}
	caller.Routine = isLive
	switch {
	case err == nil:
		return caller, true
	case isLive && errors.Is(err, api.ErrUnknownToken):
		p.showProblem(w, r, api.Caller{}, &problem{Status: http.StatusUnauthorized})
	case !ok:
		p.redirectToSignIn(w, r)
	case errors.Is(err, api.ErrUnknownToken):
		p.sessions.End(w, r)
		p.redirect(w, r, signInPath, notice{Text: tokenEnded})
	default:
		p.showProblem(w, r, api.Caller{}, p.tokenProblem(err))
	}
	return api.Caller{}, false
}

// callerOf returns the caller of a session. A token is checked each time, so it ends sessions when it is revoked.
func (p *Portal) callerOf(r *http.Request, who session.Session) (api.Caller, error) {
	if who.Secret == "" {
		return api.Caller{Token: who.Name, Role: api.Role(who.Role), Org: who.Org}, nil
	}
	caller, _, err := p.API.Authenticate(r.Context(), who.Secret, "")
	return caller, err
}

// tokenProblem returns the problem of a token that could not be checked.
func (p *Portal) tokenProblem(err error) *problem {
	switch {
	case errors.Is(err, api.ErrTooManyGuesses):
		return &problem{Status: http.StatusTooManyRequests, Detail: "Too many unknown tokens came from your address. " +
			"Try again in a minute."}
	case errors.Is(err, api.ErrTooManySignIns):
		return &problem{Status: http.StatusTooManyRequests, Detail: "Too many sign-ins with this token or " +
			"account. Try again in a minute. Sessions that have begun with it last."}
	}
	p.Log.Error("token lookup failed", "error", err)
	return &problem{
		Status: http.StatusServiceUnavailable, Detail: "Tokens cannot be checked at the moment. Try again soon.",
	}
}

// redirectToSignIn answers a request without a session.
func (p *Portal) redirectToSignIn(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		p.redirect(w, r, signInPath, notice{Text: notSignedIn})
		return
	}
	to := signInPath
	if next := r.URL.RequestURI(); next != home {
		to += "?next=" + url.QueryEscape(next)
	}
	p.redirect(w, r, to, notice{})
}

func (p *Portal) showSignIn(w http.ResponseWriter, r *http.Request) {
	if _, ok := p.sessions.Read(r); ok {
		p.redirect(w, r, home, notice{})
		return
	}
	p.showSignInForm(w, r, http.StatusOK, r.URL.Query().Get("next"), "")
}

func (p *Portal) showSignInForm(w http.ResponseWriter, r *http.Request, status int, next, fault string) {
	page := map[string]any{"Next": ownPath(next), "Fault": fault, "Provider": p.Provider != nil}
	l := p.layout(r, api.Caller{}, "Sign in")
	l.Notice = p.takeNotice(w, r)
	if err := p.show(w, status, "sign_in", l, page); err != nil {
		p.showProblem(w, r, api.Caller{}, err)
	}
}

// signIn starts a session with a pasted token.
func (p *Portal) signIn(w http.ResponseWriter, r *http.Request) {
	if err := readForm(w, r); err != nil {
		p.showProblem(w, r, api.Caller{}, err)
		return
	}
	secret, next := strings.TrimSpace(r.PostForm.Get("token")), r.PostForm.Get("next")
	if err := p.jar.Check(r); err != nil { // the token is not used on a connection that others may read
		p.denySignIn(w, r, next, 0, err)
		return
	}
	if len(secret) == 0 || len(secret) > maxSecret {
		p.denySignIn(w, r, next, 0, api.ErrUnknownToken)
		return
	}
	caller, wait, err := p.API.Authenticate(r.Context(), secret, r.RemoteAddr)
	if err != nil {
		p.denySignIn(w, r, next, wait, err)
		return
	}
	p.start(w, r, session.Session{Secret: secret}, caller, next)
}

// start starts a session, counts it and logs it, and leads to a page.
func (p *Portal) start(w http.ResponseWriter, r *http.Request, who session.Session, c api.Caller, next string) {
	if err := p.sessions.Start(w, r, who); err != nil {
		p.denySignIn(w, r, next, 0, err)
		return
	}
	by := byToken
	if who.Secret == "" {
		by = byProvider
	}
	p.metrics.sessions.WithLabelValues(by).Inc()
	p.Log.Info("signed in to the portal", "name", c.Token, "role", c.Role, "by", by, "address", r.RemoteAddr)
	p.redirect(w, r, ownPath(next), notice{})
}

// denySignIn shows the form again with the reason, and sends how long to wait; 0: nothing. Every token that is not
// valid gets the same reason.
func (p *Portal) denySignIn(w http.ResponseWriter, r *http.Request, next string, wait time.Duration, err error) {
	if wait > 0 {
		w.Header().Set("Retry-After", strconv.FormatInt(int64(math.Ceil(wait.Seconds())), 10))
	}
	status, reason, fault := http.StatusForbidden, deniedUnknown, wrongToken
	switch {
	case errors.Is(err, api.ErrUnknownToken):
	case errors.Is(err, session.ErrPlain):
		reason, fault = deniedPlain, "Signing in is denied, because "+session.ErrPlain.Error()+"."
	default:
		shown := p.tokenProblem(err)
		status, reason, fault = shown.Status, deniedUnchecked, shown.Detail
		if errors.Is(err, api.ErrTooManySignIns) {
			reason = deniedOften
		}
	}
	p.metrics.denied.WithLabelValues(reason).Inc()
	p.showSignInForm(w, r, status, next, fault)
}

func (p *Portal) signOut(w http.ResponseWriter, r *http.Request) {
	p.sessions.End(w, r)
	p.redirect(w, r, signInPath, notice{Text: signedOut})
}

// startProvider sends a browser to the identity provider.
func (p *Portal) startProvider(w http.ResponseWriter, r *http.Request) {
	if fault := p.Provider.Start(w, r, p.jar); fault != nil {
		p.denyProvider(w, r, fault)
	}
}

// finishProvider starts the session of a person whom the identity provider has sent back.
func (p *Portal) finishProvider(w http.ResponseWriter, r *http.Request) {
	caller, next, fault := p.Provider.Finish(w, r, p.jar)
	if fault != nil {
		p.denyProvider(w, r, fault)
		return
	}
	p.startPerson(w, r, caller, next)
}

// startPerson starts the session of a person, which takes memory once it is ended: so sign-ins are limited.
func (p *Portal) startPerson(w http.ResponseWriter, r *http.Request, c api.Caller, next string) {
	if wait, err := p.API.CountSignIn(r.Context(), c, r.RemoteAddr); err != nil {
		p.denySignIn(w, r, next, wait, err)
		return
	}
	p.start(w, r, session.Session{Name: c.Token, Role: string(c.Role), Org: c.Org}, c, next)
}

// denyProvider shows why a person was not signed in.
func (p *Portal) denyProvider(w http.ResponseWriter, r *http.Request, fault *oidc.Fault) {
	p.Log.Warn("sign-in by OpenID Connect failed", "status", fault.Status, "error", fault)
	p.metrics.denied.WithLabelValues(deniedProvider).Inc()
	p.showSignInForm(w, r, fault.Status, "", fault.Text)
}
