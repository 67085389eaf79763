package identity

import (
	"path"
	"strconv"
	"strings"
)

// NormalizePath returns the path that the gateway's router matches for a request target: without query, percent-decoded
// except for reserved characters (whose escapes are written in upper case), slashes merged, dot segments removed.
// Endpoint limits must see what the router sees, or /%72ecords and //records would evade them. It does not allocate
// for a path that is normal already. The result is "" only for an empty target.
func NormalizePath(target string) string {
	target, _, _ = strings.Cut(target, "?")
	target = withoutAuthority(target)
	if isNormal(target) {
		return target
	}
	return removeDots(unescape(target, reserved))
}

// DecodePath returns a path that [NormalizePath] has made with the reserved characters decoded too, as an upstream sees
// it that decodes before it splits: /records%2F7 becomes /records/7. Slashes and dot segments that appear are resolved.
// Each escape is decoded once: of %252F, %2F is left. It does not allocate for a path without escapes.
func DecodePath(normal string) string {
	if strings.IndexByte(normal, '%') < 0 {
		return normal
	}
	return removeDots(unescape(normal, ""))
}

// withoutAuthority cuts scheme and authority from a target in absolute form (http://host/path).
func withoutAuthority(target string) string {
	if target == "" || target[0] == '/' {
		return target
	}
	scheme, after, found := strings.Cut(target, "://")
	if !found || strings.Contains(scheme, "/") {
		return target
	}
	if i := strings.IndexByte(after, '/'); i >= 0 {
		return after[i:]
	}
	return "/"
}

// isNormal reports whether a path is normalized already: no escapes, no empty and no dot segments.
func isNormal(path string) bool {
	return path == "" || path[0] == '/' && !strings.Contains(path, "%") && !strings.Contains(path, "//") &&
		!strings.Contains(path, "/.")
}

const reserved = "!*'();:@&=+$,/?%#[]"

// unescape replaces each %XX by its byte, except for the characters in keep, whose escapes get capital letters.
func unescape(path, keep string) string {
	var b strings.Builder
	for {
		plain, escape, found := strings.Cut(path, "%")
		b.WriteString(plain)
		if !found {
			return b.String()
		}
		path = escape
		switch c, err := strconv.ParseUint(escape[:min(2, len(escape))], 16, 8); {
		case err != nil || len(escape) < 2:
			b.WriteByte('%')
		case strings.IndexByte(keep, byte(c)) < 0:
			b.WriteByte(byte(c))
			path = escape[2:]
		default:
			b.WriteString("%" + strings.ToUpper(escape[:2]))
			path = escape[2:]
		}
	}
}

// removeDots merges slashes and resolves . and .. segments. A trailing slash (or a final dot segment) leaves one.
func removeDots(target string) string {
	clean := path.Clean("/" + target)
	switch last := target[strings.LastIndexByte(target, '/')+1:]; {
	case clean == "/", last != "" && last != "." && last != "..":
		return clean
	default:
		return clean + "/"
	}
}

// Caller names whom a request is from, as the program states that calls the limiter: one that uses the Go library, or
// that calls the decision API. It has authenticated its client, so what it states is trusted. A gateway sets none of
// it.
type Caller struct {
	Tenant, User, Tier string // "": it states none
	Cost               int64  // tokens; below 1: it states none
	Model, Provider    string // of a language model; "": it states none
}

// MaxCallerCost bounds the cost that a caller states, in tokens. A higher one counts as this.
const MaxCallerCost = 1_000_000_000

// The sources that read what the caller states. No config can name them.
var (
	CallerTenant   = Source{kind: fromCallerTenant}
	CallerModel    = Source{kind: fromCallerModel}
	CallerProvider = Source{kind: fromCallerProvider}
	CallerUser     = Source{kind: fromCallerUser}
	CallerTier     = Source{kind: fromCallerTier}
)

// GRPC reports whether the request is a gRPC call: a POST over HTTP/2 to a route with a gRPC protocol, with gRPC's
// content type. missing holds the next facts that must be known for that; 0: call is the answer. The route comes first,
// because it is usually known, and most routes have no gRPC protocol. The others come together: Kong itself denies
// other requests on a gRPC route, so that almost all need both.
func (r *Request) GRPC() (call bool, missing Facts) {
	switch {
	case r.Known&TargetFact != 0 && (!r.HTTP2 || r.Method != "POST"):
		return false, 0
	case r.Known&RouteFact == 0:
		return false, RouteFact
	case !r.GRPCRoute:
		return false, 0
	}
	missing = (TargetFact | ContentTypeFact) &^ r.Known
	return missing == 0 && isGRPCType(r.ContentType), missing
}

// isGRPCType reports whether a content type is gRPC's own: application/grpc with any encoding of messages. Those of
// gRPC-Web are not, because its clients read the status from a body.
func isGRPCType(contentType string) bool {
	suffix, ok := strings.CutPrefix(contentType, "application/grpc")
	return ok && (suffix == "" || suffix[0] == '+' || suffix[0] == ';')
}

// isPreflight reports whether an OPTIONS request is a CORS preflight: it has one Origin, and one method that it asks
// about in Access-Control-Request-Method. Any client can send both headers.
func (r *Request) isPreflight() bool {
	return r.Origin != "" && !strings.ContainsAny(r.Origin, ", \t") && isToken(r.RequestedMethod)
}

// isToken reports whether text is a token as RFC 9110 defines it, such as a method.
func isToken(text string) bool {
	const characters = "!#$%&'*+-.^_`|~0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
	return text != "" && strings.Trim(text, characters) == ""
}
