package router

import (
	"strings"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/kong/gateway/internal/deck"
)

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
