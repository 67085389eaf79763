package identity

import "strings"

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
