package identity

import "strings"

// isPreflight reports whether an OPTIONS request is a CORS preflight: it has one Origin, and one method that it asks
// about in Access-Control-Request-Method. Any client can send both headers.
func (r *Request) isPreflight() bool {
	return r.Origin != "" && !strings.ContainsAny(r.Origin, ", \t") && isToken(r.RequestedMethod)
}

// isToken reports whether text is a token as RFC 9110 defines it, such as a method.
func isToken(text string) bool {
	const marks = "!#$%&'*+-.^_`|~"
	for i := range len(text) {
		c := text[i]
		letter := 'a' <= c|0x20 && c|0x20 <= 'z'
		if !letter && (c < '0' || c > '9') && strings.IndexByte(marks, c) < 0 {
			return false
		}
	}
	return text != ""
}
