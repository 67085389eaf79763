package routeconfig

import (
	"cmp"
	"maps"
	"regexp"
	"slices"
	"strings"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema/deck"
)

// Kong's match rules by weight. Of two routes that match, the one with more rules is chosen, then the one with the
// weightier rules.
const (
	byOther  = 0x07 // server name, source, destination
	byMethod = 0x08
	byPath   = 0x10
	byHeader = 0x20
	byHost   = 0x40
)

// matcher is a path of a route in a decK file, or a route without paths.
type matcher struct {
	route    string
	rules    []int    // its kinds
	hosts    []string // nil: any
	methods  []string // nil: any
	headers  []headerRule
	hidden   []string // what it matches that logs lack: server names, addresses, an expression
	prefix   string   // of paths
	regex    bool     // the path is a regular expression
	pattern  *regexp.Regexp
	priority int // of patterns
}

// headerRule is a header that a route needs, with one of some values.
type headerRule struct {
	name    string
	values  []string       // in lower case
	pattern *regexp.Regexp // nil: the values count
}

// anyValue is the pattern in place of one that Go does not read.
var anyValue = regexp.MustCompile("")

// newHeaderRule returns the rule of a header, and false if Go does not read its pattern.
func newHeaderRule(name string, values []string) (headerRule, bool) {
	h := headerRule{name: name}
	if len(values) == 1 && strings.HasPrefix(values[0], "~*") {
		var err error
		h.pattern, err = regexp.Compile(values[0][2:])
		return h, err == nil
	}
	for _, value := range values {
		h.values = append(h.values, strings.ToLower(value))
	}
	return h, true
}

// matches reports whether a line of the header has a value of the rule. As in Kong, lines are compared in lower case.
func (h *headerRule) matches(lines []string) bool {
	return slices.ContainsFunc(lines, func(line string) bool {
		line = strings.ToLower(line)
		if h.pattern != nil {
			return h.pattern.MatchString(line)
		}
		return slices.Contains(h.values, line)
	})
}

// Request is what a log has of a request that Kong's router reads.
type Request struct {
	Method string
	Path   string // normalized
	Host   string // "": the log lacks it

	// Header returns the lines of a header, and whether the log has them.
	Header func(name string) (lines []string, logged bool)
}

// matches reports whether Kong may choose the route for a request. What its log lacks matches.
func (m *matcher) matches(r *Request) bool {
	isHost := func(pattern string) bool { return matchesHost(pattern, r.Host) }
	switch {
	case len(m.methods) > 0 && !slices.Contains(m.methods, r.Method):
		return false
	case len(m.hosts) > 0 && r.Host != "" && !slices.ContainsFunc(m.hosts, isHost):
		return false
	case m.pattern != nil && !m.pattern.MatchString(r.Path), !strings.HasPrefix(r.Path, m.prefix):
		return false
	}
	for i := range m.headers {
		if lines, logged := r.Header(m.headers[i].name); logged && !m.headers[i].matches(lines) {
			return false
		}
	}
	return true
}

// matchesHost reports whether a host of a route, which may begin or end with *, is the host of a request. Ports count
// only if the route has one.
func matchesHost(pattern, host string) bool {
	if !strings.Contains(pattern, ":") {
		host, _, _ = strings.Cut(host, ":")
	}
	pattern, host = strings.ToLower(pattern), strings.ToLower(host)
	if behind, ok := strings.CutPrefix(pattern, "*"); ok {
		return strings.HasSuffix(host, behind)
	}
	if before, ok := strings.CutSuffix(pattern, "*"); ok {
		return strings.HasPrefix(host, before)
	}
	return host == pattern
}

// order compares matchers: the first to be tried is the smallest.
func (m *matcher) order(other *matcher) int {
	return cmp.Or(
		cmp.Compare(len(other.rules), len(m.rules)),
		slices.Compare(other.rules, m.rules),
		cmp.Compare(count(m.hasWildcard()), count(other.hasWildcard())),
		cmp.Compare(len(other.headers), len(m.headers)),
		cmp.Compare(count(other.regex), count(m.regex)),
		cmp.Compare(other.priority, m.priority),
		cmp.Compare(len(other.prefix), len(m.prefix)),
	)
}

func (m *matcher) hasWildcard() bool {
	return slices.ContainsFunc(m.hosts, func(host string) bool { return strings.Contains(host, "*") })
}

func count(isTrue bool) int {
	if isTrue {
		return 1
	}
	return 0
}

