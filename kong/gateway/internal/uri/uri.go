// Package uri reads a request target as Kong does. Target decides whether nginx accepts it, Normalize returns the path
// in the normal form that Kong's router matches and its PDK reports.
package uri

import (
	"net/url"
	"path"
	"regexp"
	"slices"
	"strings"
)

// reserved holds the bytes whose percent-encoding carries meaning (RFC 3986 reserved characters and the percent sign):
// Kong leaves their triplets encoded, and decodes all others.
const reserved = "!*'();:@&=+$,/?%#[]"

var triplet = regexp.MustCompile(`%[0-9A-Fa-f]{2}`)

// Normalize returns the form of a path that Kong routes by: triplets of unreserved and other bytes decoded, remaining
// triplets upper-cased, slashes merged, dot segments removed (RFC 3986 section 5.2.4, with Kong's choice of what to
// decode). The path begins with "/", and is the target without its query. Normalize is idempotent for every path whose
// percent signs all begin triplets. Target denies the others, unless they follow a "#", which nginx does not read.
func Normalize(raw string) string {
	decoded := triplet.ReplaceAllStringFunc(raw, func(encoded string) string {
		c, err := url.PathUnescape(encoded)
		if err != nil || strings.Contains(reserved, c) {
			return strings.ToUpper(encoded)
		}
		return c
	})
	clean := path.Clean(decoded)
	last := decoded[strings.LastIndexByte(decoded, '/')+1:]
	if clean != "/" && (last == "" || last == "." || last == "..") {
		clean += "/"
	}
	return clean
}

// Escape percent-encodes every byte of a normalised path that is neither reserved nor unreserved, for a request line.
func Escape(path string) string {
	return toEscape.ReplaceAllStringFunc(path, func(c string) string {
		return strings.ReplaceAll(url.QueryEscape(c), "+", "%20")
	})
}

var toEscape = regexp.MustCompile(`[^A-Za-z0-9!#$&'()*+,/:;=?@\[\]\-_.~%]+`)

// absolute matches the scheme and the authority of an absolute form.
var absolute = regexp.MustCompile(`^[A-Za-z][A-Za-z0-9+.-]*://[^/?#]+`)

// Target reads a request target as nginx does and returns the request URI: the target itself or, for an absolute form,
// the part after the authority. It begins with "/". ok is false where nginx answers 400 before Kong sees the request: a
// target that is no path, a percent sign that begins no triplet, an encoded NUL, a control byte, or dot segments that
// climb above the root (an encoded slash or dot counts as one).
func Target(target string) (requestURI string, ok bool) {
	requestURI = target
	if !strings.HasPrefix(target, "/") {
		authority := absolute.FindString(target)
		if authority == "" {
			return "", false
		}
		if requestURI = target[len(authority):]; !strings.HasPrefix(requestURI, "/") {
			requestURI = "/" + requestURI
		}
	}
	raw, _, _ := strings.Cut(requestURI, "?")
	raw, _, _ = strings.Cut(raw, "#")
	decoded, err := url.PathUnescape(raw)
	isControl := func(c rune) bool { return c <= ' ' || c == 0x7f }
	return requestURI, err == nil && !strings.Contains(decoded, "\x00") && !climbs(decoded) &&
		!strings.ContainsFunc(requestURI, isControl)
}

// climbs reports whether dot segments lead above the root.
func climbs(decoded string) bool {
	depth := 0
	return slices.ContainsFunc(strings.Split(decoded, "/"), func(name string) bool {
		switch name {
		case "", ".":
		case "..":
			depth--
		default:
			depth++
		}
		return depth < 0
	})
}
