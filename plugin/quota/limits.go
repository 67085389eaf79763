package quota

import (
	"strings"
	"time"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/identity"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/limit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/policy"
)

// place is where a limit applies: a policy's name and an endpoint, "" for requests without one.
type place struct{ policy, endpoint string }

// limits holds the limits of a tenant by the places whose usage counts in them.
type limits map[place]policy.Bound

// limitsOf returns the limits of a tenant's requests, to the endpoints that they distinguish and to routes.
func limitsOf(plan *policy.Plan, tenant string, routes []string, now time.Time) limits {
	found := limits{}
	id := identity.Identity{Tenant: identity.Name{Kind: identity.Tenant, ID: tenant}}
	plan.VisitRequestKinds(id, routes, limit.Micros(now.UnixMicro()), func(_ *identity.Identity, r *policy.Resolution) {
		if r.Banned {
			return
		}
		for _, b := range r.Bounds {
			found[place{b.Policy.Name, r.Endpoint}] = b
		}
	})
	return found
}

// quota returns the quota in which the usage of a policy at an endpoint counts, if it is one. A pattern that no policy
// has any more has the limit of requests without an endpoint.
func (l limits) quota(name, endpoint string) (policy.Bound, bool) {
	b, ok := l[place{name, endpoint}]
	if !ok {
		b, ok = l[place{name, ""}]
	}
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
