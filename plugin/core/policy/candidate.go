package policy

import (
	"slices"
	"strconv"
	"strings"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/identity"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/limit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

// CandidateSet is an open candidate: named changes to the active policies, which nodes try beside requests and enforce
// for the tenants that it is assigned to.
type CandidateSet struct {
	Name    string
	Created limit.Micros // 0: unknown, as in a saved file
	Percent int64        // of all tenants, by a hash, that it is assigned to
	Tenants []string     // that it is assigned to by name
	Rows    []CandidateRow
}

// CandidateRow is one change of a candidate: a policy that it puts in place of the active one of the same key, if there
// is one, or the key of an active one that it deletes.
type CandidateRow struct {
	schema.Policy
	Deleted bool // only the fields of the key count
}

// key returns the key of the row in words.
func (r *CandidateRow) key() string {
	text := r.Namespace + ": " + r.Name + " of " + r.Target()
	if r.Endpoint != "" {
		text += " at " + r.Endpoint
	}
	return text
}

// InCandidate reports whether a candidate is assigned to a tenant as one of a percentage of all tenants. It depends on
// the two names alone, and a higher percentage keeps the tenants of a lower one.
func InCandidate(candidate, tenant string, percent int64) bool {
	const offset, prime = 14695981039346656037, 1099511628211 // FNV-1a
	h := uint64(offset)
	for i := range len(candidate) {
		h = (h ^ uint64(candidate[i])) * prime
	}
	h = (h ^ 0x100) * prime // not a byte, so it ends the candidate's name
	for i := range len(tenant) {
		h = (h ^ uint64(tenant[i])) * prime
	}
	h ^= h >> 33 // the last bytes of a name reach the low bits alone
	h *= 0xff51afd7ed558ccd
	h ^= h >> 33
	return int64(h%10_000) < 100*percent
}

// overlay is a snapshot with the changes of a candidate.
type overlay struct {
	set        *CandidateSet
	snapshot   *Snapshot
	tenants    map[string]bool
	namespaces map[string]bool // that the changes are in
	shared     bool            // a limit that several tenants share changes
}

// WithCandidate returns the snapshot with an open candidate beside its rows (nil: without one), and a fault for every
// change that does not compile: there the active row stays. Snapshots of [NewSnapshot] and [Snapshot.Apply] have none.
// The time grows with the changes of the candidate, not with the snapshot.
func (s *Snapshot) WithCandidate(set *CandidateSet) (*Snapshot, []Fault) {
	next := *s
	next.candidate = nil
	if set == nil {
		return &next, nil
	}
	o := &overlay{set: set, tenants: map[string]bool{}, namespaces: map[string]bool{}}
	for _, tenant := range set.Tenants {
		o.tenants[tenant] = true
	}
	changes := Changes{Rows: Rows{Version: s.version}}
	keys := map[string]string{} // for people, by id
	for i, r := range set.Rows {
		r.Namespace = first(r.Namespace, defaultNamespace)
		o.namespaces[r.Namespace] = true
		id := -int64(i) - 1 // rows of the database have positive ids
		if active := s.policyLike(&r.Policy); active != nil {
			id, o.shared = active.Row, o.shared || !active.Scope.ofTenant()
		}
		if keys[strconv.FormatInt(id, 10)] = r.key(); r.Deleted {
			changes.Removed.Policies = append(changes.Removed.Policies, id)
			continue
		}
		o.shared = o.shared || !Scope(slices.Index(scopeNames[:], r.Scope)).ofTenant()
		changes.Policies = append(changes.Policies, PolicyRow{ID: id, Policy: r.Policy})
	}
	var faults []Fault
	o.snapshot, faults = next.Apply(changes)
	for i := range faults {
		faults[i].Table, faults[i].Key = inCandidate, keys[faults[i].Key]
	}
	next.candidate = o
	return &next, faults
}

// Candidate returns the name of the open candidate; "": none is open. s may be nil.
func (s *Snapshot) Candidate() string {
	if s == nil || s.candidate == nil {
		return ""
	}
	return s.candidate.set.Name
}

// CandidateSet returns the open candidate; nil: none is open. It must not be changed.
func (s *Snapshot) CandidateSet() *CandidateSet {
	if s == nil || s.candidate == nil {
		return nil
	}
	return s.candidate.set
}

// policyLike returns the active policy with the key of another one: what it applies to, and its name. Endpoints that
// differ in the names of parameters are the same.
func (s *Snapshot) policyLike(p *schema.Policy) *row {
	endpoint := schema.CanonicalEndpoint(p.Endpoint)
	for _, r := range s.rowsBeside(p) {
		if r.namespace == p.Namespace && r.Name == p.Name && schema.CanonicalEndpoint(r.Endpoint) == endpoint {
			return r
		}
	}
	return nil
}

// rowsBeside returns the rows that apply to the same as a policy, in all namespaces if others may have it too.
func (s *Snapshot) rowsBeside(p *schema.Policy) []*row {
	in := PolicyRow{Policy: *p}
	switch matched, name := in.match(); matched {
	case forTenant:
		if rows := s.tenant(p.Tenant); rows != nil {
			return rows.policies
		}
		return nil
	case forUser:
		return s.rowsOf(subject{onUser, p.Tenant, name})
	case forCredential:
		return s.rowsOf(subject{onCredential, "", name})
	case forNetwork:
		return s.rowsOfNetwork(name)
	case forAnonymous:
		return s.namespaces[p.Namespace].anonymous
	case forAll:
		return s.namespaces[p.Namespace].all
	default:
		return s.namespaces[p.Namespace].tiers[p.Tier]
	}
}

// Candidate is the open candidate as one plugin config applies it.
type Candidate struct {
	// Plan is the config beside the rows with the candidate's changes.
	Plan *Plan
	// SameFacts reports whether the plan identifies requests as the active one does.
	SameFacts bool
	// Namespace is that of the buckets in which the candidate counts where it is not enforced. No config has it.
	Namespace string

	active   *Plan
	enforced *Plan // Plan with the active limits that tenants share
	overlay  *overlay
}

// Candidate returns the open candidate; nil: there is none, or none of its changes is in the plan's namespace.
func (p *Plan) Candidate() *Candidate { return p.candidate }

// candidateMark separates a namespace from the name of a candidate. No namespace has it.
const candidateMark = "+"

// ActiveNamespace returns the namespace whose candidate counts in a namespace of buckets, or that namespace itself.
func ActiveNamespace(namespace string) string {
	active, _, _ := strings.Cut(namespace, candidateMark)
	return active
}

// compileCandidate sets the candidate of a plan that base makes with a snapshot.
func (p *Plan) compileCandidate(base *Plan) {
	o := p.snapshot.candidate
	if o == nil || !o.namespaces[p.namespace] {
		return
	}
	tried := base.With(o.snapshot)
	p.candidate = &Candidate{
		Plan: tried, SameFacts: tried.needs == p.needs, Namespace: p.namespace + candidateMark + o.set.Name,
		active: p, enforced: tried, overlay: o,
	}
	if o.shared {
		enforced := *tried
		enforced.enforces = p.candidate
		p.candidate.enforced = &enforced
	}
}

// Name returns the name of the candidate.
func (c *Candidate) Name() string { return c.overlay.set.Name }

// Assigned reports whether the candidate is enforced for a tenant. Only tenants are assigned, not addresses.
func (c *Candidate) Assigned(tenant identity.Name) bool {
	return tenant.Kind == identity.Tenant &&
		(c.overlay.tenants[tenant.ID] || InCandidate(c.overlay.set.Name, tenant.ID, c.overlay.set.Percent))
}

// ForTenant returns the plan that decides requests of a tenant: the candidate's, if it is open and assigned to the
// tenant, else p. The tenant "" is none.
func (p *Plan) ForTenant(tenant string) *Plan {
	if p.candidate != nil && tenant != "" && p.candidate.Assigned(identity.Name{Kind: identity.Tenant, ID: tenant}) {
		return p.candidate.enforced
	}
	return p
}

// ResolveAt fills r with the bounds of a request of an assigned tenant. Buckets that several tenants share keep their
// active limits, because one bucket cannot follow two limits in turns. So does a policy that only one of the sets
// shares.
func (c *Candidate) ResolveAt(id *identity.Identity, now limit.Micros, r *Resolution) {
	c.enforced.ResolveAt(id, now, r)
}

// keepShared replaces the bounds of limits that tenants share by the active ones, in a resolution of the candidate.
func (c *Candidate) keepShared(id *identity.Identity, now limit.Micros, r *Resolution) {
	var active Resolution
	c.active.ResolveAt(id, now, &active)
	ofTenant := func(b Bound) bool { return b.Key.Group == ByTenant }
	differs := func(b Bound, from []Bound) bool {
		return slices.ContainsFunc(from, func(other Bound) bool {
			return other.Policy.Name == b.Policy.Name && ofTenant(other) != ofTenant(b)
		})
	}
	r.kept = slices.DeleteFunc(active.Bounds, func(b Bound) bool { return ofTenant(b) && !differs(b, r.Bounds) })
	r.Bounds = slices.DeleteFunc(r.Bounds, func(b Bound) bool { return !ofTenant(b) || differs(b, r.kept) })
	r.Bounds = append(r.Bounds, r.kept...)
	r.Settles = slices.ContainsFunc(r.Bounds, func(b Bound) bool { return b.Policy.Settle != nil })
	r.Fair = slices.ContainsFunc(r.Bounds, func(b Bound) bool { return b.Policy.Fair != nil })
}

// explain describes what the candidate decides about a request, as it is enforced or tried.
func (c *Candidate) explain(id *identity.Identity, now limit.Micros) *ExplainedCandidate {
	plan, assigned := c.Plan, c.Assigned(id.Tenant)
	if assigned {
		plan = c.enforced
	}
	var r Resolution
	e := plan.explain(id, now, &r)
	return &ExplainedCandidate{Name: c.Name(), Assigned: assigned, Verdict: e.Verdict, Bounds: e.Bounds}
}
