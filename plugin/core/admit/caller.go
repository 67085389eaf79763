package admit

import (
	"context"
	"strings"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/identity"
)

// CallerRequest holds the facts of a request that does not come through Kong, as its caller states them: a program that
// uses package limiter, or that calls the decision API. It implements [FactSource] for a [Decider] whose policies
// [resolve.ForCallers] has compiled; other rules find no names in it. The zero value is an anonymous request without an
// address or an endpoint.
type CallerRequest struct {
	identity.Caller
	Credential, IP string
	Method, Path   string // as a client may write them; see [Target] for both in one
	Route          string // the name of the endpoint where no pattern of a policy covers the path
	ContentType    string
	Repeated       string // a header that must name one of these, and has several values; "": none
}

// WarmingUp is what callers read before there are policies to decide by: a row may ban them.
const WarmingUp = "warming up: the policies of the database are not loaded yet"

// Target splits an endpoint into method and path ("GET /records/{id}"; a pattern stands for the requests that it
// covers), or returns it as the name of a route. A path alone ("/records") has no method: patterns of any method match
// it.
func Target(endpoint string) (method, path, route string) {
	if strings.HasPrefix(endpoint, "/") {
		return "", endpoint, ""
	}
	if method, path, both := strings.Cut(endpoint, " "); both && strings.HasPrefix(path, "/") {
		return method, path, ""
	}
	return "", "", endpoint
}

// Read implements [FactSource]. It never fails, and allocates nothing for a path that is normal already.
func (r *CallerRequest) Read(_ context.Context, facts identity.Facts, _ *identity.Rules, req *identity.Request) error {
	req.Known |= facts
	if facts&identity.CallerFacts != 0 {
		req.Caller, req.Repeated = r.Caller, r.Repeated
	}
	if facts&identity.CredentialFact != 0 {
		req.CredentialID = r.Credential
	}
	if facts&identity.IPFact != 0 {
		req.IP = r.IP
	}
	if facts&identity.TargetFact != 0 {
		req.Method, req.Path = strings.ToUpper(r.Method), identity.NormalizePath(r.Path)
		req.HTTP2 = true // so that ContentType decides whether it is a gRPC call
	}
	if facts&identity.RouteFact != 0 {
		req.Route, req.GRPCRoute = r.Route, true
	}
	if facts&identity.ContentTypeFact != 0 {
		req.ContentType = r.ContentType
	}
	return nil
}
