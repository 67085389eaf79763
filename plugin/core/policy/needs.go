package policy

import (
	"cmp"
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
	Model      bool // a limit depends on the model of a request
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
		Model:      n.Model || other.Model,
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
	n.Model = n.Model || p.Settle != nil && p.Settle.NeedsCalls()
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

func (r *CompiledPolicy) needs() (n Needs) {
	n.AddPolicy(&r.Policy)
	n.Tenant = n.Tenant || r.match != forAll && r.match != forNetwork
	switch r.match {
	case forUser:
		n.SeekUser, n.User = true, false
	case forCredential:
		n.Credential, n.Facts = false, n.Facts|identity.CredentialFact
	case forNetwork:
		n.Facts |= identity.IPFact
	case forAnonymous:
		n.Facts &^= identity.IPFact // the address is read once a request proves to be anonymous
	}
	return n
}

// class holds all of a row that a summary depends on.
type class struct {
	needs     Needs
	namespace string
	match     match
	target    target
	size      networkSize
	id        int64 // 0: the summary does not hold the row itself
}

// networkSize is a size of networks. An address is looked up once for each size.
type networkSize struct {
	bits int
	is4  bool
}

func sizeOf(network string) networkSize {
	prefix, _ := ParseNetwork(network) // the row has been compiled
	return networkSize{prefix.Bits(), prefix.Addr().Is4()}
}

func (r *CompiledPolicy) class() class {
	c := class{needs: r.needs(), namespace: r.Namespace, match: r.match}
	switch r.match {
	case forNetwork:
		c.size = sizeOf(r.subject)
	case byTier, forAnonymous, forAll:
		c.id = r.Row
	}
	return c
}

func (o *CompiledOverride) class() class {
	c := class{target: o.target}
	if o.target == onIP {
		c.size = sizeOf(o.targetName)
	}
	return c
}

func (r *CostRow) class() class { return class{id: r.ID} }

func (r *PriceRow) class() class { return class{id: r.ID} }

// summary is what a snapshot holds of all rows together. Each build makes it anew, so no change can leave a need
// behind.
type summary struct {
	namespaces map[string]*NamespaceRows

	matches       [matches]bool // what policies apply to
	policySizes   []networkSize // of the networks that policies name, each once, the narrowest first
	targets       [targets]bool // what overrides apply to
	overrideSizes []networkSize // of the networks that overrides name, in the same way
}

// NamespaceRows holds the rows of one namespace for tiers, anonymous requests, all requests, the costs of endpoints and
// the prices of models.
type NamespaceRows struct {
	Tiers          map[string][]*CompiledPolicy // by tier, then by name
	Anonymous, All []*CompiledPolicy            // by name
	Costs          map[string]*CostRow          // by endpoint
	Prices         []*PriceRow                  // by the pattern of their model, the earlier start first
	needs          Needs                        // of all policies of the namespace
	reserves       map[string]bool              // the headers that carry their reservations
}

func (s *Snapshot) summarize() {
	s.summary = summary{namespaces: map[string]*NamespaceRows{}}
	for r := range s.policies.classes {
		c := r.class()
		s.namespace(r.Namespace).addPolicy(r, c.needs)
		if s.matches[r.match] = true; r.match == forNetwork {
			s.policySizes = addSize(s.policySizes, c.size)
		}
	}
	for o := range s.overrides.classes {
		if s.targets[o.target] = true; o.target == onIP {
			s.overrideSizes = addSize(s.overrideSizes, o.class().size)
		}
	}
	for r := range s.costs.classes {
		s.namespace(r.Namespace).Costs[r.Endpoint] = r
	}
	for r := range s.prices.classes {
		n := s.namespace(r.Namespace)
		n.Prices = append(n.Prices, r)
	}
	for _, n := range s.namespaces {
		slices.SortFunc(n.Anonymous, compareRows)
		slices.SortFunc(n.All, compareRows)
		slices.SortFunc(n.Prices, func(a, b *PriceRow) int {
			return cmp.Or(cmp.Compare(a.Model, b.Model), a.StartsAt.Compare(b.StartsAt))
		})
		for _, list := range n.Tiers {
			slices.SortFunc(list, compareRows)
		}
	}
}

func (s *summary) namespace(name string) *NamespaceRows {
	n := s.namespaces[name]
	if n == nil {
		n = &NamespaceRows{
			Tiers: map[string][]*CompiledPolicy{}, Costs: map[string]*CostRow{}, reserves: map[string]bool{},
		}
		s.namespaces[name] = n
	}
	return n
}

// addPolicy adds what a policy needs, and the policy itself if requests find it by its namespace.
func (n *NamespaceRows) addPolicy(r *CompiledPolicy, needs Needs) {
	if n.needs = n.needs.Union(needs); needs.Reserves[0] != "" {
		n.reserves[needs.Reserves[0]] = true
	}
	switch r.match {
	case forAnonymous:
		n.Anonymous = append(n.Anonymous, r)
	case forAll:
		n.All = append(n.All, r)
	case byTier:
		n.Tiers[r.Tier] = append(n.Tiers[r.Tier], r)
	}
}

// addSize adds a size, in the order of sizes, unless it is among them.
func addSize(sizes []networkSize, size networkSize) []networkSize {
	if slices.Contains(sizes, size) {
		return sizes
	}
	i, _ := slices.BinarySearchFunc(sizes, size, func(a, b networkSize) int { return cmp.Compare(b.bits, a.bits) })
	return slices.Insert(sizes, i, size)
}

// Needs returns what the rows need under the configs of a namespace. Overrides apply in every namespace.
func (s *Snapshot) Needs(namespace string) Needs {
	on := &s.targets
	n := Needs{
		Tenant:  s.tenantCount+s.overrides.rows > 0,
		User:    on[onUser] || on[onUserEndpoint],
		Address: slices.ContainsFunc(s.overrideSizes, func(size networkSize) bool { return !size.is4 }),
		Tags:    on[onTag],
	}
	if on[onCredential] {
		n.Facts |= identity.CredentialFact
	}
	if on[onIP] {
		n.Facts |= identity.IPFact
	}
	if on[onTag] {
		n.Facts |= identity.ConsumerFact
	}
	if s.Endpoints().Len() > 0 {
		n.Facts |= identity.TargetFact
	}
	if rows := s.namespaces[namespace]; rows != nil {
		n = n.Union(rows.needs)
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
func (n *NamespaceRows) ReserveHeaders() []string { return slices.Sorted(maps.Keys(n.reserves)) }

// ForUsage returns the needs of requests that read what their tenant has used: who they are from, whatever limits there
// are, and their target, but nothing about what a request costs.
func (n Needs) ForUsage() Needs {
	n.Tenant, n.Cost, n.Model, n.Reserves = true, false, false, [identity.MaxReserveHeaders]string{}
	n.Facts = n.Facts&^identity.RouteFact | identity.TargetFact
	return n
}
