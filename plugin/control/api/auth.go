package api

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humago"
)

// Role limits what the holder of a token may do.
type Role string

// The roles. The third is written tenant:{org} where tokens are made.
const (
	Admin  Role = "admin"  // everything
	Viewer Role = "viewer" // reads everything, and checks without spending
	Tenant Role = "tenant" // reads and checks for its own org only, and manages its webhooks
)

// Caller identifies the holder of a token, or a person whom an identity provider has signed in.
type Caller struct {
	Token string // the name of the token; of a person PersonPrefix and the name
	Role  Role
	Org   string // of a Tenant

	Routine bool // the requests repeat all the time, so those that succeed are logged as details only
	Direct  bool // the caller has the database itself: Token is the actor, and requests take any time
}

// PersonPrefix begins the name of a Caller who is a person. No token's name has a colon.
const PersonPrefix = "oidc:"

// maxIdempotencyName bounds the bytes of a name that idempotency keys are kept under.
const maxIdempotencyName = 64

// actor returns the name in the audit.
func (c Caller) actor() string {
	if c.Direct || strings.HasPrefix(c.Token, PersonPrefix) {
		return c.Token
	}
	return "token:" + c.Token
}

// idempotencyName returns the name that the caller's idempotency keys are kept under: of a long name its hash.
func (c Caller) idempotencyName() string {
	if len(c.Token) <= maxIdempotencyName {
		return c.Token
	}
	sum := sha256.Sum256([]byte(c.Token))
	return PersonPrefix + hex.EncodeToString(sum[:16])
}

// budget returns the name under which the API's own limits count the caller. Tokens that an org makes itself count as
// one, because it may make many.
func (c Caller) budget() string {
	org, _, isOwn := strings.Cut(c.Token, "/")
	if !isOwn || strings.HasPrefix(c.Token, PersonPrefix) {
		return c.Token
	}
	return org + "/"
}

// Authenticator resolves tokens.
type Authenticator interface {
	// Authenticate returns the caller whose token a secret is. The error is ErrUnknownToken if the token is unknown,
	// revoked or expired. It MUST bound what unknown secrets cost by itself.
	Authenticate(ctx context.Context, secret string) (Caller, error)
}

// ErrUnknownToken is the error of an [Authenticator] for a secret that admits no caller.
var ErrUnknownToken = errors.New("the token is unknown, expired or revoked")

// access selects the callers that may use an operation.
type access int

const (
	writeAccess  access = iota // an admin
	readAccess                 // an admin or a viewer
	orgAccess                  // an admin, a viewer, or the org itself, named by the path parameter org
	ownAccess                  // an admin, or the org itself, named by the path parameter org
	decideAccess               // any role; the operation checks the rest
)

const accessKey, bearer = "access", "token"

type callerKey struct{}

// callerOf returns the caller of a request; the zero Caller: it carries a token, which is not checked yet.
func callerOf(ctx context.Context) Caller {
	caller, _ := ctx.Value(callerKey{}).(Caller)
	return caller
}

// authenticate admits callers whose role allows the operation.
func (s *Server) authenticate(ctx huma.Context, next func(huma.Context)) {
	needs, ok := ctx.Operation().Metadata[accessKey].(access)
	if !ok {
		next(ctx) // an operation without a token, such as a probe
		return
	}
	if caller, ok := ctx.Context().Value(callerKey{}).(Caller); ok {
		s.authorize(ctx, caller, needs, next)
		return
	}
	if isRepeated(ctx, "Authorization") { // a proxy may have checked another one
		s.unauthorized(ctx, reasonMissing, "Bearer", "send exactly one token")
		return
	}
	scheme, secret, _ := strings.Cut(ctx.Header("Authorization"), " ")
	if !strings.EqualFold(scheme, "bearer") || secret == "" {
		s.unauthorized(ctx, reasonMissing, "Bearer", "send a token: Authorization: Bearer …")
		return
	}
	caller, err := s.Tokens.Authenticate(ctx.Context(), strings.TrimSpace(secret))
	switch {
	case errors.Is(err, ErrUnknownToken):
		s.unauthorized(ctx, reasonUnknown, `Bearer error="invalid_token"`, ErrUnknownToken.Error())
	case err != nil:
		s.Log.Error("token lookup failed", "error", err)
		s.writeProblem(ctx, http.StatusServiceUnavailable, "tokens cannot be checked at the moment")
	default:
		s.authorize(ctx, caller, needs, next)
	}
}

