package policy

import (
	"maps"
	"slices"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/identity"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

// Needs lists what must be read of every request to find its policies. A config has needs, and the rows of a database
// add theirs. Package identity's Rules are compiled from both whenever one changes, outside of the request path.
type Needs struct {
	Tenant     bool
	Tier       bool // there is more than one
	User       bool
	Credential bool // some limit is counted per credential: without a credential, per address
	Cost       bool // there is a limit that could be charged
	SeekTenant bool // an exemption names a tenant
	SeekUser   bool // an exemption or a row names a user
	Address    bool // an exemption names a network, or an override one of IPv6
	Tags       bool // an exemption names a tag
	Facts      identity.Facts

	// Reserves are the request headers that carry reservations, as HTTP spells them; "" after the last.
	Reserves [identity.MaxReserveHeaders]string
}

// union returns the needs of both, with the headers of n.
func (n Needs) union(other Needs) Needs {
	return Needs{
		Reserves:   n.Reserves,
		Tenant:     n.Tenant || other.Tenant,
		Tier:       n.Tier || other.Tier,
		User:       n.User || other.User,
		Credential: n.Credential || other.Credential,
		Cost:       n.Cost || other.Cost,
		SeekTenant: n.SeekTenant || other.SeekTenant,
		SeekUser:   n.SeekUser || other.SeekUser,
		Address:    n.Address || other.Address,
		Tags:       n.Tags || other.Tags,
		Facts:      n.Facts | other.Facts,
	}
}

// forUsage returns the needs of requests that read what their tenant has used: who they are from, whatever limits there
// are, and their target, but nothing about what a request costs.
func (n Needs) forUsage() Needs {
	n.Tenant, n.Cost, n.Reserves = true, false, [identity.MaxReserveHeaders]string{}
	n.Facts = n.Facts&^identity.RouteFact | identity.TargetFact
	return n
}

// addPolicy adds what one policy needs. A policy of a tier needs a tenant too.
func (n *Needs) addPolicy(p *Policy) {
	n.Cost = true
	n.Tenant = n.Tenant || p.Fair != nil
	if p.Settle != nil && p.Settle.ReserveHeader() != "" {
		n.addReserve(p.Settle.ReserveHeader())
	}
	n.User = n.User || p.Scope.byUser()
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

// needCounts counts the rows by what they need: a need ends with the last row that has it.
type needCounts struct {
	rows, tenants, users, credentials, addresses, routes int

	soughtUsers, soughtCredentials int // of rows for one user or one credential

	reserves map[string]int // by the header that carries reservations; it is never changed, but replaced
}

// addRow adds n for each thing that a row needs.
func (t *needCounts) addRow(r *row, n int) {
	var needs Needs
	needs.addPolicy(&r.Policy)
	t.rows += n
	if needs.Tenant || r.match != forAll && r.match != forNetwork {
		t.tenants += n
	}
	switch {
	case r.match == forUser:
		t.soughtUsers += n
	case needs.User:
		t.users += n
	}
	switch {
	case r.match == forCredential:
		t.soughtCredentials += n
	case needs.Credential:
		t.credentials += n
	}
	// The address of an anonymous request is read once it proves to be anonymous.
	if r.match == forNetwork || needs.Facts&identity.IPFact != 0 && r.match != forAnonymous {
		t.addresses += n
	}
	if needs.Facts&identity.RouteFact != 0 {
		t.routes += n
	}
	if header := needs.Reserves[0]; header != "" {
		t.addReserve(header, n)
	}
}

// addReserve adds n for a header that carries reservations.
func (t *needCounts) addReserve(header string, n int) {
	reserves := map[string]int{}
	maps.Copy(reserves, t.reserves)
	if reserves[header] += n; reserves[header] == 0 {
		delete(reserves, header)
	}
	t.reserves = reserves
}

// Needs returns what the rows need under the configs of a namespace. Overrides apply in every namespace.
func (s *Snapshot) Needs(namespace string) Needs {
	uses, on := s.namespaces[namespace].needs, &s.targets
	n := Needs{
		Tenant:     s.tenantCount+uses.tenants+s.overrides.rows > 0,
		SeekUser:   uses.soughtUsers > 0,
		User:       uses.users+on[onUser]+on[onUserEndpoint] > 0,
		Credential: uses.credentials > 0,
		Cost:       uses.rows > 0,
	}
	if uses.credentials+uses.soughtCredentials+on[onCredential] > 0 {
		n.Facts |= identity.CredentialFact
	}
	if uses.addresses+on[onIP] > 0 {
		n.Facts |= identity.IPFact
	}
	n.Address = slices.ContainsFunc(s.networkSizes, func(size networkSize) bool { return !size.is4 })
	if on[onTag] > 0 {
		n.Tags = true
		n.Facts |= identity.ConsumerFact
	}
	if uses.routes > 0 {
		n.Facts |= identity.RouteFact
	}
	if len(s.endpoints.patterns.list) > 0 {
		n.Facts |= identity.TargetFact
	}
	return n
}

// ownNeeds returns what the config's own policies and exemptions need.
func (p *Plan) ownNeeds(config *schema.Config) Needs {
	n := Needs{
		Tenant: config.OnMissingTenant == schema.MissingTenantDeny || len(p.anonymous) > 0,
		Tier:   len(p.tiers) > 1,
	}
	if len(p.patterns.list) > 0 {
		n.Facts |= identity.TargetFact
	}
	for _, policy := range p.Policies() {
		n.Tenant = n.Tenant || policy.Tier != ""
		facts := n.Facts
		n.addPolicy(policy)
		if policy.Scope == IP && slices.Contains(p.anonymous, policy) {
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
func (p *Plan) identityRules(n Needs) identity.Rules {
	config := p.config
	if config.UsageOnly {
		n = n.forUsage()
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
func readFromCaller(r *identity.Rules, n Needs) {
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
func readFromGateway(r *identity.Rules, config *schema.Config, n Needs) {
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
