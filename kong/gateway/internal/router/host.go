package router

import (
	"net"
	"regexp"
	"strings"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/kong/gateway/internal/deck"
)

// hostRule is a host of a route: plain, or a pattern when it holds a "*".
type hostRule struct {
	plain   string
	pattern *regexp.Regexp
}

func compileHosts(hosts []string) (rules []hostRule, subrules int) {
	subrules = plainHostsOnly
	for _, host := range hosts {
		if !strings.Contains(host, "*") {
			rules = append(rules, hostRule{plain: strings.ToLower(host)})
			continue
		}
		subrules &^= plainHostsOnly
		expression := strings.ReplaceAll(regexp.QuoteMeta(strings.ToLower(host)), `\*`, ".+")
		if _, _, err := net.SplitHostPort(host); err == nil {
			subrules |= hasWildcardHostPort
		} else {
			expression += `(?::\d+)?`
		}
		rules = append(rules, hostRule{pattern: regexp.MustCompile("^" + expression + "$")})
	}
	return rules, subrules
}

// match compares a Host header with the rule, with and without its port; a
// header without one has the port of the listener's scheme, 80.
func (h hostRule) match(host string) bool {
	host = strings.ToLower(host)
	name, port, err := net.SplitHostPort(host)
	if err != nil {
		name, port = host, "80"
	}
	withPort := name + ":" + port
	if h.pattern != nil {
		return h.pattern.MatchString(withPort)
	}
	return h.plain == name || h.plain == withPort
}

// withoutDots removes a dot segment that cutting the prefix off has laid bare
// ("/a./b" under a route "/a").
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

// upstreamPath joins the service's path and the request's (path_handling v0):
// with exactly one slash between, and none added at the end.
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
