package suggest

import (
	"fmt"
	"strings"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/identity"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
)

const (
	// maxEndpoints bounds how many endpoints are counted. Requests to further ones count for their tier alone.
	maxEndpoints = 1000
	// maxChildren is how many names may follow a path before they count as ids.
	maxChildren = 50
	// maxSegments bounds the depth of an endpoint. Below, a * stands for all.
	maxSegments = 6
)

// endpoints finds the endpoints of requests: their paths, in which {id} stands for what identifies one thing.
type endpoints struct {
	all      map[string]bool
	children map[string]map[string]bool // the names that follow a path; nil: there were too many
}

// find returns the endpoint of a request, or "" if there are too many.
func (e *endpoints) find(method, target string) string {
	target, _, _ = strings.Cut(target, "?")
	if method == "HEAD" {
		method = "GET" // which covers it
	}
	path := identity.NormalizePath(target)
	endpoint := method + " /"
	for i, segment := range strings.Split(strings.Trim(path, "/"), "/") {
		switch {
		case segment == "":
			continue
		case i == maxSegments:
			return e.keep(endpoint + "/*")
		case isID(segment) || e.hasMany(endpoint, segment):
			segment = "{id}"
		}
		endpoint = strings.TrimSuffix(endpoint, "/") + "/" + segment
	}
	return e.keep(endpoint)
}

// keep returns an endpoint, or "" if it is one too many, or no pattern.
func (e *endpoints) keep(endpoint string) string {
	if e.all[endpoint] {
		return endpoint
	}
	if _, err := policy.ParsePattern(endpoint); err != nil || len(e.all) == maxEndpoints {
		return ""
	}
	e.all[endpoint] = true
	return endpoint
}

// hasMany reports whether too many names follow a path to be names of different endpoints.
func (e *endpoints) hasMany(path, segment string) bool {
	names, seen := e.children[path]
	switch {
	case !seen && len(e.children) < maxEndpoints:
		e.children[path] = map[string]bool{segment: true}
		return false
	case names == nil:
		return true
	case !names[segment] && len(names) == maxChildren:
		e.children[path] = nil
		return true
	}
	names[segment] = true
	return false
}

// isID reports whether a segment of a path identifies one thing: it has a digit and is longer than a version such as
// v2, or has characters that names of endpoints do not have.
func isID(segment string) bool {
	if strings.Trim(segment, "0123456789") == "" || len(segment) > 40 {
		return true
	}
	if strings.ContainsAny(segment, "%@:=,;{}*?#!'()&+$[]|~") {
		return true
	}
	return len(segment) > 3 && strings.ContainsAny(segment, "0123456789")
}

// maxLimitName bounds the name of a limit in bytes, with room for a number behind it.
const maxLimitName = 56

func nameOf(endpoint string) string {
	if endpoint == "" {
		return "suggested"
	}
	name := strings.Map(func(c rune) rune {
		if 'a' <= c && c <= 'z' || '0' <= c && c <= '9' || c == '.' || c == '_' {
			return c
		}
		return '-'
	}, strings.ToLower(strings.NewReplacer("{id}", "id", "*", "all").Replace(endpoint)))
	for strings.Contains(name, "--") {
		name = strings.ReplaceAll(name, "--", "-")
	}
	name = strings.Trim(name, "-")
	return name[:min(len(name), maxLimitName)]
}

// unusedName returns a name, with a number behind it if it is used already, and marks it as used.
func unusedName(name string, used map[string]bool) string {
	unused := name
	for n := 2; used[unused]; n++ {
		unused = fmt.Sprintf("%s-%d", name, n)
	}
	used[unused] = true
	return unused
}
