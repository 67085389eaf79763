package admit

import (
	"context"
	"strconv"
	"strings"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/identity"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

// Known holds the facts of a request that a program states itself instead of reading them from a gateway: a program
// that authenticated its caller (package limiter), or a caller of the decision API. It implements [FactSource] for a
// [Path] whose policies were compiled from [ForKnown] of a config; other rules find nothing in it. The zero value is an
// anonymous request without an address or an endpoint.
type Known struct {
	Tenant, User, Tier string // "": it has none
	Credential, IP     string
	Method, Path       string // as a client may write them; see [Target] for both in one
	Route              string // the name of the endpoint where no pattern of a policy covers the path
	Cost               int64  // tokens; below 1: the cost of the policies
	ContentType        string
}

// The headers that carry the fields of a Known. No client can send them: only Known sets them.
const (
	knownTenant = "Known-Tenant"
	knownUser   = "Known-User"
	knownTier   = "Known-Tier"
	knownCost   = "Known-Cost"
)

// MaxCost bounds the cost of a request, in tokens. Programs that state a cost are trusted.
const MaxCost = 1_000_000_000

// ForKnown returns config, which must have no faults, for requests stated as [Known]: tenant, user, tier and cost come
// from the Known instead of the gateway. The rules for missing names, all limits and all buckets stay the same.
func ForKnown(config schema.Config) schema.Config {
	config.TenantFrom = []string{"header." + knownTenant}
	config.UserFrom = []string{"header." + knownUser}
	config.TierFrom = []string{"header." + knownTier}
	config.CostHeader, config.CostHeaderMax = knownCost, MaxCost
	config.TrustedHeaders = []string{knownTenant, knownUser, knownTier, knownCost}
	config.ObserveEndpoint = true // it costs nothing here
	return config
}

// Target splits an endpoint into method and path ("GET /records/{id}"; a pattern stands for the requests that it
// covers), or returns it as the name of a route.
func Target(endpoint string) (method, path, route string) {
	if method, path, both := strings.Cut(endpoint, " "); both && strings.HasPrefix(path, "/") {
		return method, path, ""
	}
	return "", "", endpoint
}

// Read implements [FactSource]. It never fails, and allocates nothing for a path that is normal already.
func (k *Known) Read(_ context.Context, facts identity.Facts, rules *identity.Rules, req *identity.Request) error {
	req.Known |= facts
	if facts&identity.CredentialFact != 0 {
		req.CredentialID = k.Credential
	}
	if facts&identity.IPFact != 0 {
		req.IP = k.IP
	}
	if facts&identity.TargetFact != 0 {
		req.Method, req.Path = strings.ToUpper(k.Method), identity.NormalizePath(k.Path)
		req.HTTP2 = true // so that ContentType decides whether it is a gRPC call
	}
	if facts&identity.RouteFact != 0 {
		req.Route, req.GRPCRoute = k.Route, true
	}
	if facts&identity.HeaderFacts != 0 {
		req.Headers = req.Headers[:0]
		for _, name := range rules.Headers {
			req.Headers = append(req.Headers, k.header(name))
		}
	}
	if facts&identity.ContentTypeFact != 0 {
		req.ContentType = k.ContentType
	}
	return nil
}

func (k *Known) header(name string) string {
	switch name {
	case knownTenant:
		return k.Tenant
	case knownUser:
		return k.User
	case knownTier:
		return k.Tier
	case knownCost:
		if k.Cost > 0 {
			return strconv.FormatInt(k.Cost, 10)
		}
	}
	return ""
}
