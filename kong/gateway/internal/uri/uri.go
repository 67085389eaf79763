// Package uri reads a request target as Kong does. Target decides whether nginx accepts it, Normalize returns the path
// in the normal form that Kong's router matches and its PDK reports.
package uri

import (
	"encoding/hex"
	"strings"
)

// reserved holds the bytes whose percent-encoding carries meaning (RFC 3986 reserved characters and the percent sign):
// Kong leaves their triplets encoded, and decodes all others.
const reserved = "!*'();:@&=+$,/?%#[]"

// Normalize returns the form of path that Kong routes by: triplets of unreserved and other bytes decoded, remaining
// triplets upper-cased, slashes merged, dot segments removed (RFC 3986 section 5.2.4, with Kong's choice of what to
// decode). path is the target without its query. The result of a path that begins with "/" begins with "/". Normalize
// is idempotent for every path whose percent signs all begin triplets. Target denies the others, unless they follow a
// "#", which nginx does not read.
func Normalize(path string) string {
	if path == "" || path == "/" {
		return path
	}
	if strings.IndexByte(path, '%') >= 0 {
		path = decodeTriplets(path)
	}
	if strings.IndexByte(path, '.') < 0 && !strings.Contains(path, "//") {
		return path
	}
	return removeDotSegments(path)
}

func decodeTriplets(path string) string {
	out := make([]byte, 0, len(path))
	for i := 0; i < len(path); i++ {
		c, ok := triplet(path[i:])
		switch {
		case !ok:
			out = append(out, path[i])
		case strings.IndexByte(reserved, c) >= 0:
			out = append(out, '%', upperHex(path[i+1]), upperHex(path[i+2]))
			i += 2
		default:
			out = append(out, c)
			i += 2
		}
	}
	return string(out)
}

// removeDotSegments walks the path segment by segment, each with the slash before it. A leading segment without a slash
// (a path that does not begin with "/") is kept unless it is a dot segment.
func removeDotSegments(path string) string {
	var kept []string
	for len(path) > 0 {
		end := strings.IndexByte(path[1:], '/') + 1
		if end == 0 {
			end = len(path)
		}
		segment := path[:end]
		last := end == len(path)
		path = path[end:]
		switch name := strings.TrimPrefix(segment, "/"); {
		case name == segment && (name == "." || name == ".."):
			// a relative beginning: Kong's loop strips "./" and "../" with their slash
			path = strings.TrimPrefix(path, "/")
		case name == "" && !last:
			// "//": the first slash goes
		case name == ".":
			if last {
				kept = append(kept, "/")
			}
		case name == "..":
			if len(kept) > 0 {
				kept = kept[:len(kept)-1]
			}
			if last {
				kept = append(kept, "/")
			}
		default:
			kept = append(kept, segment)
		}
	}
	return strings.Join(kept, "")
}

// Escape percent-encodes every byte of a normalised path that is neither reserved nor unreserved, for a request line.
func Escape(path string) string {
	const digits = "0123456789ABCDEF"
	out := make([]byte, 0, len(path))
	for i := range len(path) {
		c := path[i]
		if isAlphanumeric(c) || strings.IndexByte("!#$&'()*+,/:;=?@[]-_.~%", c) >= 0 {
			out = append(out, c)
			continue
		}
		out = append(out, '%', digits[c>>4], digits[c&15])
	}
	return string(out)
}

func isAlphanumeric(c byte) bool {
	return 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9'
}

// triplet decodes the percent-encoded byte at the beginning of s.
func triplet(s string) (byte, bool) {
	if len(s) < 3 || s[0] != '%' {
		return 0, false
	}
	decoded, err := hex.DecodeString(s[1:3])
	if err != nil {
		return 0, false
	}
	return decoded[0], true
}

func upperHex(c byte) byte {
	if 'a' <= c && c <= 'f' {
		return c - 'a' + 'A'
	}
	return c
}

// Target reads a request target as nginx does and returns the request URI: the target itself or, for an absolute form,
// the part after the authority. ok is false where nginx answers 400 before Kong sees the request: a target that is no
// path, a percent sign that begins no triplet, an encoded NUL, a control byte, or dot segments that climb above the
// root.
func Target(target string) (requestURI string, ok bool) {
	requestURI = target
	if !strings.HasPrefix(target, "/") {
		requestURI, ok = afterAuthority(target)
		if !ok {
			return "", false
		}
	}
	path, _, _ := strings.Cut(requestURI, "?")
	path, _, _ = strings.Cut(path, "#")
	return requestURI, acceptable(path) && !hasControl(requestURI)
}

// Path returns the part of a request URI before its query. Kong looks for the question mark from the second byte on.
func Path(requestURI string) string {
	if len(requestURI) < 2 {
		return requestURI
	}
	if i := strings.IndexByte(requestURI[1:], '?'); i >= 0 {
		return requestURI[:i+1]
	}
	return requestURI
}

// Query returns the part of a request URI after its first question mark.
func Query(requestURI string) string {
	_, query, _ := strings.Cut(requestURI, "?")
	return query
}

func afterAuthority(target string) (string, bool) {
	scheme, rest, found := strings.Cut(target, "://")
	if !found || scheme == "" || rest == "" {
		return "", false
	}
	for i := range len(scheme) {
		c := scheme[i]
		letter := 'a' <= c|0x20 && c|0x20 <= 'z'
		if !letter && (i == 0 || !isAlphanumeric(c) && strings.IndexByte("+-.", c) < 0) {
			return "", false
		}
	}
	slash := strings.IndexAny(rest, "/?#")
	switch {
	case slash < 0:
		return "/", true
	case slash == 0:
		return "", false
	case rest[slash] != '/':
		return "/" + rest[slash:], true
	}
	return rest[slash:], true
}

func hasControl(s string) bool {
	return strings.ContainsFunc(s, func(c rune) bool { return c <= ' ' || c == 0x7f })
}

// acceptable reports whether nginx can build $uri of the path with its triplets decoded (merge_slashes on): an encoded
// slash or dot counts as one, an encoded "%", "#" or "?" is an ordinary byte.
func acceptable(path string) bool {
	depth, name := 0, make([]byte, 0, 64)
	leave := func() bool {
		switch string(name) {
		case "", ".":
		case "..":
			depth--
		default:
			depth++
		}
		name = name[:0]
		return depth >= 0
	}
	for i := 0; i < len(path); i++ {
		c, literal := path[i], false
		if c == '%' {
			decoded, ok := triplet(path[i:])
			if !ok || decoded == 0 {
				return false
			}
			c, literal = decoded, decoded == '%' || decoded == '#' || decoded == '?'
			i += 2
		}
		if c == '/' && !literal {
			if !leave() {
				return false
			}
			continue
		}
		name = append(name, c)
	}
	return leave()
}
