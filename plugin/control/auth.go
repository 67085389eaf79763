package control

import (
	"context"
	"errors"
	"math"
	"net/http"
	"strconv"
	"strings"

	"github.com/danielgtaylor/huma/v2"
)

// Role is what the holder of a token may do.
type Role string

// The roles. The third is written tenant:{org} where tokens are made.
const (
	Admin  Role = "admin"  // everything
	Viewer Role = "viewer" // reads everything, and decides without spending
	Tenant Role = "tenant" // reads, and decides, for its own org alone
)

// Caller is the holder of a token.
type Caller struct {
	Token string // its name: the actor of what it does
	Role  Role
	Org   string // of a Tenant
}

// Authenticator knows tokens.
type Authenticator interface {
	// Authenticate returns whose token a secret is. ErrUnknownToken: nobody's, or it was revoked or has expired. Before
	// it asks anything but its memory about a secret that is not in it, it MUST call mayLook, once, and return
	// ErrNotLookedUp where that reports false.
	Authenticate(ctx context.Context, secret string, mayLook func() bool) (Caller, error)
}

// Answers to a secret that lets nobody in.
var (
	ErrUnknownToken = errors.New("the token is unknown, expired or revoked")
	ErrNotLookedUp  = errors.New("the token is not in memory, and was not looked up")
)

// access is what an operation asks of its caller.
type access int

const (
	writeAccess  access = iota // an admin
	readAccess                 // an admin or a viewer
	orgAccess                  // an admin, a viewer, or the org itself, named by the path parameter org
	decideAccess               // everyone; the operation itself looks for whom
)

const accessKey, bearer = "access", "token"

type callerKey struct{}

// callerOf is who makes a request.
func callerOf(ctx context.Context) Caller {
	caller, _ := ctx.Value(callerKey{}).(Caller)
	return caller
}

// authenticate lets pass who may do what the operation does.
func (s *Server) authenticate(ctx huma.Context, next func(huma.Context)) {
	needs, ok := ctx.Operation().Metadata[accessKey].(access)
	if !ok {
		next(ctx) // the description of the API
		return
	}
	if isRepeated(ctx, "Authorization") { // and whoever looked at it before may have taken another one for good
		s.unauthorized(ctx, reasonMissing, "Bearer", "send exactly one token")
		return
	}
	scheme, secret, _ := strings.Cut(ctx.Header("Authorization"), " ")
	if !strings.EqualFold(scheme, "bearer") || secret == "" {
		s.unauthorized(ctx, reasonMissing, "Bearer", "send a token: Authorization: Bearer …")
		return
	}
	caller, wait, err := s.lookUpToken(ctx, strings.TrimSpace(secret))
	switch {
	case errors.Is(err, ErrUnknownToken):
		s.unauthorized(ctx, reasonUnknown, `Bearer error="invalid_token"`, ErrUnknownToken.Error())
	case errors.Is(err, ErrNotLookedUp):
		s.metrics.limited.WithLabelValues(byAddress).Inc()
		ctx.SetHeader("Retry-After", strconv.FormatInt(int64(math.Ceil(wait.Seconds())), 10))
		const detail = "too many unknown tokens were sent from this address"
		s.writeProblem(ctx, http.StatusTooManyRequests, detail)
	case err != nil:
		s.Log.Error("token lookup failed", "error", err)
		s.writeProblem(ctx, http.StatusServiceUnavailable, "tokens cannot be checked at the moment")
	default:
		exchangeOf(ctx.Context()).token = caller.Token
		s.authorize(ctx, caller, needs, next)
	}
}

// authorize lets the holder of a token do what the operation does, with the body in memory. A batch is counted by its
// checks, which are in its body.
func (s *Server) authorize(ctx huma.Context, caller Caller, needs access, next func(huma.Context)) {
	var in received
	isBatch := ctx.Operation().Path == batchPath
	if isBatch {
		in = s.receiveBody(ctx, caller.Token)
	}
	switch {
	case !s.withinLimits(ctx, caller.Token, in.cost()):
		s.metrics.limited.WithLabelValues(byToken).Inc()
		return
	case !caller.hasAccess(needs, ctx.Param("org")):
		s.metrics.authFailures.WithLabelValues(reasonRole).Inc()
		s.writeProblem(ctx, http.StatusForbidden, "the token's role does not allow this")
		return
	}
	if !isBatch {
		in = s.receiveBody(ctx, caller.Token)
	}
	if in.fault != nil {
		s.writeBodyProblem(ctx, in.fault)
		return
	}
	next(huma.WithValue(in.replayBody(ctx), callerKey{}, caller))
}

// unauthorized refuses who has no token that is known, and does not answer even that too often.
func (s *Server) unauthorized(ctx huma.Context, reason, challenge, detail string) {
	s.metrics.authFailures.WithLabelValues(reason).Inc()
	if !s.withinLimits(ctx, "", 1) {
		s.metrics.limited.WithLabelValues(byAddress).Inc()
		return
	}
	ctx.SetHeader("WWW-Authenticate", challenge)
	s.writeProblem(ctx, http.StatusUnauthorized, detail)
}

// hasAccess tells whether the caller may do what needs an access, in the org that the path names.
func (c Caller) hasAccess(needs access, org string) bool {
	switch c.Role {
	case Admin:
		return true
	case Viewer:
		return needs != writeAccess
	case Tenant:
		return needs == decideAccess || (needs == orgAccess && org != "" && org == c.Org)
	}
	return false
}