// authorize runs the operation for a caller whose role allows it, with the body in memory. The API's own limits count a
// batch by the checks in its body, and a body with a fault as one request.
func (s *Server) authorize(ctx huma.Context, caller Caller, needs access, next func(huma.Context)) {
	x := exchangeOf(ctx.Context())
	x.token, x.org = caller.Token, ctx.Param("org")
	var body []byte
	var fault error
	isBatch := ctx.Operation().Path == batchPath
	cost := s.costOf(caller, needs)
	if isBatch {
		if body, fault = s.readBody(ctx); fault == nil {
			cost = max(int64(checksIn(body)), 1)
		}
	}
	switch {
	case !s.withinLimits(ctx, caller.budget(), cost):
		s.metrics.limited.WithLabelValues(byToken).Inc()
		return
	case !caller.hasAccess(needs, x.org):
		s.metrics.authFailures.WithLabelValues(reasonRole).Inc()
		s.writeProblem(ctx, http.StatusForbidden, "the token's role does not allow this")
		return
	}
	if !isBatch {
		body, fault = s.readBody(ctx)
	}
	if fault != nil {
		s.writeAnswer(ctx, fault)
		return
	}
	r, _ := humago.Unwrap(ctx)
	r.Body = io.NopCloser(bytes.NewReader(body))
	next(huma.WithValue(ctx, callerKey{}, caller))
	if x.status < http.StatusMultipleChoices && !x.dryRun && (needs == writeAccess || needs == ownAccess) {
		s.metrics.countWrite(ctx.Operation())
	}
}

// unauthorized denies a request without a valid token. Beyond the limit of its address the answer is 429.
func (s *Server) unauthorized(ctx huma.Context, reason, challenge, detail string) {
	s.metrics.authFailures.WithLabelValues(reason).Inc()
	if !s.withinLimits(ctx, "", 1) {
		s.metrics.limited.WithLabelValues(byAddress).Inc()
		return
	}
	ctx.SetHeader("WWW-Authenticate", challenge)
	s.writeProblem(ctx, http.StatusUnauthorized, detail)
}

// hasAccess reports whether the caller's role allows an access, for the org named in the path.
func (c Caller) hasAccess(needs access, org string) bool {
	switch c.Role {
	case Admin:
		return true
	case Viewer:
		return needs != writeAccess && needs != ownAccess
	case Tenant:
		return needs == decideAccess || ((needs == orgAccess || needs == ownAccess) && org != "" && org == c.Org)
	}
	return false
}

// ServeAs serves a request for a caller that was authenticated elsewhere, such as by the session of a browser. It needs
// no token, and a token that it carries is not used. All else is as for a request with a token: the caller's role
// decides, its name is the actor in the audit and what the API's own limits count.
func (s *Server) ServeAs(w http.ResponseWriter, r *http.Request, caller Caller) {
	s.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), callerKey{}, caller)))
}

const signInPath = "/portal/sign-in"

// Errors of sign-ins beyond a limit.
var (
	ErrTooManySignIns = errors.New("too many sign-ins of this caller")
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
	if err != nil && !isUnknown || address == "" {
		return caller, 0, err
	}
	if wait, limited := s.CountSignIn(ctx, caller, address); limited != nil {
		return Caller{}, wait, limited
	}
	return caller, 0, err
}

// CountSignIn counts a sign-in from an address, of a caller or of the zero Caller, who is unknown. The error is that of
// a sign-in beyond a limit, after which the caller has to wait.
func (s *Server) CountSignIn(ctx context.Context, caller Caller, address string) (wait time.Duration, err error) {
	if s.limits == nil {
		return 0, nil
	}
	x := s.spend(ctx, caller.budget(), address, http.MethodPost, signInPath, 1)
	if !x.Response.Denied {
		return 0, nil
	}
	wait = time.Duration(max(x.Decision.RetryAfter.Seconds(), 1)) * time.Second
	if caller.Token == "" {
		s.metrics.limited.WithLabelValues(byAddress).Inc()
		return wait, ErrTooManyGuesses
	}
	s.metrics.limited.WithLabelValues(byToken).Inc()
	return wait, ErrTooManySignIns
}
