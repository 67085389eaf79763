// Package router chooses the route of a request as Kong's traditional router does, by host, path and method, and
// returns the path that goes to the service. The caller normalises the path and reads the request.
package router

import (
	"cmp"
	"fmt"
	"net"
	"regexp"
	"slices"
	"strings"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/kong/gateway/internal/deck"
)

// Kong's match rules by weight. A candidate with more rules is tried first, then the one with the weightier rule.
const (
	byMethod = 0x08
	byPath   = 0x10
	byHost   = 0x40
)

// Router holds an ordered list of candidates, one for each path of each route. It does not change.
type Router struct {
	candidates []*candidate
}

// Request holds what routes are matched against. Path is normalised, Host is the Host header as sent.
type Request struct {
	Method, Path, Host string
}

// Match is the route of a request. Prefix is the part of the path that the route matched ("" without paths),
// UpstreamPath the path that goes to the service, not yet escaped.
type Match struct {
	Route        *deck.Route
	Prefix       string
	UpstreamPath string
}

type candidate struct {
	route   *deck.Route
	rules   []int
	prefix  string
	pattern *regexp.Regexp // of a path that is a regular expression
}

// New compiles the routes. A route's order in the list decides between equals, as the age of the entity does in Kong.
// It fails for a regular expression that Go's engine, which has no look-around, cannot compile.
func New(routes []*deck.Route) (*Router, error) {
	r := &Router{}
	for _, route := range routes {
		paths := route.Paths
		if len(paths) == 0 {
			paths = []string{""}
		}
		for _, path := range paths {
			c, err := compile(route, path)
			if err != nil {
				return nil, fmt.Errorf("route %q: %w", route.Name, err)
			}
			r.candidates = append(r.candidates, c)
		}
	}
	slices.SortStableFunc(r.candidates, order)
	return r, nil
}

func compile(route *deck.Route, path string) (*candidate, error) {
	c := &candidate{route: route, prefix: path}
	if len(route.Hosts) > 0 {
		c.rules = append(c.rules, byHost)
	}
	if path != "" {
		c.rules = append(c.rules, byPath)
	}
	if len(route.Methods) > 0 {
		c.rules = append(c.rules, byMethod)
	}
	if expression, isRegex := strings.CutPrefix(path, "~"); isRegex {
		pattern, err := regexp.Compile("^(?:" + expression + ")")
		if err != nil {
			return nil, fmt.Errorf("path %s: %w", path, err)
		}
		c.pattern, c.prefix = pattern, ""
	}
	return c, nil
}

// order compares candidates: the first to be tried is the smallest.
func order(a, b *candidate) int {
	return cmp.Or(
		cmp.Compare(len(b.rules), len(a.rules)),
		slices.Compare(b.rules, a.rules),
		cmp.Compare(b.regexes(), a.regexes()),
		cmp.Compare(len(b.prefix), len(a.prefix)),
	)
}

// regexes returns 1 if the candidate's path is a regular expression, else 0.
func (c *candidate) regexes() int {
	if c.pattern != nil {
		return 1
	}
	return 0
}

// Match returns the route of a request, or nil.
func (r *Router) Match(request Request) *Match {
	for _, c := range r.candidates {
		if m := c.match(request); m != nil {
			return m
		}
	}
	return nil
}

func (c *candidate) match(request Request) *Match {
	isRequested := func(host string) bool { return isHost(host, request.Host) }
	if len(c.route.Hosts) > 0 && !slices.ContainsFunc(c.route.Hosts, isRequested) {
		return nil
	}
	if len(c.route.Methods) > 0 && !slices.Contains(c.route.Methods, request.Method) {
		return nil
	}
	m := &Match{Route: c.route}
	postfix := strings.TrimPrefix(request.Path, "/")
	if len(c.route.Paths) > 0 {
		if !c.matchPath(request.Path, m) {
			return nil
		}
		postfix = withoutDots(request.Path[len(m.Prefix):])
	}
	m.UpstreamPath = upstreamPath(c.route, postfix, request.Path)
	return m
}

func (c *candidate) matchPath(path string, m *Match) bool {
	if c.pattern == nil {
		m.Prefix = c.prefix
		return strings.HasPrefix(path, c.prefix)
	}
	span := c.pattern.FindStringIndex(path)
	if span == nil {
		return false
	}
	m.Prefix = path[:span[1]]
	return true
}

// isHost reports whether a route's host is that of a Host header, with or without its port. A header without a port has
// that of the listener's scheme, 80.
func isHost(host, header string) bool {
	name, port, err := net.SplitHostPort(header)
	if err != nil {
		name, port = header, "80"
	}
	return strings.EqualFold(host, name) || strings.EqualFold(host, name+":"+port)
}

// withoutDots removes a dot segment that appears once the prefix is cut off ("/a./b" under a route "/a").
func withoutDots(postfix string) string {
	if postfix == "." || postfix == ".." {
		return ""
	}
	for _, dots := range []string{"./", "../"} {
		if rest, cut := strings.CutPrefix(postfix, dots); cut {
			return rest
		}
	}
	return postfix
}

// upstreamPath joins the service's path and the request's (path_handling v0), with exactly one slash between them and
// no other slash at the end.
func upstreamPath(route *deck.Route, postfix, path string) string {
	base := "/"
	if route.Service != nil && route.Service.Path != "" {
		base = route.Service.Path
	}
	trimmed, endsWithSlash := strings.CutSuffix(base, "/")
	if !route.StripPath {
		switch {
		case endsWithSlash:
			return base + path[1:]
		case path == "/":
			return base
		}
		return base + path
	}
	pathEndsWithSlash := len(path) > 1 && strings.HasSuffix(path, "/")
	switch {
	case postfix == "" && base == "/", postfix == "" && endsWithSlash && strings.HasSuffix(path, "/"):
		return base
	case postfix == "" && endsWithSlash:
		return trimmed
	case postfix == "" && pathEndsWithSlash:
		return base + "/"
	case postfix == "":
		return base
	case strings.HasPrefix(postfix, "/"):
		return trimmed + postfix
	}
	return trimmed + "/" + postfix
}
