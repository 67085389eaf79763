package limiter

import (
	"cmp"
	"fmt"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/admit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/identity"
)

// MaxCost bounds the cost of one request, in tokens.
const MaxCost = identity.MaxCallerCost

// Request has the facts of one request. All fields may be empty; the zero value is an anonymous request. Names may be
// any bytes: no name can address the bucket of another.
type Request struct {
	// Org is the tenant. Without one, on_missing_tenant of the config decides.
	Org string
	// User is a user of Org. Without one, on_missing_user decides about limits per user.
	User string
	// Tier is the tier of Org, unless policies of a database have one. An unknown tier is the default tier.
	Tier string
	// Credential is the id of the caller's credential, not the secret.
	Credential string
	// IP is the client's address. All clients without an address count as one.
	IP string

	// Endpoint is METHOD /path, such as "POST /records/7", or the name of a route. A pattern, such as
	// "POST /records/{id}", stands for the requests that it covers. A path alone has the method Method.
	Endpoint string
	// Method and Path are used if Endpoint is empty or the name of a route. Without a method, patterns of any method
	// match. Limits match the path as Kong's router does:
	// without query, decoded, without dots and double slashes.
	Method, Path string

	// Cost is how many tokens the request spends of every limit that has no cost of its own, at most MaxCost. 0: the cost
	// in the config, which is 1 unless costs names the endpoint.
	Cost int64
}

// validate returns the fault of an invalid request.
func (r *Request) validate() error {
	if r.Cost < 0 || r.Cost > MaxCost {
		return fmt.Errorf("cost %d: must be from 0 to %d tokens", r.Cost, int64(MaxCost))
	}
	return nil
}

// setFacts sets facts to those of the request.
func (r *Request) setFacts(facts *admit.CallerRequest) {
	method, path, route := admit.Target(r.Endpoint)
	method = cmp.Or(method, r.Method)
	if path == "" {
		path = r.Path
	}
	*facts = admit.CallerRequest{
		Caller:     identity.Caller{Tenant: r.Org, User: r.User, Tier: r.Tier, Cost: r.Cost},
		Credential: r.Credential, IP: r.IP,
		Method: method, Path: path, Route: route,
	}
}
