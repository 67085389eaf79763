package uri

import "strings"

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
