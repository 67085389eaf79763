package policy

import (
	"cmp"
	"slices"
	"strconv"

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

// Overlay holds a snapshot with the changes of a candidate.
type Overlay struct {
	Set           *CandidateSet
	Snapshot      *Snapshot
	Tenants       map[string]bool
	Namespaces    map[string]bool // that the changes are in
	ChangesShared bool            // a limit that several tenants share changes
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
	o := &Overlay{Set: set, Tenants: map[string]bool{}, Namespaces: map[string]bool{}}
	for _, tenant := range set.Tenants {
		o.Tenants[tenant] = true
	}
	changes := Changes{Rows: Rows{Version: s.version}}
	keys := map[string]string{} // for people, by id
	for i, r := range set.Rows {
		r.Namespace = cmp.Or(r.Namespace, defaultNamespace)
		o.Namespaces[r.Namespace] = true
		id := -int64(i) - 1 // rows of the database have positive ids
		if active := s.policyLike(&r.Policy); active != nil {
			id, o.ChangesShared = active.Row, o.ChangesShared || !active.Scope.OfTenant()
		}
		if keys[strconv.FormatInt(id, 10)] = r.key(); r.Deleted {
			changes.Removed.Policies = append(changes.Removed.Policies, id)
			continue
		}
		o.ChangesShared = o.ChangesShared || !Scope(slices.Index(scopeNames[:], r.Scope)).OfTenant()
		changes.Policies = append(changes.Policies, PolicyRow{ID: id, Policy: r.Policy})
	}
	var faults []Fault
	o.Snapshot, faults = next.Apply(changes)
	for i := range faults {
		faults[i].Table, faults[i].Key = inCandidate, keys[faults[i].Key]
	}
	next.candidate = o
	return &next, faults
}

// CandidateSet returns the open candidate; nil: none is open. It must not be changed.
func (s *Snapshot) CandidateSet() *CandidateSet {
	if s == nil || s.candidate == nil {
		return nil
	}
	return s.candidate.Set
}

// Overlay returns the snapshot with the changes of the open candidate; nil: none is open.
func (s *Snapshot) Overlay() *Overlay { return s.candidate }

// policyLike returns the active policy with the key of another one: what it applies to, and its name. Endpoints that
// differ in the names of parameters are the same.
func (s *Snapshot) policyLike(p *schema.Policy) *CompiledPolicy {
	endpoint := schema.CanonicalEndpoint(p.Endpoint)
	for _, r := range s.rowsBeside(p) {
		if r.Namespace == p.Namespace && r.Name == p.Name && schema.CanonicalEndpoint(r.Endpoint) == endpoint {
			return r
		}
	}
	return nil
}

// rowsBeside returns the rows that apply to the same as a policy, in all namespaces if others may have it too.
func (s *Snapshot) rowsBeside(p *schema.Policy) []*CompiledPolicy {
	in := PolicyRow{Policy: *p}
	switch matched, name := in.match(); matched {
	case forTenant:
		if rows := s.Tenant(p.Tenant); rows != nil {
			return rows.Policies
		}
		return nil
	case forUser, forCredential, forNetwork:
		return s.policiesOf(matched.subject(p.Tenant, name))
	case forAnonymous:
		return s.Namespace(p.Namespace).Anonymous
	case forAll:
		return s.Namespace(p.Namespace).All
	default:
		return s.Namespace(p.Namespace).Tiers[p.Tier]
	}
}
