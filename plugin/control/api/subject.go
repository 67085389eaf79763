package api

import (
	"cmp"
	"context"
	"net/netip"
	"strings"

	"github.com/danielgtaylor/huma/v2"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/admit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/identity"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/limit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/resolve"
)

// Requests selects requests of an org. The zero value selects all, as far as their limits do not depend on who in the
// org makes them.
type Requests struct {
	User       string `query:"user"       json:"user,omitempty"       maxLength:"1024" doc:"A user of the org, to include the user's own limits."                                                        example:"u_42"`
	Credential string `query:"credential" json:"credential,omitempty" maxLength:"1024" doc:"The id of a credential, to include its own limits."`
	IP         string `query:"ip"         json:"ip,omitempty"         maxLength:"64"   doc:"A client's address; it identifies the client if user and credential are missing, and overrides may name it."`
	Tier       string `query:"tier"       json:"tier,omitempty"       maxLength:"64"   doc:"The tier that requests of the org claim; it applies unless one is set for the org. Default: none."`
	Endpoint   string `query:"endpoint"   json:"endpoint,omitempty"   maxLength:"4096" doc:"METHOD /path, a path alone, which patterns of any method match, or the name of a route; a pattern covers all matching requests. Default: all endpoints."       example:"POST /records"`
}

// Resolve implements [huma.ResolverWithPath]: it reports faults that the schema does not cover.
func (r *Requests) Resolve(_ huma.Context, at *huma.PathBuffer) []error {
	return subjectFaults(cmp.Or(at.String(), "query"), r.IP, "endpoint", r.Endpoint)
}

// subjectFaults returns the faults of an address and an endpoint, which is given by a name, that the schema does not
// cover. Both may be empty.
func subjectFaults(place, ip, name, endpoint string) (faults []error) {
	if _, err := netip.ParseAddr(ip); ip != "" && err != nil {
		faults = append(faults, fault(place+".ip", "must be an address, such as 192.0.2.1 or 2001:db8::1", ip))
	}
	method, path, _ := admit.Target(endpoint)
	if strings.Contains(endpoint, " ") && (method == "" || path == "") {
		faults = append(faults, fault(place+"."+name,
			"must be METHOD /path, such as POST /records, a path alone, or the name of a route", endpoint))
	}
	return faults
}

// scopeFaults returns the faults of a scope beside what identifies a request: other systems name by it what they count
// by. The values are by the part of a scope that needs them, and field returns the name of one.
func scopeFaults(place, scope string, field func(string) string, values map[string]string) (faults []error) {
	for part := range strings.SplitSeq(scope, "+") {
		if value, ok := values[part]; ok && value == "" {
			faults = append(faults, fault(place+"."+field(part), "is required beside scope "+scope, nil))
		}
	}
	return faults
}

// loadedPlan returns the plan that decides about requests now. The error is an answer.
func (s *Server) loadedPlan() (*resolve.Plan, error) {
	if s.Decider == nil {
		return nil, huma.Error503ServiceUnavailable(
			"this process has no plugin config, so it cannot show which limits apply: start it as ratelimit serve --config " +
				"kong.yml",
		)
	}
	policies := s.Decider.Policies.Load()
	if !isLoaded(policies) {
		// The config alone does not decide, because a row may ban the caller.
		return nil, unavailable(admit.WarmingUp)
	}
	return policies, nil
}

// now returns the current time, by the clock that overrides end by.
func (s *Server) now() limit.Micros {
	if s.Decider != nil && s.Decider.Now != nil {
		return s.Decider.Now()
	}
	return limit.Micros(s.Now().UnixMicro())
}

func identify(
	ctx context.Context, policies *resolve.Plan, request *admit.CallerRequest,
) (id identity.Identity, err error) {
	err = admit.Identify(ctx, request, &policies.Rules, new(identity.Request), &id)
	return id, err
}

// orgIdentities returns the identities that requests of an org are counted by. A user that is not given stays
// unidentified: a stand-in would have buckets of others. The name of the org is taken as it is, because it is the name
// that the org is counted by. Where the requests claim no tier, there is one identity for each tier that is known
// of the org.
func (r *Requests) orgIdentities(
	ctx context.Context, policies *resolve.Plan, tiers *Tiers, org string,
) ([]identity.Identity, error) {
	request := admit.CallerRequest{
		Caller:     identity.Caller{Tenant: org, User: r.User, Tier: r.Tier},
		Credential: r.Credential, IP: r.IP,
	}
	request.Method, request.Path, request.Route = admit.Target(r.Endpoint)
	id, err := identify(ctx, policies, &request)
	id.Tenant = identity.Name{Kind: identity.Tenant, ID: org}
	id.Method, id.Route = strings.ToUpper(request.Method), request.Route
	normal := identity.NormalizePath(request.Path)
	id.Path = policies.Rules.EndpointPath(normal)
	id.PathDecoded = id.Path != normal
	if r.IP == "" {
		if id.IP = ""; id.User.Kind == identity.IP {
			id.User = identity.Name{}
		}
	}
	return tiers.Identities(id), err
}

// bounds returns the bounds of the requests whose buckets are the org's own, each bucket once.
func (r *Requests) bounds(policies *resolve.Plan, id identity.Identity, now limit.Micros) []policy.Bound {
	all := policies.TenantBounds(id, nil, now)
	if r.Endpoint == "" {
		return all
	}
	own := map[policy.Key]bool{}
	for i := range all {
		own[all[i].Key] = true
	}
	var resolution resolve.Resolution
	policies.ResolveAt(&id, now, &resolution)
	var bounds []policy.Bound
	for _, b := range resolution.Bounds {
		if own[b.Key] {
			bounds = append(bounds, b)
		}
	}
	return bounds
}
