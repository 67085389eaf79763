package admit

import (
	"context"
	"strconv"
	"strings"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/identity"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

// Known are the facts of a request that is told, not read off a gateway's wire: by a program that has authenticated its
// caller itself (package limiter), or by the caller of the decision API. It implements [FactSource] for a [Path] whose
// policies were compiled from [ForKnown] of a config; no other rules find anything in it. The zero value is a request of
// a stranger, from nowhere, for nothing.
type Known struct {
	Tenant, User, Tier string // "": it has none
	Credential, IP     string
	Method, Path       string // as a client may write them; see [Target] for both in one
	Route              string // the name of the endpoint where no pattern of a policy covers the path
	Cost               int64  // tokens; below 1: as the policies say
	ContentType        string
}

// The headers that stand for what a Known says. No client sends them: nothing but Known answers for them.
const (
	knownTenant = "Known-Tenant"
	knownUser   = "Known-User"
	knownTier   = "Known-Tier"
	knownCost   = "Known-Cost"
)

// MaxCost is the most that a request may cost, in tokens: whoever tells a cost is trusted.
const MaxCost = 1_000_000_000

// ForKnown is a config, which has no faults, for requests that are told as [Known]. Where the config has a gateway find
// tenant, user, tier and cost, they are what was told; what happens where one is missing, and all limits and buckets,
// stay as they are.
func ForKnown(config schema.Config) schema.Config {
	config.TenantFrom = []string{"header." + knownTenant}
	config.UserFrom = []string{"header." + knownUser}
	config.TierFrom = []string{"header." + knownTier}
	config.CostHeader, config.CostHeaderMax = knownCost, MaxCost
	config.TrustedHeaders = []string{knownTenant, knownUser, knownTier, knownCost}
	config.ObserveEndpoint = true // it costs nothing here
	return config
}

// Target is what an endpoint names: METHOD /path, of which a pattern such as "GET /records/{id}" stands for the
// requests that it covers, or the name of a route.
func Target(endpoint string) (method, path, route string) {
	if method, path, both := strings.Cut(endpoint, " "); both && strings.HasPrefix(path, "/") {
		return method, path, ""
	}
	return "", "", endpoint
}

// Ask implements [FactSource]. It never fails, and allocates nothing for a path that is normal already.
func (k *Known) Ask(_ context.Context, facts identity.Facts, rules *identity.Rules, req *identity.Request) error {
	req.Known |= facts
	if facts&identity.CredentialFact != 0 {
		req.CredentialID = k.Credential
	}
	if facts&identity.IPFact != 0 {
		req.IP = k.IP
	}
	if facts&identity.TargetFact != 0 {
		req.Method, req.Path = strings.ToUpper(k.Method), identity.NormalizePath(k.Path)
		req.HTTP2 = true // nothing says otherwise: ContentType decides whether it is a gRPC call
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
