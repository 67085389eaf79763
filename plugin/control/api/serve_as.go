package api

import (
	"context"
	"errors"
	"net/http"
	"time"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/admit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/identity"
)

// servedAsKey is the key of a Caller in the context of a request that carries no token.
type servedAsKey struct{}

// ServeAs serves a request for a caller that was authenticated elsewhere, such as by the session of a browser. It needs
// no token, and a token that it carries is not used. All else is as for a request with a token: the caller's role
// decides, its name is the actor in the audit and what the API's own limits count.
func (s *Server) ServeAs(w http.ResponseWriter, r *http.Request, caller Caller) {
	s.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), servedAsKey{}, caller)))
}

// signInPath is the path that sign-ins with a token count by.
const signInPath = "/portal/sign-in"

// Errors of sign-ins beyond a limit.
var (
	ErrTooManySignIns = errors.New("too many sign-ins with this token")
	ErrTooManyGuesses = errors.New("too many sign-ins without a valid token from this address")
)

// Authenticate returns the caller whose token a secret is, and counts a sign-in of the token from an address. "" is the
// address of a secret that was valid before: neither guesses nor sign-ins of others count for it. The error is that of
// [Authenticator], or one of a sign-in beyond a limit, after which the caller has to wait.
func (s *Server) Authenticate(
	ctx context.Context, secret, address string,
) (caller Caller, wait time.Duration, err error) {
	caller, err = s.Tokens.Authenticate(ctx, secret)
	isUnknown := errors.Is(err, ErrUnknownToken)
	if isUnknown {
		s.metrics.authFailures.WithLabelValues(reasonUnknown).Inc()
	}
	if err != nil && !isUnknown || s.limits == nil || address == "" {
		return caller, 0, err
	}
	switch wait = s.spendSignIn(ctx, caller.budget(), address); {
	case wait == 0:
		return caller, 0, err
	case isUnknown:
		s.metrics.limited.WithLabelValues(byAddress).Inc()
		return Caller{}, wait, ErrTooManyGuesses
	}
	s.metrics.limited.WithLabelValues(byToken).Inc()
	return Caller{}, wait, ErrTooManySignIns
}

// spendSignIn spends a sign-in of a token, or of an address if the token is "", or returns how long to wait.
func (s *Server) spendSignIn(ctx context.Context, token, address string) time.Duration {
	var x admit.Exchange
	request := admit.CallerRequest{
		Caller: identity.Caller{Tenant: token, Cost: 1}, IP: clientAddress(address).String(),
		Method: http.MethodPost, Path: signInPath,
	}
	if err := s.limits.Admit(ctx, &request, &x); err != nil {
		s.Log.Error("checking the API's own limits failed", "error", err)
	}
	if !x.Response.Denied {
		return 0
	}
	return time.Duration(max(x.Decision.RetryAfter.Seconds(), 1)) * time.Second
}
