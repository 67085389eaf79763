package routeconfig

import (
	"regexp"
	"slices"
	"strings"
)

// matcher is a path of a route in a decK file.
type matcher struct {
	route   string
	methods []string       // nil: any
	prefix  string         // of paths
	pattern *regexp.Regexp // nil: the prefix counts
}

// matches reports whether Kong may choose the route for a request.
func (m *matcher) matches(method, path string) bool {
	if len(m.methods) > 0 && !slices.Contains(m.methods, method) {
		return false
	}
	if m.pattern != nil {
		return m.pattern.MatchString(path)
	}
	return strings.HasPrefix(path, m.prefix)
}

// RouteOf returns the name of the route that Kong chooses for a normalized path, or "". It knows paths and methods:
// patterns come before prefixes, and of prefixes the longest one wins. Routes by hosts or headers alone match nothing.
func (f *File) RouteOf(method, path string) string {
	for i := range f.matchers {
		if f.matchers[i].matches(method, path) {
			return f.matchers[i].route
		}
	}
	return ""
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
	slices.SortStableFunc(list, func(a, b matcher) int {
		switch {
		case a.pattern != nil && b.pattern == nil:
			return -1
		case a.pattern == nil && b.pattern != nil:
			return 1
		}
		return len(b.prefix) - len(a.prefix)
	})
	return list
}

// appendMatchers appends the paths of a route. It leaves out patterns that Go does not read.
func appendMatchers(list []matcher, route map[string]any) []matcher {
	methods, paths := texts(route["methods"]), texts(route["paths"])
	for _, path := range paths {
		m := matcher{route: nameOf(route), methods: methods, prefix: path}
		if pattern, isPattern := strings.CutPrefix(path, "~"); isPattern {
			compiled, err := regexp.Compile("^(?:" + pattern + ")")
			if err != nil {
				continue
			}
			m.prefix, m.pattern = "", compiled
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
