package api

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"net/http"
	"strings"

	"github.com/danielgtaylor/huma/v2"
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
}

// PersonPrefix begins the name of a Caller who is a person. No token's name has a colon.
const PersonPrefix = "oidc:"

// maxIdempotencyName bounds the bytes of a name that idempotency keys are kept under.
const maxIdempotencyName = 64

// actor returns the name in the audit.
func (c Caller) actor() string {
	if strings.HasPrefix(c.Token, PersonPrefix) {
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

// callerOf returns the caller of a request.
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
	if caller, ok := ctx.Context().Value(servedAsKey{}).(Caller); ok {
		exchangeOf(ctx.Context()).token = caller.Token
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
		exchangeOf(ctx.Context()).token = caller.Token
		s.authorize(ctx, caller, needs, next)
	}
}

// authorize runs the operation for a caller whose role allows it, with the body in memory. The API's own limits count a
// batch by the checks in its body.
func (s *Server) authorize(ctx huma.Context, caller Caller, needs access, next func(huma.Context)) {
	var in received
	isBatch := ctx.Operation().Path == batchPath
	if isBatch {
		in = s.receiveBody(ctx)
	}
	switch {
	case !s.withinLimits(ctx, caller.budget(), s.costOf(caller, needs, &in)):
		s.metrics.limited.WithLabelValues(byToken).Inc()
		return
	case !caller.hasAccess(needs, ctx.Param("org")):
		s.metrics.authFailures.WithLabelValues(reasonRole).Inc()
		s.writeProblem(ctx, http.StatusForbidden, "the token's role does not allow this")
		return
	}
	if !isBatch {
		in = s.receiveBody(ctx)
	}
	if in.fault != nil {
		s.writeBodyProblem(ctx, in.fault)
		return
	}
	next(huma.WithValue(in.replayBody(ctx), callerKey{}, caller))
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
