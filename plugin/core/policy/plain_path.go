package policy

import (
	"errors"
	"strings"
	"unicode/utf8"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/identity"
)

var errAmbiguousPath = errors.New(`matches no request: a path with %, \, ; or # in it is never exempt, because ` +
	`upstreams read it differently`)

// CheckExemptable returns why requests to an endpoint cannot be exempt, or nil if they can.
func CheckExemptable(pattern string) error {
	if _, path, _ := strings.Cut(pattern, " "); !isPlain(path) {
		return errAmbiguousPath
	}
	return nil
}

// IsUnambiguous reports whether all upstreams read a normalised path alike. Some decode what is still escaped, take a
// backslash for a slash, cut off what follows a semicolon, or trim control characters: to them such a path may be that
// of another endpoint.
func IsUnambiguous(id *identity.Identity) bool { return !id.PathDecoded && isPlain(id.Path) }

// isPlain reports whether a path has nothing that upstreams read in different ways.
func isPlain(path string) bool {
	for i := range len(path) {
		if c := path[i]; c <= ' ' || c == 0x7f || c == '%' || c == '\\' || c == ';' || c == '#' {
			return false
		}
	}
	return utf8.ValidString(path) // no overlong slash
}
