package api

import (
	"cmp"
	"fmt"
	"net/http"
	"strings"

	"github.com/danielgtaylor/huma/v2"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/admit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/identity"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/limit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/resolve"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/response"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

// Rates are the API's own limits, in requests a minute. Except for Subjects they are limits like any other, decided by
// the same path.
type Rates struct {
	Requests  int64 // of one token; 0: 6000
	Decisions int64 // of one token to check or settle, instead of Requests; each check of a batch counts; 0: 600000
	Failures  int64 // of one address, without a valid token; 0: 60
	SignIns   int64 // of one token to the portal, apart from Requests; 0: 60

	// Subjects bounds how many new users, credentials, addresses and reservations the token of an org may spend for, a
	// second; 0: 100. The burst is ten seconds' worth, and at least as many as a batch can have. A subject is new if the
	// token has not named it recently.
	Subjects int64
}

const (
	limitsNamespace = "control"
	decisionPath    = "/v1/ratelimit/check"
	batchPath       = decisionPath + "/batch"
	settlePath      = "/v1/ratelimit/settle"
	maxChecks       = 100 // of a batch
	minute          = 60  // seconds
)

// decider returns what decides about requests to the API, with tokens as tenants and other requests as
// anonymous; nil without buckets.
func (r Rates) decider(buckets admit.Buckets) (*admit.Decider, error) {
	if buckets == nil {
		return nil, nil
	}
	perToken := func(endpoint string, most int64) schema.Limit {
		return schema.Limit{
			Name:       "requests",
			Scope:      policy.Tenant.String(),
			Endpoint:   endpoint,
			Limit:      most,
			WindowSize: minute,
		}
	}
	config := schema.Config{
		Namespace: limitsNamespace,
		Tiers: []schema.Tier{{Name: "token", Limits: []schema.Limit{
			perToken("", r.requests()),
			perToken("POST "+decisionPath, cmp.Or(r.Decisions, 600_000)),
			perToken("POST "+signInPath, cmp.Or(r.SignIns, 60)),
		}}},
		Anonymous: schema.Anonymous{Limits: []schema.Limit{
			{Name: "failures", Scope: policy.IP.String(), Limit: cmp.Or(r.Failures, 60), WindowSize: minute},
		}},
	}.WithDefaults()
	if err := config.Validate(); err != nil {
		return nil, fmt.Errorf("make the limits of the control plane: %w", err)
	}
	plan, err := resolve.ForCallers(config)
	if err != nil {
		return nil, fmt.Errorf("make the limits of the control plane: %w", err)
	}
	decider := &admit.Decider{Buckets: buckets, Renderer: response.New(config, nil)}
	decider.Policies.Store(plan)
	return decider, nil
}

// requests returns how many requests a minute one token may send.
func (r Rates) requests() int64 { return cmp.Or(r.Requests, 6000) }

// ownWrites is how many writes a minute the token of an org may send. Each adds to the audit, so there are fewer than
// reads.
const ownWrites = 30

// costOf returns how many requests a request counts as: a batch as its checks, and a write with the token of an org as
// its share of the minute's requests.
func (s *Server) costOf(caller Caller, needs access, in *received) int64 {
	if caller.Role == Tenant && needs == ownAccess {
		return max(s.Rates.requests()/ownWrites, 1)
	}
	return in.cost()
}

// withinLimits spends a request from the limits of a token, or of an address if no token is valid, and reports whether
// it is admitted. If not, it has answered the request. The address is checked only after the lookup of the token, so
// that anonymous requests from behind the same proxy cannot block valid tokens. A batch spends as much as its checks
// one by one, or nothing.
func (s *Server) withinLimits(ctx huma.Context, token string, cost int64) bool {
	if s.limits == nil {
		return true
	}
	var x admit.Exchange
	request := admit.CallerRequest{
		Caller: identity.Caller{Tenant: token, Cost: cost},
		IP:     clientAddress(ctx.RemoteAddr()).String(),
		Method: ctx.Method(),
		Path:   ctx.Operation().Path,
	}
	if request.Path == batchPath || request.Path == settlePath {
		request.Path = decisionPath
	}
	if err := s.limits.Admit(ctx.Context(), &request, &x); err != nil {
		s.Log.Error("checking the API's own limits failed", "error", err)
		return true
	}
	for _, header := range x.Response.Headers {
		if !strings.EqualFold(header.Name, "Content-Type") {
			ctx.SetHeader(header.Name, string(header.Value))
		}
	}
	if !x.Response.Denied {
		return true
	}
	isBatch := ctx.Operation().Path == batchPath
	detail := "too many requests with this token"
	switch {
	case token == "":
		detail = "too many requests without a valid token from this address"
	case isBatch && x.Decision.RetryAfter == limit.Never:
		detail = fmt.Sprintf("a batch of %d exceeds what this token may check at once: send smaller ones", cost)
	case isBatch && cost > 1:
		detail = fmt.Sprintf("too many requests with this token for a batch of %d; nothing was decided", cost)
	}
	s.writeProblem(ctx, http.StatusTooManyRequests, detail)
	return false
}
