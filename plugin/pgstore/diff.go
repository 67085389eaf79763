package pgstore

import "github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"

// Diff is what lies between two sets of policies.
type Diff struct {
	Create    []Policy  `json:"create,omitempty"`
	Update    []Rewrite `json:"update,omitempty"`
	Delete    []Policy  `json:"delete,omitempty"`
	Unchanged int       `json:"unchanged"`
}

// Rewrite is a policy that stays under its key with other values.
type Rewrite struct {
	Before Policy `json:"before"`
	After  Policy `json:"after"`
}

// Empty tells that the two sets are the same.
func (d Diff) Empty() bool { return len(d.Create)+len(d.Update)+len(d.Delete) == 0 }

// Compare tells what turns the current policies into the desired ones. Create and Update are in the order of desired,
// with defaults filled in, Delete in that of current. Two desired policies of one key are an InvalidError.
func Compare(current, desired []Policy) (Diff, error) {
	was := make(map[PolicyKey]Policy, len(current))
	for _, p := range current {
		was[canonical(p.Key())] = p
	}
	var d Diff
	wanted := make(map[PolicyKey]bool, len(desired))
	for _, p := range desired {
		key := canonical(p.Key())
		if wanted[key] {
			return Diff{}, &InvalidError{
				What:    p.Key().String(),
				Problem: "is there twice: of one name and one match there is one policy",
			}
		}
		wanted[key] = true
		before, exists := was[key]
		after := p.withDefaults()
		after.ID, after.Revision = before.ID, before.Revision
		switch {
		case !exists:
			d.Create = append(d.Create, after)
		case before.equal(after):
			d.Unchanged++
		default:
			d.Update = append(d.Update, Rewrite{before, after})
		}
	}
	for _, p := range current {
		if !wanted[canonical(p.Key())] {
			d.Delete = append(d.Delete, p)
		}
	}
	return d, nil
}

// equal compares all that a policy says; both have their defaults filled in.
func (p Policy) equal(other Policy) bool {
	costs := p.Cost == nil && other.Cost == nil || p.Cost != nil && other.Cost != nil && *p.Cost == *other.Cost
	p.Cost, other.Cost = nil, nil
	return costs && p == other
}

// canonical makes keys equal whose endpoints differ in the names of parameters alone. It does what
// rate_limiter.canonical_endpoint does in the database.
func canonical(k PolicyKey) PolicyKey {
	k.Endpoint = schema.CanonicalEndpoint(k.Endpoint)
	return k
}
