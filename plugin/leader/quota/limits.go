package quota

import (
	"strings"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/identity"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/limit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
)

// limits holds the limits of a tenant by what usage is counted by.
type limits struct{ policy.BoundsByUse }

// limitsOf returns the limits of a tenant's requests, to the endpoints that they distinguish and to routes.
func (c *check) limitsOf(tenant string, routes []string) limits {
	id := identity.Identity{Tenant: identity.Name{Kind: identity.Tenant, ID: tenant}}
	return limits{c.plan.BoundsByUse(c.options.Tiers.Identities(id), routes, limit.Micros(c.now.UnixMicro()))}
}

// quota returns the quota in which the usage of a policy at an endpoint counts, if it is one. A pattern that no policy
// has any more has the limit of requests without an endpoint.
func (l limits) quota(ref policy.Ref, endpoint string) (policy.Bound, bool) {
	b, ok := l.Find(ref, endpoint)
	return b, ok && isQuota(&b)
}

// routesOf returns the endpoints that are names of routes: only a pattern has a path.
func routesOf(uses []use) (routes []string) {
	seen := map[string]bool{}
	for i := range uses {
		if name := uses[i].Endpoint; name != "" && !strings.Contains(name, "/") && !seen[name] {
			seen[name] = true
			routes = append(routes, name)
		}
	}
	return routes
}
