package policy

import (
	"strings"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/identity"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/limit"
)

// elsewhere is a path that only patterns match which match nearly all paths: it is deeper than others can say.
var elsewhere = strings.Repeat("/\x00", 512)

// Everywhere calls visit once for each kind of request that a tenant's limits can tell apart at an instant: to an endpoint
// that no pattern is about, on id's route and on each of routes; to the root; and to the endpoint of each policy and
// override that could apply to id, at each depth that a final * covers and a narrower pattern may not. Method and Path of
// id do not matter; those of a visit are no client's, but patterns match them as they match requests. The resolution is
// reused from visit to visit.
func (s *Plan) Everywhere(id identity.Identity, routes []string, now limit.Micros, visit func(*identity.Identity, *Resolution)) {
	var r Resolution
	at := func(method, path, route string) {
		id.Method, id.Path, id.Route = method, path, route
		s.ResolveAt(&id, now, &r)
		visit(&id, &r)
	}
	e := s.Explain(&id, now)
	at("", elsewhere, id.Route)
	for _, route := range routes {
		at("", elsewhere, route)
	}
	at("", "/", "")
	patterns := e.endpoints()
	deepest := 0
	for _, text := range patterns {
		deepest = max(deepest, strings.Count(text, "/"))
	}
	for _, text := range patterns {
		method, path, _ := strings.Cut(text, " ")
		at(method, path, "") // a pattern matches itself, taken as a path
		for strings.HasSuffix(text, "/*") && strings.Count(path, "/") <= deepest {
			path += "/\x00"
			at(method, path, "")
		}
	}
}

// endpoints returns the patterns of the policies and overrides that could apply, each once.
func (e *Explanation) endpoints() []string {
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

// BoundsOf are the bounds of a tenant's requests, whatever the endpoint, each bucket once, with a cost of 0: they read
// and do not spend. Of a limit that is counted per route only the buckets of id's route and of routes can be named.
// Bounds that are counted for all tenants together, or by address alone, are not the tenant's.
func (s *Plan) BoundsOf(id identity.Identity, routes []string, now limit.Micros) []Bound {
	var bounds []Bound
	seen := map[Key]bool{}
	s.Everywhere(id, routes, now, func(_ *identity.Identity, r *Resolution) {
		for _, b := range r.Bounds {
			theirs := b.Key.Group == ByTenant && b.Key.GroupID == id.Tenant.ID
			unnamed := b.Policy.Scope.ByEndpoint() && b.Key.Endpoint == "" // no request has that bucket
			if theirs && !unnamed && !seen[b.Key] {
				seen[b.Key] = true
				b.Cost = 0
				bounds = append(bounds, b)
			}
		}
	})
	return bounds
}