// RequestHeaders returns the names of the request headers that RouteOf reads.
func (f *File) RequestHeaders() (names []string) {
	for _, m := range f.matchers {
		if len(m.hosts) > 0 {
			names = append(names, "Host")
		}
		for _, h := range m.headers {
			names = append(names, h.name)
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// RouteOf returns the name of the route that Kong's traditional router chooses for a request, or "". Logs lack the
// addresses by which a route may match, and often headers and the host. If that makes several routes possible, it
// returns these in words: each with what it matches that the log lacks.
func (f *File) RouteOf(r *Request) (route string, possible []string) {
	for i := range f.matchers {
		m := &f.matchers[i]
		if !m.matches(r) {
			continue
		}
		if route != "" && m.route != route {
			return "", f.possibleRoutes(r)
		}
		if route = m.route; len(m.lacks(r)) == 0 {
			break
		}
	}
	return route, nil
}

// possibleRoutes returns the routes that a request may take in words, in the order in which they are tried.
func (f *File) possibleRoutes(r *Request) (routes []string) {
	named := map[string]bool{}
	for i := range f.matchers {
		m := &f.matchers[i]
		if !m.matches(r) {
			continue
		}
		lacks := m.lacks(r)
		if !named[m.route] {
			text := m.route
			if len(lacks) > 0 {
				text += " (by " + strings.Join(lacks, ", ") + ")"
			}
			named[m.route], routes = true, append(routes, text)
		}
		if len(lacks) == 0 {
			break
		}
	}
	return routes
}

// lacks returns what the matcher matches that the log of a request lacks.
func (m *matcher) lacks(r *Request) (names []string) {
	if len(m.hosts) > 0 && r.Host == "" {
		names = append(names, "hosts")
	}
	for _, h := range m.headers {
		if _, logged := r.Header(h.name); !logged {
			names = append(names, "header "+h.name)
		}
	}
	return append(names, m.hidden...)
}

// literalPrefix returns a text that each path begins with that a regular expression matches.
func literalPrefix(pattern string) string {
	if strings.Contains(pattern, "|") {
		return ""
	}
	end := strings.IndexAny(pattern, `\.+*?()[]{}^$`)
	switch {
	case end < 0:
		return pattern
	case end > 0 && strings.ContainsRune("*?{", rune(pattern[end])):
		end-- // what may be absent
	}
	return pattern[:end]
}

// appendMatchers appends the paths of a route. A pattern that Go does not read may match any path with its prefix. A
// field of another type, which Kong denies, counts as absent.
func appendMatchers(list []matcher, r deck.Route) []matcher {
	var route struct {
		Hosts, Methods, Paths []string
		Headers               map[string][]string
		RegexPriority         int            `yaml:"regex_priority"`
		Others                map[string]any `yaml:",inline"`
	}
	_ = r.Fields.Decode(&route)
	whole := matcher{route: r.Name, hosts: route.Hosts, methods: route.Methods, priority: route.RegexPriority}
	for _, name := range slices.Sorted(maps.Keys(route.Headers)) {
		rule, ok := newHeaderRule(name, route.Headers[name])
		if !ok {
			whole.hidden = append(whole.hidden, "the pattern of header "+name)
			rule.pattern = anyValue
		}
		whole.headers = append(whole.headers, rule)
	}
	others := 0
	for _, field := range [...]string{"snis", "sources", "destinations", "expression"} {
		if value := route.Others[field]; value != nil {
			others++
			whole.hidden = append(whole.hidden, field)
		}
	}
	for _, rule := range [...]struct{ count, kind int }{
		{len(whole.hosts), byHost},
		{len(whole.headers), byHeader},
		{len(route.Paths), byPath},
		{len(whole.methods), byMethod},
		{others, byOther},
	} {
		if rule.count > 0 {
			whole.rules = append(whole.rules, rule.kind)
		}
	}
	if len(whole.rules) == 0 {
		return list // Kong chooses it for nothing
	}
	if len(route.Paths) == 0 {
		return append(list, whole)
	}
	for _, path := range route.Paths {
		m := whole
		var pattern string
		if pattern, m.regex = strings.CutPrefix(path, "~"); !m.regex {
			m.prefix = path
		} else if compiled, err := regexp.Compile("^(?:" + pattern + ")"); err == nil {
			m.pattern = compiled
		} else {
			m.prefix = literalPrefix(pattern)
			m.hidden = append(slices.Clip(m.hidden), "the pattern "+path)
		}
		list = append(list, m)
	}
	return list
}
