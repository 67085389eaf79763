package resolve

import (
	"slices"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/identity"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

// ownNeeds returns what the config's own policies and exemptions need.
func (p *Plan) ownNeeds(config *schema.Config) policy.Needs {
	n := policy.Needs{
		Tenant: config.OnMissingTenant == schema.MissingTenantDeny || len(p.anonymous) > 0,
		Tier:   len(p.tiers) > 1,
	}
	if p.patterns.Len() > 0 {
		n.Facts |= identity.TargetFact
	}
	for _, own := range p.Policies() {
		n.Tenant = n.Tenant || own.Tier != ""
		facts := n.Facts
		n.AddPolicy(own)
		if own.Scope == policy.IP && slices.Contains(p.anonymous, own) {
			n.Facts = facts // the address is read once a request proves to be anonymous
		}
	}
	if p.exempt != nil {
		p.exempt.needs(&n)
	}
	if config.ExemptPreflights {
		n.Facts |= identity.TargetFact
	}
	return n
}

var missingModes = map[string]identity.Missing{
	schema.MissingTenantLimitByIP: identity.ByIP,
	schema.MissingTenantDeny:      identity.Deny,
	schema.MissingTenantSkip:      identity.Skip,
	schema.MissingUserCredential:  identity.ByCredential,
	schema.MissingUserIP:          identity.ByIP,
}

// identityRules compiles how requests are identified, reading only what n names. The config's sources have been parsed
// before without a fault.
func (p *Plan) identityRules(n policy.Needs) identity.Rules {
	config := p.config
	if config.UsageOnly {
		n = n.ForUsage()
	}
	r := identity.Rules{
		Anonymous:       config.AnonymousConsumers,
		OnMissingTenant: missingModes[config.OnMissingTenant],
		OnMissingUser:   missingModes[config.OnMissingUser],
		IPv6Prefix:      int(config.IPv6PrefixLength),
		CostHeader:      -1,
		CostHeaderMax:   config.CostHeaderMax,
		DecodePath:      config.DecodePath,
		AnonymousLimits: len(config.Anonymous.Limits) > 0,
		NeedTenant:      n.Tenant,
		NeedUser:        n.User,
		NeedCredential:  n.Credential,
		SeekTenant:      n.SeekTenant,
		SeekUser:        n.SeekUser,
		NeedAddress:     n.Address,
		NeedTags:        n.Tags,
		NeedPreflight:   config.ExemptPreflights && !config.UsageOnly,
	}
	if p.forCallers {
		readFromCaller(&r, n)
	} else {
		readFromGateway(&r, config, n)
	}
	if config.ObserveEndpoint && !config.UsageOnly || p.forCallers { // a caller's costs nothing
		n.Facts |= identity.RouteFact // for metrics and records, not for limits
	}
	r.Compile(n.Facts)
	return r
}

// readFromCaller sets that names and the cost are what the caller states.
func readFromCaller(r *identity.Rules, n policy.Needs) {
	if n.Tenant || n.SeekTenant {
		r.Tenant = []identity.Source{identity.CallerTenant}
	}
	if n.Tenant && n.Tier {
		r.Tier = []identity.Source{identity.CallerTier}
	}
	if n.User || n.SeekUser {
		r.User = []identity.Source{identity.CallerUser}
	}
	r.CallerCost = n.Cost
}

// readFromGateway sets that names and the cost are read where the config says.
func readFromGateway(r *identity.Rules, config *schema.Config, n policy.Needs) {
	if n.Tenant || n.SeekTenant {
		r.Tenant = parsedSources(config.TenantFrom, &r.Headers)
	}
	if n.Tenant && n.Tier {
		r.Tier = parsedSources(config.TierFrom, &r.Headers)
	}
	if n.User || n.SeekUser {
		r.User = parsedSources(config.UserFrom, &r.Headers)
	}
	if config.CostHeader != "" && n.Cost {
		r.CostHeader = identity.Header(config.CostHeader, &r.Headers)
	}
	for _, header := range n.Reserves {
		if header != "" {
			r.ReserveHeaders = append(r.ReserveHeaders, identity.Header(header, &r.Headers))
		}
	}
}

// parsedSources returns the sources of texts, or none if one does not parse. FromConfig has reported such a text.
func parsedSources(texts []string, headers *[]string) []identity.Source {
	parsed, err := identity.ParseSources(texts, headers)
	if err != nil {
		return nil
	}
	return parsed
}
