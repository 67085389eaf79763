package rows

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

// Diff holds the changes from one set of policies to another.
type Diff struct {
	Create    []Policy  `json:"create,omitempty"`
	Update    []Rewrite `json:"update,omitempty"`
	Delete    []Policy  `json:"delete,omitempty"`
	Unchanged int       `json:"unchanged"`
}

// Rewrite is a policy that keeps its key and gets other values.
type Rewrite struct {
	Before Policy `json:"before"`
	After  Policy `json:"after"`
}

// String names the fields that change, with their values as JSON: limit: 1000 → 500.
func (r Rewrite) String() string {
	var changes []string
	for _, f := range schema.PolicyFields() {
		before, errBefore := json.Marshal(f.In(&r.Before.Policy))
		after, errAfter := json.Marshal(f.In(&r.After.Policy))
		if errBefore == nil && errAfter == nil && string(before) != string(after) {
			changes = append(changes, fmt.Sprintf("%s: %s → %s", f.Name, before, after))
		}
	}
	return strings.Join(changes, ", ")
}

// Empty reports whether the two sets are equal.
func (d Diff) Empty() bool { return len(d.Create)+len(d.Update)+len(d.Delete) == 0 }

// written returns the policies that are created, and those that are changed, as they are then.
func (d Diff) written() []Policy {
	list := slices.Clone(d.Create)
	for _, r := range d.Update {
		list = append(list, r.After)
	}
	return list
}

// Compare returns the changes from the current policies to the desired ones. Create and Update have the order of
// desired, with defaults filled in; Delete has the order of current. Two desired policies with the same key are an
// InvalidError.
func Compare(current, desired []Policy) (Diff, error) {
	d, err := compareRows(current, desired, false, func(p Policy) PolicyKey { return canonical(p.Key()) },
		func(before, after Policy) (Policy, bool) {
			after = after.withDefaults()
			after.ID, after.Revision = before.ID, before.Revision
			return after, !before.equal(after)
		})
	if twice, ok := errors.AsType[*InvalidError](err); ok {
		twice.Problem += ": a name and a match may have one policy"
	}
	if err != nil {
		return Diff{}, err
	}
	all := Diff{Create: d.Create, Delete: d.Delete, Unchanged: d.Unchanged}
	for _, r := range d.Update {
		all.Update = append(all.Update, Rewrite(r))
	}
	return all, nil
}

// String names the policy as people do.
func (p Policy) String() string { return p.Key().String() }

// equal reports whether two policies with defaults filled in are the same.
func (p Policy) equal(other Policy) bool {
	costs := p.Cost == nil && other.Cost == nil || p.Cost != nil && other.Cost != nil && *p.Cost == *other.Cost
	records := p.Settle.Equal(other.Settle) && p.Fair.Equal(other.Fair)
	p.Cost, other.Cost, p.Settle, other.Settle, p.Fair, other.Fair = nil, nil, nil, nil, nil, nil
	return costs && records && p == other
}

// canonical returns the key with the canonical spelling of its endpoint, so that names of parameters do not matter. The
// SQL function rate_limiter.canonical_endpoint does the same.
func canonical(k PolicyKey) PolicyKey {
	k.Endpoint = schema.CanonicalEndpoint(k.Endpoint)
	return k
}
