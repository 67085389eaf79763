// Package policy says which limits apply to a request.
//
// A [Snapshot] is the immutable, compiled set of all policies of one plugin config. [Snapshot.Resolve] turns an
// identity into bounds: policies with their bucket keys. Policies with different names all apply; of those with the
// same name the one with the most specific endpoint does.
//
// What a limit's numbers mean is package limit's; who a request is from is package identity's; keeping buckets is
// the stores'. FromConfig is the one conversion from what an administrator writes.
package policy

import (
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/identity"
)

// Snapshot is a compiled set of policies. It is immutable.
type Snapshot struct {
	Rules identity.Rules // how a request of this config is identified

	namespace   string
	mode        Mode
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

	matched []int
}

// Reset forgets the resolution, keeping its memory.
func (r *Resolution) Reset() {
	*r = Resolution{Bounds: r.Bounds[:0], matched: r.matched[:0]}
}

// Resolve fills r with the bounds of a request from id. It allocates only while r's slices grow.
func (s *Snapshot) Resolve(id *identity.Identity, r *Resolution) {
	r.Reset()
	r.matched = s.patterns.match(id.Method, id.Path, r.matched)
	r.Endpoint = id.Route
	if len(r.matched) > 0 {
		r.Endpoint = s.patterns.list[r.matched[0]].text
	}
	cost := s.cost(id, r)
	switch id.Tenant.Kind {
	case identity.Nobody:
	case identity.Tenant:
		r.Tier = s.Tier(id.Tier)
		s.bind(s.tiers[r.Tier], id, cost, r)
	default:
		if s.anonymous != nil {
			s.bind(s.anonymous, id, cost, r)
		} else {
			r.Tier = s.defaultTier
			s.bind(s.tiers[r.Tier], id, cost, r)
		}
	}
	s.bind(s.global, id, cost, r)
}

// Tier is the tier that a claimed one means: itself when it exists, else the default.
func (s *Snapshot) Tier(claimed string) string {
	if _, ok := s.tiers[claimed]; ok {
		return claimed
	}
	return s.defaultTier
}

// Policies are all policies of the snapshot, in no particular order.
func (s *Snapshot) Policies() []*Policy {
	all := append([]*Policy(nil), s.anonymous...)
	all = append(all, s.global...)
	for _, tier := range s.tiers {
		all = append(all, tier...)
	}
	return all
}

// Mode is the mode of the config as a whole: a policy may have another.
func (s *Snapshot) Mode() Mode { return s.mode }

// Namespace is the namespace of the snapshot's buckets.
func (s *Snapshot) Namespace() string { return s.namespace }

// cost is what the request costs: its own word, else the most specific entry of the cost table, else 1.
func (s *Snapshot) cost(id *identity.Identity, r *Resolution) int64 {
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

// bind appends the bounds of a list of policies. Policies of one name stand together, most specific first, so only
// the first that matches binds.
func (s *Snapshot) bind(list []*Policy, id *identity.Identity, cost int64, r *Resolution) {
	for i := 0; i < len(list); i++ {
		p := list[i]
		if !r.matches(p) {
			continue
		}
		if key, ok := s.key(p, id, r); ok {
			bound := Bound{Policy: p, Key: key, Cost: cost}
			if p.Cost >= 0 {
				bound.Cost = p.Cost
			}
			r.Bounds = append(r.Bounds, bound)
		} else if p.Scope.ByUser() && (p.Mode == Enforce || s.mode != Enforce) {
			r.UserWanted = true
		}
		for i+1 < len(list) && list[i+1].Name == p.Name {
			i++
		}
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

// key is the bucket of p for id; false when id lacks a name that the scope is counted per.
func (s *Snapshot) key(p *Policy, id *identity.Identity, r *Resolution) (Key, bool) {
	// A policy for some endpoint has a bucket of its own, whatever its scope: the policy of the same name for the other
	// endpoints may have another window, and one bucket cannot remember both.
	key := Key{Namespace: s.namespace, Policy: p.Name, Endpoint: p.Endpoint}
	switch p.Scope {
	case Global:
		key.Group = ByAll
		return key, true
	case IP:
		key.Group, key.Owner = ByIP, id.IP
		return key, id.IP != ""
	case Endpoint:
		key.Group, key.Owner, key.Endpoint = ByEndpoint, r.endpoint(p, id), ""
		return key, true
	}
	key.Group, key.Owner = ByTenant, id.Tenant.ID
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
		return key, key.Subject != ""
	case User, UserEndpoint:
		key.Kind, key.Subject = kinds[id.User.Kind], id.User.ID
		return key, id.User.Kind != identity.Nobody && id.User.ID != ""
	}
	return key, key.Owner != ""
}

var kinds = [...]Kind{identity.User: KindUser, identity.Credential: KindCredential, identity.IP: KindIP}

// endpoint is what p's endpoint buckets are counted per: its own pattern, else the route.
func (r *Resolution) endpoint(p *Policy, id *identity.Identity) string {
	if p.Endpoint != "" {
		return p.Endpoint
	}
	return id.Route
}
