package control

import (
	"context"
	"errors"
	"net/http"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/admit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/identity"
)

// servedAsKey is the key of a Caller in the context of a request that carries no token.
type servedAsKey struct{}

// ServeAs serves a request for a caller that was authenticated elsewhere, such as by the session of a browser. It needs
// no token, and a token that it carries is not used. All else is as for a request with a token: the caller's role
// decides, its name is the actor in the audit and what the API's own limits count.
func (s *Server) ServeAs(w http.ResponseWriter, r *http.Request, caller Caller) {
	s.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), servedAsKey{}, caller)))
}

// Authenticate returns the caller whose token a secret is, within the limits of the address that it came from; "" is
// for a secret that was valid before, so that guesses from its address do not count. The error is that of
// [Authenticator]; it is ErrNotLookedUp also beyond the limit of requests without a valid token.
func (s *Server) Authenticate(ctx context.Context, secret, address string) (Caller, error) {
	caller, _, err := s.lookUpToken(ctx, address, secret)
	if !errors.Is(err, ErrUnknownToken) {
		return caller, err
	}
	s.metrics.authFailures.WithLabelValues(reasonUnknown).Inc()
	if s.limits == nil || address == "" {
		return Caller{}, err
	}
	var x admit.Exchange
	request := admit.CallerRequest{
		Caller: identity.Caller{Cost: 1}, IP: clientAddress(address).String(), Method: http.MethodPost,
	}
	if failure := s.limits.Admit(ctx, &request, &x); failure != nil {
		s.Log.Error("checking the API's own limits failed", "error", failure)
	} else if x.Response.Denied {
		s.metrics.limited.WithLabelValues(byAddress).Inc()
		return Caller{}, ErrNotLookedUp
	}
	return Caller{}, err
}
