package resolve

import (
	"strings"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/identity"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/limit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
)

// unusual is a segment of a path that no pattern names: it is no character.
const unusual = "\uffff"

// unmatchedPath is a path that only patterns for nearly all paths match: it is deeper than any literal pattern.
var unmatchedPath = strings.Repeat("/"+unusual, 512)

// VisitRequestKinds calls visit once for each kind of request that a tenant's limits distinguish at an instant:
//
//   - to an endpoint that no pattern matches, on id's route and on each of routes;
//   - to the root;
//   - to the endpoint of each policy and override that could apply to id, at each depth that a final * covers and a
//     narrower pattern may not.
//
// The endpoints of the config's exemptions are no kinds: an exemption adds no limit. [Plan.VisitExemptions] visits
// them.
//
// VisitRequestKinds ignores Method and Path of id. Those of a visit are made up, but patterns match them as they match
// those of requests. The resolution is reused from visit to visit.
func (p *Plan) VisitRequestKinds(
	id identity.Identity, routes []string, now limit.Micros, visit func(*identity.Identity, *Resolution),
) {
	var r Resolution
	at := func(method, path, route string) {
		id.Method, id.Path, id.Route = method, path, route
		p.ResolveAt(&id, now, &r)
		visit(&id, &r)
	}
	e := p.Explain(&id, now)
	at("", unmatchedPath, id.Route)
	for _, route := range routes {
		at("", unmatchedPath, route)
	}
	at("", "/", "")
	patterns := e.patterns()
	deepest := 0
	for _, text := range patterns {
		deepest = max(deepest, strings.Count(text, "/"))
	}
	for _, text := range patterns {
		method, path, _ := strings.Cut(text, " ")
		at(method, path, "") // a pattern matches itself, taken as a path
		for strings.HasSuffix(text, "/*") && strings.Count(path, "/") <= deepest {
			path += "/" + unusual
			at(method, path, "")
		}
	}
}

// VisitExemptions calls visit with the resolution of a request to the endpoint of each of the config's exemptions that
// could match id, and of a request far below a final *. It is apart from VisitRequestKinds because a config may have
// thousands of exemptions. The resolution is reused from visit to visit.
func (p *Plan) VisitExemptions(id identity.Identity, now limit.Micros, visit func(*Resolution)) {
	if p.exempt == nil {
		return
	}
	var r Resolution
	at := func(path string) {
		id.Path = path
		p.ResolveAt(&id, now, &r)
		visit(&r)
	}
	seen := map[string]bool{}
	for i := range p.exempt.entries {
		e := &p.exempt.entries[i]
		if e.Endpoint == "" || seen[e.Endpoint] || !p.exempt.couldMatch(i, &id) {
			continue
		}
		seen[e.Endpoint] = true
		method, path, _ := strings.Cut(e.Endpoint, " ")
		id.Method = method
		at(path)
		if parent, isWildcard := strings.CutSuffix(path, "/*"); isWildcard {
			at(parent + strings.Repeat("/"+unusual, p.exempt.depth))
		}
	}
}

// patterns returns the patterns of the policies and overrides that could apply, each once.
func (e *Explanation) patterns() []string {
	var list []string
	seen := map[string]bool{}
	add := func(pattern string) {
		if strings.Contains(pattern, " ") && !seen[pattern] {
			seen[pattern] = true
			list = append(list, pattern)
		}
	}
	for i := range e.Policies {
		add(e.Policies[i].Endpoint)
	}
	for i := range e.Overrides {
		add(e.Overrides[i].Override.Endpoint)
	}
	return list
}

// BoundsByUse holds the bounds of a tenant's requests by what usage is counted by: a policy and an endpoint, "" for
// requests to none.
type BoundsByUse map[usePlace]policy.Bound

type usePlace struct {
	ref      policy.Ref
	endpoint string
}

// BoundsByUse returns the bounds of the requests of a tenant's identities, which differ in their tiers, to the
// endpoints that they distinguish and to routes. Requests that are banned have none.
func (p *Plan) BoundsByUse(ids []identity.Identity, routes []string, now limit.Micros) BoundsByUse {
	found := BoundsByUse{}
	add := func(_ *identity.Identity, r *Resolution) {
		if r.Banned {
			return
		}
		for i := range r.Bounds {
			found[usePlace{r.Bounds[i].Ref(), r.Endpoint}] = r.Bounds[i]
		}
	}
	for _, id := range ids {
		p.VisitRequestKinds(id, routes, now, add)
	}
	return found
}

// Find returns the bound in which the usage of a policy at an endpoint counts. Routes that were not given, and patterns
// that no policy has any more, have the bound of requests without an endpoint.
func (b BoundsByUse) Find(ref policy.Ref, endpoint string) (policy.Bound, bool) {
	bound, ok := b[usePlace{ref, endpoint}]
	if !ok {
		bound, ok = b[usePlace{ref, ""}]
	}
	return bound, ok
}

// TenantBounds returns the bounds of a tenant's requests to all endpoints, each bucket once. For a limit counted per
// route it returns the buckets of id's route and of routes. It omits bounds that all tenants share, or that are counted
// by address alone.
func (p *Plan) TenantBounds(id identity.Identity, routes []string, now limit.Micros) []policy.Bound {
	return p.AllBounds(id, routes, now, func(b *policy.Bound) bool {
		return b.Key.Group == policy.ByTenant && b.Key.GroupID == id.Tenant.ID
	})
}

// AddressBounds returns, as TenantBounds does for a tenant, the bounds of requests from id's address that are counted
// by the address alone: limits per ip, and limits of requests without a tenant where the address stands in for it.
func (p *Plan) AddressBounds(id identity.Identity, routes []string, now limit.Micros) []policy.Bound {
	return p.AllBounds(id, routes, now, func(b *policy.Bound) bool {
		return b.Key.Group == policy.ByIP && b.Key.GroupID == id.IP
	})
}

// AllBounds returns the bounds of id's requests to all endpoints for which wanted returns true, each bucket once. Of a
// limit counted per route it has the buckets of id's route and of routes.
func (p *Plan) AllBounds(
	id identity.Identity, routes []string, now limit.Micros, wanted func(*policy.Bound) bool,
) []policy.Bound {
	var bounds []policy.Bound
	seen := map[policy.Key]bool{}
	p.VisitRequestKinds(id, routes, now, func(_ *identity.Identity, r *Resolution) {
		for _, b := range r.Bounds {
			if !b.Unnamed() && !seen[b.Key] && wanted(&b) {
				seen[b.Key] = true
				bounds = append(bounds, b)
			}
		}
	})
	return bounds
}
