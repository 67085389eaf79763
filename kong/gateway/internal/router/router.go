// Package router chooses the route of a request as Kong's traditional router
// does, and says which path goes to the service. It matches what it is given:
// normalising the path and reading the request are the caller's.
package router

import (
	"cmp"
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"strings"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/kong/gateway/internal/deck"
)

// Kong's match rules. A candidate with more kinds of rules is tried first,
// then the one with the more significant rule.
const (
	byMethod = 0x08
	byPath   = 0x10
	byHeader = 0x20
	byHost   = 0x40
)

// Kong's order inside a category.
const (
	hasRegexPath        = 0x01
	plainHostsOnly      = 0x02
	hasWildcardHostPort = 0x04
)

// Router is an immutable, ordered list of candidates: one for each path of
// each route.
type Router struct {
	candidates []*candidate
}

// Request is what routes are matched against. Path is normalised, Host is the
// Host header as sent, Header holds canonical names.
type Request struct {
	Method, Path, Host string
	Header             http.Header
}

// Match is the outcome of routing. Prefix is the part of the path that the
// route matched ("" without paths), UpstreamPath what goes to the service, not
// yet escaped. Unnamed and Named are a regular expression's captures.
type Match struct {
	Route        *deck.Route
	Prefix       string
	UpstreamPath string
	Unnamed      []string
	Named        map[string]string
}

type candidate struct {
	route    *deck.Route
	rules    int
	subrules int
	kinds    int
	prefix   string
	pattern  *regexp.Regexp
	hosts    []hostRule
	headers  []headerRule
}

type headerRule struct {
	name    string
	values  []string
	pattern *regexp.Regexp
}

// New compiles the routes. A route's order in the list decides between equals,
// as the age of the entity does in Kong. It fails for a regular expression
// that Go's engine, which has no look-around, cannot compile.
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
	c := &candidate{route: route}
	if len(route.Hosts) > 0 {
		c.rules |= byHost
		c.hosts, c.subrules = compileHosts(route.Hosts)
	}
	if len(route.Headers) > 0 {
		c.rules |= byHeader
		for name, values := range route.Headers {
			rule, err := compileHeader(name, values)
			if err != nil {
				return nil, err
			}
			c.headers = append(c.headers, rule)
		}
	}
	if path != "" {
		c.rules |= byPath
		expression, isRegex := strings.CutPrefix(path, "~")
		if isRegex {
			pattern, err := regexp.Compile("^(?:" + expression + ")")
			if err != nil {
				return nil, fmt.Errorf("path %s: %w", path, err)
			}
			c.pattern, c.subrules = pattern, c.subrules|hasRegexPath
		} else {
			c.prefix = path
		}
	}
	if len(route.Methods) > 0 {
		c.rules |= byMethod
	}
	for _, kind := range []int{byHost, byHeader, byPath, byMethod} {
		if c.rules&kind != 0 {
			c.kinds++
		}
	}
	return c, nil
}

func compileHeader(name string, values []string) (headerRule, error) {
	rule := headerRule{name: http.CanonicalHeaderKey(name), values: values}
	if len(values) == 1 && strings.HasPrefix(values[0], "~*") {
		pattern, err := regexp.Compile("(?i)" + values[0][2:])
		if err != nil {
			return rule, fmt.Errorf("header %s: %w", name, err)
		}
		rule.pattern = pattern
	}
	return rule, nil
}

// order puts the candidate to be tried first first.
func order(a, b *candidate) int {
	return cmp.Or(
		cmp.Compare(b.kinds, a.kinds),
		cmp.Compare(b.rules, a.rules),
		cmp.Compare(b.subrules, a.subrules),
		cmp.Compare(len(b.headers), len(a.headers)),
		regexPriority(b)-regexPriority(a),
		cmp.Compare(len(b.prefix), len(a.prefix)),
	)
}

func regexPriority(c *candidate) int {
	if c.pattern == nil {
		return 0
	}
	return c.route.RegexPriority
}

// Match finds the route of a request; nil when there is none.
func (r *Router) Match(request Request) *Match {
	for _, c := range r.candidates {
		if m := c.match(request); m != nil {
			return m
		}
	}
	return nil
}

func (c *candidate) match(request Request) *Match {
	if len(c.hosts) > 0 && !slices.ContainsFunc(c.hosts, func(h hostRule) bool { return h.match(request.Host) }) {
		return nil
	}
	for _, rule := range c.headers {
		if !rule.match(request.Header) {
			return nil
		}
	}
	if len(c.route.Methods) > 0 && !slices.Contains(c.route.Methods, request.Method) {
		return nil
	}
	m := &Match{Route: c.route}
	postfix := strings.TrimPrefix(request.Path, "/")
	if c.rules&byPath != 0 {
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
	groups := c.pattern.FindStringSubmatch(path)
	if groups == nil {
		return false
	}
	m.Prefix = groups[0]
	for i, name := range c.pattern.SubexpNames()[1:] {
		if m.Unnamed = append(m.Unnamed, groups[i+1]); name != "" {
			if m.Named == nil {
				m.Named = map[string]string{}
			}
			m.Named[name] = groups[i+1]
		}
	}
	return true
}

func (h headerRule) match(header http.Header) bool {
	return slices.ContainsFunc(header[h.name], func(value string) bool {
		if h.pattern != nil {
			return h.pattern.MatchString(value)
		}
		return slices.ContainsFunc(h.values, func(want string) bool { return strings.EqualFold(want, value) })
	})
}
