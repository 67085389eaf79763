package portal

import (
	"net/http"
	"time"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/control/portal/session"
)

// providerPath is the path below which a Provider serves. The sign-in page links to start, with the page to show
// afterwards in the query (next), and for another account than the provider takes by itself with switch.
const providerPath = home + "oidc/"

// Provider signs people in by another system, such as one of OpenID Connect.
type Provider interface {
	// Label returns the text of its link on the sign-in page.
	Label() string
	// ServeSignIn answers a GET below /portal/oidc/, with start as the first one. It MUST end with a redirect, SignIn or
	// Deny.
	ServeSignIn(w http.ResponseWriter, r *http.Request, s Signer)
}

// Signer is what a Provider does in the portal.
type Signer interface {
	// SignIn starts a session of a caller until an instant at the latest, and answers with 303 to next, a path of the
	// portal; "" is the first page. The name of the caller is the actor in the audit.
	SignIn(w http.ResponseWriter, r *http.Request, c Caller, expires time.Time, next string)
	// Deny answers with the sign-in page and a reason, which everybody may read.
	Deny(w http.ResponseWriter, r *http.Request, status int, reason string)
	// Cookies returns sealed cookies, for what lasts from start until the way back.
	Cookies() *session.Jar
}

// signer implements Signer.
type signer struct{ portal *Portal }

// SignIn implements [Signer].
func (s signer) SignIn(w http.ResponseWriter, r *http.Request, c Caller, expires time.Time, next string) {
	who := session.Session{Name: c.Name, Role: c.Role, Org: c.Org}
	if err := s.portal.start(w, r, who, c, expires); err != nil {
		s.portal.failSignIn(w, r, next, err)
		return
	}
	s.portal.redirect(w, r, ownPath(next), notice{})
}

// Deny implements [Signer].
func (s signer) Deny(w http.ResponseWriter, r *http.Request, status int, reason string) {
	s.portal.metrics.denied.WithLabelValues(deniedProvider).Inc()
	s.portal.showSignInForm(w, r, status, "", reason)
}

// Cookies implements [Signer].
func (s signer) Cookies() *session.Jar { return s.portal.jar }
