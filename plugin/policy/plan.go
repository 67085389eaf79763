// Package policy says which limits apply to a request.
//
// A [Plan] is the immutable, compiled set of all policies of one plugin config, beside which [Plan.With] puts
// a [Snapshot]: the rows of a database at one version. [Plan.ResolveAt] turns an identity into bounds, which are
// policies with their bucket keys:
//
//   - Policies with different names all apply. Of those with the same name one does: a row of the tenant before a row
//     of its tier before the config, and of one place the one with the most specific endpoint.
//   - Overrides change what applies to a tenant, a user, an endpoint, a credential or an address; which of several
//     holds is said once, in precede.
//
// [Plan.Explain] tells how that came about. What a limit's numbers mean is package limit's; who a request is from
// is package identity's; keeping buckets is the stores', and reading a database is package policysync's. FromConfig is
// the one conversion from what an administrator writes, NewSnapshot and Apply from what a database says.
package policy

import (
	"maps"
	"slices"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/identity"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/limit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

// Plan is a compiled set of policies. It is immutable.
type Plan struct {
	Rules identity.Rules // how a request of this config is identified

	config      *schema.Config
	needs       Needs     // of the config and the snapshot
	snapshot    *Snapshot // nil: the config alone
	space       space     // of the snapshot
	namespace   string
	mode        Mode
	failMode    FailMode
	accuracy    Accuracy
	tiers       map[string][]*Policy
	defaultTier string
	anonymous   []*Policy // nil: strangers have the limits of the default tier, each address its own
	global      []*Policy
	patterns    *patterns
	costs       []int64 // by pattern index; -1 where the pattern sets no cost
}

// Resolution is what applies to one request. Its slices are reused: the zero value is ready.
type Resolution struct {
	Tier     string // the tier whose limits apply; "" for strangers with limits of their own
	Endpoint string // the canonical endpoint: the most specific pattern that matches, else the route
	Bounds   []Bound

	UserWanted bool // a limit per user applies as the config enforces or rehearses it, but the request names no user

	Banned   bool         // to be refused whatever Bounds say
	Until    limit.Micros // of a ban: the instant at which it ends; 0: it is for good
	Exempt   bool         // no limit applies: there are no bounds
	Override int64        // the id of the ban or exemption; meaningless without one

	matched   []int       // patterns of the config that match, most specific first
	matching  []int       // the same of the snapshot
	around    []*override // of the networks that the address is in
	overrides []standing  // that hold for the request
	rows      []*row      // whose names the config's policies do not have any longer
}

// Reset forgets the resolution, keeping its memory.
func (r *Resolution) Reset() {
	clear(r.around) // a snapshot that was replaced must not live on in them
	clear(r.overrides)
	clear(r.rows)
	*r = Resolution{
		Bounds: r.Bounds[:0], matched: r.matched[:0], matching: r.matching[:0],
		around: r.around[:0], overrides: r.overrides[:0], rows: r.rows[:0],
	}
}

// Resolve is [Plan.ResolveAt] where time does not matter: for a plan without a snapshot.
func (s *Plan) Resolve(id *identity.Identity, r *Resolution) { s.ResolveAt(id, 0, r) }

// ResolveAt fills r with the bounds of a request from id at an instant, at which overrides that have expired hold no
// longer. It allocates only while r's slices grow, and when an override or a row is first used for a policy or config.
func (s *Plan) ResolveAt(id *identity.Identity, now limit.Micros, r *Resolution) {
	r.Reset()
	s.locate(id, r)
	who := s.find(id, now, r)
	if r.judge(); r.Exempt {
		r.Tier = s.tierOf(who, id)
		return
	}
	cost := s.cost(id, r)
	switch {
	case id.Tenant.Kind == identity.Unidentified:
	case id.Tenant.Kind != identity.Tenant && s.anonymous != nil:
		s.bind(s.anonymous, id, cost, r)
	default:
		r.Tier = s.tierOf(who, id)
		s.bindRows(who, id, cost, r)
		s.bind(s.tiers[r.Tier], id, cost, r)
	}
	s.bind(s.global, id, cost, r)
}

// Tier is the tier that a claimed one means: itself when the config or a row knows it, else the default.
func (s *Plan) Tier(claimed string) string {
	if s.knows(claimed) {
		return claimed
	}
	return s.defaultTier
}

func (s *Plan) knows(tier string) bool {
	if _, ok := s.tiers[tier]; ok {
		return true
	}
	if s.snapshot == nil {
		return false
	}
	_, ok := s.space.tiers[tier]
	return ok || s.snapshot.tiers[tier]
}

// Policies are all policies of the config, in no particular order.
func (s *Plan) Policies() []*Policy {
	all := append([]*Policy(nil), s.anonymous...)
	all = append(all, s.global...)
	for _, tier := range s.tiers {
		all = append(all, tier...)
	}
	return all
}

// ForTenants returns the policies of the config that requests of tenants can have, those of tiers in the order of their
// names and then the global ones.
func (s *Plan) ForTenants() []*Policy {
	var list []*Policy
	for _, tier := range s.Tiers() {
		list = append(list, s.tiers[tier]...)
	}
	return append(list, s.global...)
}

// Tiers returns the names of the config's tiers, sorted.
func (s *Plan) Tiers() []string { return slices.Sorted(maps.Keys(s.tiers)) }

// Mode is the mode of the config as a whole: a policy may have another.
func (s *Plan) Mode() Mode { return s.mode }

// Version returns the version of the rows beside which the config is in force; 0: there are none.
func (s *Plan) Version() int64 {
	if s.snapshot == nil {
		return 0
	}
	return s.snapshot.version
}

// Namespace is the namespace of the plan's buckets.
func (s *Plan) Namespace() string { return s.namespace }

// cost is what the request costs: its own word, else the most specific entry of the cost table, else 1.
func (s *Plan) cost(id *identity.Identity, r *Resolution) int64 {
	if id.Cost > 0 {
		return id.Cost
	}
	for _, i := range r.matched {
		if s.costs[i] >= 0 {
			return s.costs[i]
		}
	}
	return 1
}

// bind appends the bounds of a list of the config's policies. Policies of one name stand together, most specific
// first, so only the first that matches binds, and none if a row has the name.
func (s *Plan) bind(list []*Policy, id *identity.Identity, cost int64, r *Resolution) {
	for i := 0; i < len(list); i++ {
		p := list[i]
		if !r.matches(p) {
			continue
		}
		if !r.replaced(p.Name) {
			s.add(p, id, cost, r)
		}
		for i+1 < len(list) && list[i+1].Name == p.Name {
			i++
		}
	}
}

// add appends the bound of a policy, changed by the overrides that cover it, unless id lacks the name that it is
// counted per.
func (s *Plan) add(p *Policy, id *identity.Identity, cost int64, r *Resolution) {
	n := len(r.Bounds)
	r.Bounds = append(r.Bounds, Bound{Policy: p, Cost: cost})
	bound := &r.Bounds[n]
	if !s.key(p, id, r, &bound.Key) {
		r.Bounds = r.Bounds[:n]
		r.UserWanted = r.UserWanted || (p.Scope.ByUser() && (p.Mode == Enforce || s.mode != Enforce))
		return
	}
	if p.Cost >= 0 {
		bound.Cost = p.Cost
	}
	if len(r.overrides) > 0 {
		r.override(bound)
	}
}

func (r *Resolution) matches(p *Policy) bool {
	if p.pattern < 0 {
		return true
	}
	for _, i := range r.matched {
		if i == p.pattern {
			return true
		}
	}
	return false
}

// key fills in the bucket of p for id; false when id lacks a name that the scope is counted per.
func (s *Plan) key(p *Policy, id *identity.Identity, r *Resolution, key *Key) bool {
	// A policy for some endpoint has a bucket of its own, whatever its scope: the policy of the same name for the other
	// endpoints may have another window, and one bucket cannot remember both.
	key.Namespace, key.Policy, key.Endpoint = s.namespace, p.Name, p.Endpoint
	switch p.Scope {
	case Global:
		key.Group = ByAll
		return true
	case IP:
		key.Group, key.GroupID = ByIP, id.IP
		return id.IP != ""
	case Endpoint:
		key.Group, key.GroupID, key.Endpoint = ByEndpoint, r.endpoint(p, id), ""
		return true
	}
	key.Group, key.GroupID = ByTenant, id.Tenant.ID
	if id.Tenant.Kind == identity.IP {
		key.Group = ByIP
	}
	if p.Scope.ByEndpoint() {
		key.Endpoint = r.endpoint(p, id)
	}
	switch p.Scope {
	case Credential:
		key.Kind, key.Subject = KindCredential, id.Credential
		if id.Credential == "" {
			key.Kind, key.Subject = KindIP, id.IP
		}
		return key.Subject != ""
	case User, UserEndpoint:
		key.Kind, key.Subject = kinds[id.User.Kind], id.User.ID
		return id.User.Kind != identity.Unidentified && id.User.ID != ""
	}
	return key.GroupID != ""
}

var kinds = [...]Kind{identity.User: KindUser, identity.Credential: KindCredential, identity.IP: KindIP}

// endpoint is what p's endpoint buckets are counted per: its own pattern, else the route.
func (r *Resolution) endpoint(p *Policy, id *identity.Identity) string {
	if p.Endpoint != "" {
		return p.Endpoint
	}
	return id.Route
}
