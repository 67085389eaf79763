package control

import (
	"context"
	"fmt"
	"net/http"
	"net/netip"
	"strings"

	"github.com/danielgtaylor/huma/v2"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/admit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/identity"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/limit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/policy"
)

// Requests says which requests of an org are meant. The zero value is all of them, as far as they do not depend on who
// in the org makes them.
type Requests struct {
	User       string `query:"user" json:"user,omitempty" maxLength:"1024" doc:"A user of the org, to include the user's own limits." example:"u_42"`
	Credential string `query:"credential" json:"credential,omitempty" maxLength:"1024" doc:"The id of a credential, to include its own limits."`
	IP         string `query:"ip" json:"ip,omitempty" maxLength:"64" doc:"A client's address; it identifies the client if user and credential are missing, and overrides may name it."`
	Tier       string `query:"tier" json:"tier,omitempty" maxLength:"64" doc:"The tier that requests of the org claim; it applies unless one is set for the org. Default: none."`
	Endpoint   string `query:"endpoint" json:"endpoint,omitempty" maxLength:"4096" doc:"METHOD /path, or the name of a route; a pattern covers all matching requests. Default: all endpoints." example:"POST /records"`
}

// faults tells what the schema cannot. place is where the fields are: query or body.
func (r *Requests) faults(place string) []error {
	return subjectFaults(place, r.IP, r.Endpoint, textField{"user", r.User}, textField{"credential", r.Credential}, textField{"tier", r.Tier})
}

// subjectFaults tells what the schema cannot of an address, an endpoint and other texts.
func subjectFaults(place, ip, endpoint string, texts ...textField) []error {
	faults := notTexts(place, append(texts, textField{"endpoint", endpoint})...)
	if why := checkAddress(ip); why != "" {
		faults = append(faults, fault(place+".ip", why, ip))
	}
	if why := checkEndpoint(endpoint); why != "" {
		faults = append(faults, fault(place+".endpoint", why, endpoint))
	}
	return faults
}

// checkAddress is what is wrong with a client's address; "": nothing, also of none.
func checkAddress(text string) string {
	if _, err := netip.ParseAddr(text); text != "" && err != nil {
		return "must be an address, such as 192.0.2.1 or 2001:db8::1"
	}
	return ""
}

// checkEndpoint is what is wrong with an endpoint; "": nothing, also of none.
func checkEndpoint(text string) string {
	method, path, _ := admit.Target(text)
	switch {
	case strings.HasPrefix(text, "/"), strings.Contains(text, " ") && path == "", path != "" && method == "":
		return "must be METHOD /path, such as POST /records, or the name of a route"
	}
	return ""
}

// loadedPlan are the policies by which requests are decided now. The error is an answer.
func (s *Server) loadedPlan() (*policy.Plan, error) {
	if s.Path == nil {
		return nil, huma.Error503ServiceUnavailable("this process has no plugin config, so it cannot show which limits apply: start it as ratelimit serve --config kong.yml")
	}
	policies := s.Path.Policies.Load()
	if !isLoaded(policies) {
		return nil, huma.ErrorWithHeaders(huma.Error503ServiceUnavailable(policiesNotLoaded), http.Header{"Retry-After": {"1"}})
	}
	return policies, nil
}

// policiesNotLoaded is why nothing is decided, or said to be in force, by the config alone: a row may ban whoever asks.
const policiesNotLoaded = "warming up: the policies of the database are not loaded yet"

// now is when it is, by the clock that tells which overrides hold.
func (s *Server) now() limit.Micros {
	if s.Path != nil && s.Path.Now != nil {
		return s.Path.Now()
	}
	return limit.Micros(s.Now().UnixMicro())
}

// identify is who a request is from that is told as known.
func identify(ctx context.Context, policies *policy.Plan, known *admit.Known) (identity.Identity, error) {
	var (
		request identity.Request
		id      identity.Identity
	)
	rules := &policies.Rules
	for missing := rules.Identify(&request, &id); missing != 0; missing = rules.Identify(&request, &id) {
		if err := known.Ask(ctx, missing, rules, &request); err != nil {
			return id, fmt.Errorf("identify a request: %w", err)
		}
	}
	return id, nil
}

// orgIdentity is whom the requests of an org are counted for. What is not said stays nobody: a stand-in would have buckets
// of others. The org is named as it is counted, so its name is taken as it is.
func (r *Requests) orgIdentity(ctx context.Context, policies *policy.Plan, org string) (identity.Identity, error) {
	known := admit.Known{Tenant: org, User: r.User, Tier: r.Tier, Credential: r.Credential, IP: r.IP}
	known.Method, known.Path, known.Route = admit.Target(r.Endpoint)
	id, err := identify(ctx, policies, &known)
	id.Tenant = identity.Name{Kind: identity.Tenant, ID: org}
	id.Method, id.Route = strings.ToUpper(known.Method), known.Route
	id.Path = policies.Rules.EndpointPath(identity.NormalizePath(known.Path))
	if r.IP == "" {
		if id.IP = ""; id.User.Kind == identity.IP {
			id.User = identity.Name{}
		}
	}
	return id, err
}

// bounds are the bounds of the requests that are the org's own, each bucket once. They read and do not spend.
func (r *Requests) bounds(policies *policy.Plan, id identity.Identity, now limit.Micros) []policy.Bound {
	all := policies.BoundsOf(id, nil, now)
	if r.Endpoint == "" {
		return all
	}
	own := map[policy.Key]bool{}
	for i := range all {
		own[all[i].Key] = true
	}
	var resolution policy.Resolution
	policies.ResolveAt(&id, now, &resolution)
	var bounds []policy.Bound
	for _, b := range resolution.Bounds {
		if own[b.Key] {
			b.Cost = 0
			bounds = append(bounds, b)
		}
	}
	return bounds
}
