package policy

import (
	"maps"
	"slices"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/identity"
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

// Union returns the needs of both, with the headers of n.
func (n Needs) Union(other Needs) Needs {
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

// AddPolicy adds what one policy needs. A policy of a tier needs a tenant too.
func (n *Needs) AddPolicy(p *Policy) {
	n.Cost = true
	n.Tenant = n.Tenant || p.Fair != nil
	if p.Settle != nil && p.Settle.ReserveHeader() != "" {
		n.AddReserve(p.Settle.ReserveHeader())
	}
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

// needCounts counts the rows by what they need: a need ends with the last row that has it.
type needCounts struct {
	rows, tenants, users, credentials, addresses, routes int

	soughtUsers, soughtCredentials int // of rows for one user or one credential

	reserves map[string]int // by the header that carries reservations; it is never changed, but replaced
}

// addRow adds n for each thing that a row needs.
func (t *needCounts) addRow(r *CompiledPolicy, n int) {
	var needs Needs
	needs.AddPolicy(&r.Policy)
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

// AddReserve adds a header that carries reservations, if there is room.
func (n *Needs) AddReserve(header string) {
	for i := range n.Reserves {
		if n.Reserves[i] == "" {
			n.Reserves[i] = header
		}
		if n.Reserves[i] == header {
			return
		}
	}
}

// ReserveHeaders returns the headers that carry the reservations of the rows, sorted.
func (n *NamespaceRows) ReserveHeaders() []string { return slices.Sorted(maps.Keys(n.needs.reserves)) }

// ForUsage returns the needs of requests that read what their tenant has used: who they are from, whatever limits there
// are, and their target, but nothing about what a request costs.
func (n Needs) ForUsage() Needs {
	n.Tenant, n.Cost, n.Reserves = true, false, [identity.MaxReserveHeaders]string{}
	n.Facts = n.Facts&^identity.RouteFact | identity.TargetFact
	return n
}
