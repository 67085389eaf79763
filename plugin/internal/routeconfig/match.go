package routeconfig

import (
	"cmp"
	"regexp"
	"slices"
	"strings"
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
	headers  int      // how many it needs
	hidden   bool     // it needs what logs lack: headers, server names, addresses, or an expression
	prefix   string   // of paths
	pattern  *regexp.Regexp
	priority int // of patterns
}

// matches reports whether Kong may choose the route for a request. Without a host all hosts match.
func (m *matcher) matches(method, path, host string) bool {
	isHost := func(pattern string) bool { return matchesHost(pattern, host) }
	switch {
	case len(m.methods) > 0 && !slices.Contains(m.methods, method):
		return false
	case len(m.hosts) > 0 && host != "" && !slices.ContainsFunc(m.hosts, isHost):
		return false
	case m.pattern != nil:
		return m.pattern.MatchString(path)
	}
	return strings.HasPrefix(path, m.prefix)
}

// matchesHost reports whether a host of a route, which may begin or end with *, is that of a request. Ports count only
// if the route has one.
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
		cmp.Compare(m.wildcards(), other.wildcards()),
		cmp.Compare(other.headers, m.headers),
		cmp.Compare(other.patterns(), m.patterns()),
		cmp.Compare(other.priority, m.priority),
		cmp.Compare(len(other.prefix), len(m.prefix)),
	)
}

// wildcards returns 1 if a host has a wildcard, else 0.
func (m *matcher) wildcards() int {
	if slices.ContainsFunc(m.hosts, func(host string) bool { return strings.Contains(host, "*") }) {
		return 1
	}
	return 0
}

// patterns returns 1 if the path is a regular expression, else 0.
func (m *matcher) patterns() int {
	if m.pattern != nil {
		return 1
	}
	return 0
}

// HasHosts reports whether hosts of requests matter to RouteOf.
func (f *File) HasHosts() bool {
	return slices.ContainsFunc(f.matchers, func(m matcher) bool { return len(m.hosts) > 0 })
}

// RouteOf returns the name of the route that Kong's traditional router chooses for a normalized path, or "". Logs have
// neither the headers nor the addresses by which a route may match, and often no host (""). If that makes several
// routes possible, it reports false.
func (f *File) RouteOf(method, path, host string) (route string, ok bool) {
	for i := range f.matchers {
		m := &f.matchers[i]
		if !m.matches(method, path, host) {
			continue
		}
		if route != "" && m.route != route {
			return "", false
		}
		route = m.route
		if !m.hidden && (len(m.hosts) == 0 || host != "") {
			break
		}
	}
	return route, true
}

// matchersOf returns the paths of all routes in a file, in the order in which they are tried.
func matchersOf(text []byte) (list []matcher) {
	root := decoded(text)
	lists := []any{root["routes"]}
	services, _ := root["services"].([]any)
	for _, s := range services {
		if service, ok := s.(map[string]any); ok {
			lists = append(lists, service["routes"])
		}
	}
	for _, routes := range lists {
		all, _ := routes.([]any)
		for _, r := range all {
			if route, ok := r.(map[string]any); ok && nameOf(route) != "" {
				list = appendMatchers(list, route)
			}
		}
	}
	slices.SortStableFunc(list, func(a, b matcher) int { return a.order(&b) })
	return list
}

// appendMatchers appends the paths of a route. A pattern that Go does not read may match any path.
func appendMatchers(list []matcher, route map[string]any) []matcher {
	whole := matcher{route: nameOf(route), hosts: texts(route["hosts"]), methods: texts(route["methods"])}
	headers, _ := route["headers"].(map[string]any)
	whole.headers = len(headers)
	whole.priority, _ = route["regex_priority"].(int)
	others := 0
	for _, field := range [...]string{"snis", "sources", "destinations", "expression"} {
		if value := route[field]; value != nil {
			others++
		}
	}
	whole.hidden = whole.headers+others > 0
	paths := texts(route["paths"])
	for _, rule := range [...]struct{ count, kind int }{
		{len(whole.hosts), byHost},
		{whole.headers, byHeader},
		{len(paths), byPath},
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
	if len(paths) == 0 {
		return append(list, whole)
	}
	for _, path := range paths {
		m := whole
		pattern, isPattern := strings.CutPrefix(path, "~")
		if !isPattern {
			m.prefix = path
		} else if compiled, err := regexp.Compile("^(?:" + pattern + ")"); err == nil {
			m.pattern = compiled
		} else {
			m.hidden = true
		}
		list = append(list, m)
	}
	return list
}

// texts returns the strings of a list.
func texts(value any) (list []string) {
	all, _ := value.([]any)
	for _, item := range all {
		if text, ok := item.(string); ok {
			list = append(list, text)
		}
	}
	return list
}
