package policy

import (
	"slices"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/identity"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

// Needs are what must be known of every request before its policies can be told. A config has its own, the rows of a
// database add theirs, and identity's Rules are compiled from both: outside of the request path, whenever one changes.
type Needs struct {
	Tenant     bool
	Tier       bool // there is more than one
	User       bool
	Credential bool // some limit is counted per credential: where there is none, the address stands in
	Cost       bool // there is a limit that could be charged
	Facts      identity.Facts
}

// and are the needs of both.
func (n Needs) and(other Needs) Needs {
	return Needs{
		Tenant:     n.Tenant || other.Tenant,
		Tier:       n.Tier || other.Tier,
		User:       n.User || other.User,
		Credential: n.Credential || other.Credential,
		Cost:       n.Cost || other.Cost,
		Facts:      n.Facts | other.Facts,
	}
}

// of adds what one policy needs beside a tenant.
func (n *Needs) of(p *Policy) {
	n.Cost = true
	n.User = n.User || p.Scope.ByUser()
	switch {
	case p.Scope == Credential:
		n.Credential = true
		n.Facts |= identity.CredentialFact
	case p.Scope == IP:
		n.Facts |= identity.IPFact
	case p.ByRoute():
		n.Facts |= identity.RouteFact
	}
}

// tally is how many rows need what: rows go, too, and what nothing needs any longer is not asked any longer.
type tally struct{ rows, users, credentials, addresses, routes int }

// count adds n times what a policy needs.
func (t *tally) count(p *Policy, n int) {
	var needs Needs
	needs.of(p)
	t.rows += n
	if needs.User {
		t.users += n
	}
	if needs.Credential {
		t.credentials += n
	}
	if needs.Facts&identity.IPFact != 0 {
		t.addresses += n
	}
	if needs.Facts&identity.RouteFact != 0 {
		t.routes += n
	}
}

// Needs are what the rows need under the configs of a namespace. Overrides hold in every namespace.
func (b *Snapshot) Needs(namespace string) Needs {
	uses, on := b.spaces[namespace].uses, &b.targets
	n := Needs{
		Tenant:     b.tenants+uses.rows+b.overrides.rows > 0,
		User:       uses.users+on[onUser]+on[onUserEndpoint] > 0,
		Credential: uses.credentials > 0,
		Cost:       uses.rows > 0,
	}
	if uses.credentials+on[onCredential] > 0 {
		n.Facts |= identity.CredentialFact
	}
	if uses.addresses+on[onIP] > 0 {
		n.Facts |= identity.IPFact
	}
	if uses.routes > 0 {
		n.Facts |= identity.RouteFact
	}
	if len(b.endpoints.patterns.list) > 0 {
		n.Facts |= identity.TargetFact
	}
	return n
}

// ownNeeds are what the config's own policies need.
func (s *Plan) ownNeeds(config *schema.Config) Needs {
	n := Needs{
		Tenant: config.OnMissingTenant == schema.MissingTenantDeny || len(s.anonymous) > 0,
		Tier:   len(s.tiers) > 1,
	}
	if len(s.patterns.list) > 0 {
		n.Facts |= identity.TargetFact
	}
	for _, p := range s.Policies() {
		n.Tenant = n.Tenant || p.Tier != ""
		if p.Scope == IP && slices.Contains(s.anonymous, p) {
			n.Cost = true // strangers are asked for their address when they turn out to be strangers
			continue
		}
		n.of(p)
	}
	return n
}

var missing = map[string]identity.Missing{
	schema.MissingTenantLimitByIP: identity.ByIP,
	schema.MissingTenantDeny:      identity.Deny,
	schema.MissingTenantSkip:      identity.Skip,
	schema.MissingUserCredential:  identity.ByCredential,
	schema.MissingUserIP:          identity.ByIP,
}

// rules compiles how the requests of a config are identified, asking only for what n names. The config's sources were
// parsed before without a fault.
func rules(config *schema.Config, n Needs) identity.Rules {
	r := identity.Rules{
		Anonymous:       config.AnonymousConsumers,
		OnMissingTenant: missing[config.OnMissingTenant],
		OnMissingUser:   missing[config.OnMissingUser],
		IPv6Prefix:      int(config.IPv6PrefixLength),
		CostHeader:      -1,
		CostHeaderMax:   config.CostHeaderMax,
		DecodePath:      config.DecodePath,
		AnonymousLimits: len(config.Anonymous.Limits) > 0,
		NeedTenant:      n.Tenant,
		NeedUser:        n.User,
		NeedCredential:  n.Credential,
	}
	if n.Tenant {
		r.Tenant = sources(config.TenantFrom, &r.Headers)
		if n.Tier {
			r.Tier = sources(config.TierFrom, &r.Headers)
		}
	}
	if n.User {
		r.User = sources(config.UserFrom, &r.Headers)
	}
	if config.CostHeader != "" && n.Cost {
		r.CostHeader = identity.Header(config.CostHeader, &r.Headers)
	}
	if config.ObserveEndpoint {
		n.Facts |= identity.RouteFact // no limit needs it: metrics and records do
	}
	r.Compile(n.Facts)
	return r
}

// sources are texts that were parsed before: those that could not be parsed are left out.
func sources(texts []string, headers *[]string) []identity.Source {
	parsed, err := identity.ParseSources(texts, headers)
	if err != nil {
		return nil
	}
	return parsed
}
