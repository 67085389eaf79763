package gateway

import (
	"cmp"
	"slices"
	"strings"
)

// match is a route, and the part of the request's path that it matches: one of its paths, or "" if it has none.
type match struct {
	*Route
	prefix string
}

// newRouter returns what requests are matched with, in the order of Kong's traditional router: a route that compares
// more of host, path and method comes first, then one that compares the host, then one with a longer path. Of equals
// the first in the file comes first, as the oldest entity does in Kong.
func newRouter(routes []*Route) []match {
	var all []match
	for _, route := range routes {
		if len(route.Paths) == 0 {
			all = append(all, match{route, ""})
		}
		for _, path := range route.Paths {
			all = append(all, match{route, path})
		}
	}
	slices.SortStableFunc(all, func(a, b match) int {
		return cmp.Or(b.rules()-a.rules(), min(len(b.Hosts), 1)-min(len(a.Hosts), 1), len(b.prefix)-len(a.prefix))
	})
	return all
}

// rules returns how many properties of a request are compared.
func (m match) rules() int {
	return min(len(m.Hosts), 1) + min(len(m.prefix), 1) + min(len(m.Methods), 1)
}

// find returns the match of a request; nil if it has no route. The path is normalised, the host in lower case.
func find(router []match, host, method, path string) *match {
	for i, m := range router {
		if strings.HasPrefix(path, m.prefix) && (len(m.Methods) == 0 || slices.Contains(m.Methods, method)) &&
			(len(m.Hosts) == 0 || slices.Contains(m.Hosts, host)) {
			return &router[i]
		}
	}
	return nil
}

// upstreamPath returns the path that goes to the service, not yet escaped.
func (m match) upstreamPath(path string) string {
	if !m.StripPath {
		return path
	}
	return "/" + strings.TrimPrefix(path[len(m.prefix):], "/")
}
