package limiter

import (
	"fmt"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/admit"
)

// MaxCost is the most that one request may cost, in tokens.
const MaxCost = admit.MaxCost

// Request is what is known of one request. All fields may be empty; the zero value is a request of a stranger. Names are
// opaque: any bytes will do, and no name can be chosen to meet another's bucket.
type Request struct {
	// Org is the tenant. Without one, on_missing_tenant of the config decides.
	Org string
	// User is a user of Org. Without one, on_missing_user decides about limits per user.
	User string
	// Tier is the plan of Org, unless policies from a database say it; one that is not known is the default tier.
	Tier string
	// Credential is the id of what the caller has authenticated with, and not the secret.
	Credential string
	// IP is the client's address. All clients without one count as one.
	IP string

	// Endpoint is what is called: METHOD /path, such as "POST /records/7", or else the name of a route. A pattern, such as
	// "POST /records/{id}", stands for the requests that it covers.
	Endpoint string
	// Method and Path are what is called where Endpoint is empty, or the name of a route. Limits see the path as Kong's
	// router does: without query, decoded, dots and double slashes removed.
	Method, Path string

	// Cost is how many tokens the request takes from every limit that has no cost of its own, at most MaxCost; 0: as many
	// as the config says, which is 1 unless costs names the endpoint.
	Cost int64
}

// fault tells what is nonsense about a request.
func (r *Request) fault() error {
	if r.Cost < 0 || r.Cost > MaxCost {
		return fmt.Errorf("cost %d: must be from 0 to %d tokens", r.Cost, int64(MaxCost))
	}
	return nil
}

// tell puts the request into k.
func (r *Request) tell(k *admit.Known) {
	method, path, route := admit.Target(r.Endpoint)
	if path == "" {
		method, path = r.Method, r.Path
	}
	*k = admit.Known{
		Tenant: r.Org, User: r.User, Tier: r.Tier, Credential: r.Credential, IP: r.IP,
		Method: method, Path: path, Route: route, Cost: r.Cost,
	}
}
