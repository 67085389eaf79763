package control

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"strings"

	"github.com/danielgtaylor/huma/v2"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/admit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/identity"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/policy"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/response"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

// Rates are how many requests this API takes, a minute. They are limits like any other, decided by the same path.
type Rates struct {
	Requests  int64 // of one token; 0: 6000
	Decisions int64 // of one token to the decision API, instead of Requests; 0: 600000
	Failures  int64 // of one address, that come without a token that is known; 0: 60
}

const (
	limitsNamespace = "control"
	decisionPath    = "/v1/ratelimit/check"
	minute          = 60 // seconds
)

// path is how a request is admitted: a token is a tenant, and whoever has none is a stranger. Without buckets it is nil.
func (r Rates) path(buckets admit.Buckets) (*admit.Path, error) {
	if buckets == nil {
		return nil, nil
	}
	perToken := func(endpoint string, limit int64) schema.Limit {
		return schema.Limit{Name: "requests", Scope: policy.Tenant.String(), Endpoint: endpoint, Limit: limit, WindowSize: minute}
	}
	decisions := cmp.Or(r.Decisions, 600_000)
	config := schema.Config{
		Namespace: limitsNamespace,
		Tiers: []schema.Tier{{Name: "token", Limits: []schema.Limit{
			perToken("", cmp.Or(r.Requests, 6000)),
			perToken("POST "+decisionPath, decisions),
			perToken("POST "+decisionPath+"/*", decisions),
		}}},
		Anonymous: schema.Anonymous{Limits: []schema.Limit{
			{Name: "failures", Scope: policy.IP.String(), Limit: cmp.Or(r.Failures, 60), WindowSize: minute},
		}},
	}.WithDefaults()
	if err := config.Validate(); err != nil {
		return nil, fmt.Errorf("make the limits of the control plane: %w", err)
	}
	snapshot, err := policy.FromConfig(config)
	if err != nil {
		return nil, fmt.Errorf("make the limits of the control plane: %w", err)
	}
	path := &admit.Path{Buckets: buckets, Renderer: response.New(config, nil)}
	path.Policies.Store(snapshot)
	return path, nil
}

// asking is a request as the API's own limits see it.
type asking struct{ token, address, method, path string }

// Ask is admit's: all facts are there.
func (a asking) Ask(_ context.Context, facts identity.Facts, _ *identity.Rules, request *identity.Request) error {
	request.Known |= facts
	request.Consumer.CustomID, request.IP, request.Method, request.Path = a.token, a.address, a.method, a.path
	return nil
}

// admitted spends a request of a token, or of an address when there is no token that is known. It tells false when it has
// refused the request. That one is only looked at after its token was looked up, so that a stranger behind the same
// proxy cannot lock out who has a token.
func (s *Server) admitted(ctx huma.Context, token string) bool {
	if s.limits == nil {
		return true
	}
	var x admit.Exchange
	path := ctx.Operation().Path
	err := s.limits.Admit(ctx.Context(), asking{token, remote(ctx.RemoteAddr()), ctx.Method(), path}, &x)
	if err != nil {
		s.Log.Error("the API's own limits cannot be told", "error", err)
		return true
	}
	for _, header := range x.Response.Headers {
		if !strings.EqualFold(header.Name, "Content-Type") {
			ctx.SetHeader(header.Name, string(header.Value))
		}
	}
	if !x.Response.Refused {
		return true
	}
	if token == "" {
		s.refuse(ctx, http.StatusTooManyRequests, "too many requests without a token that is known come from this address")
	} else {
		s.refuse(ctx, http.StatusTooManyRequests, "too many requests are made with this token")
	}
	return false
}
