package policy

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/identity"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/limit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/settle"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

// A request's reservations have a place each, in package identity and in the check of a config.
var _ = [1]struct{}{}[identity.MaxReserveHeaders-schema.MaxReserveHeaders]

// reserve returns the tokens that a request reserves under a rule. A header counts only if the config trusts it.
func (p *Plan) reserve(rule *settle.Rule, id *identity.Identity, cost int64) int64 {
	wanted := int64(0)
	if header := rule.ReserveHeader(); header != "" {
		for i := range p.needs.Reserves {
			if p.needs.Reserves[i] == header {
				wanted = id.Reserves[i]
			}
		}
	}
	return rule.Reserve(wanted, cost)
}

// addReserve adds a header that carries reservations, if there is room.
func (n *Needs) addReserve(header string) {
	for i := range n.Reserves {
		if n.Reserves[i] == "" {
			n.Reserves[i] = header
		}
		if n.Reserves[i] == header {
			return
		}
	}
}

// addRowReserves adds the headers that carry the reservations of rows, as far as the config trusts them and there is
// room. Headers of the config come before those of rows.
func (p *Plan) addRowReserves(n *Needs, rows *namespaceRows) {
	for _, header := range slices.Sorted(maps.Keys(rows.needs.reserves)) {
		if p.trusts(header) {
			n.addReserve(header)
		}
	}
}

func (p *Plan) trusts(header string) bool {
	return slices.ContainsFunc(p.config.TrustedHeaders, func(name string) bool { return strings.EqualFold(name, header) })
}

// reserveFaults returns a fault for each header that carries reservations of rows and is not read under the config. A
// row with that header is the key.
func (p *Plan) reserveFaults() []Fault {
	unread := map[string]bool{}
	for header := range p.rows.needs.reserves {
		if !slices.Contains(p.needs.Reserves[:], header) {
			unread[header] = true
		}
	}
	var faults []Fault
	if len(unread) == 0 || p.forCallers {
		return faults
	}
	for row := range p.snapshot.Policies() {
		if row.Settle == nil || row.Namespace != p.namespace || !unread[row.Settle.ReserveHeader] {
			continue
		}
		header := row.Settle.ReserveHeader
		delete(unread, header)
		problem := fmt.Sprintf("is not in the config's trusted_headers, so %s is not read: requests reserve as without it",
			header)
		if p.trusts(header) {
			problem = fmt.Sprintf("is not read, because a config reads reservations from at most %d headers: requests "+
				"reserve as without it", identity.MaxReserveHeaders)
		}
		faults = append(faults, Fault{inPolicies, strconv.FormatInt(row.ID, 10), "settle.reserve_header", problem})
	}
	return faults
}

// settles reports whether a node can settle a row's limit, which p has. It is cheaper than the row's Faults.
func (p *Policy) settles(l schema.Limit) bool {
	algorithm := p.Limit.Spec().Algorithm
	return (algorithm == limit.TokenBucket || algorithm == limit.FixedWindow) && !l.SoftOnly &&
		l.Settle.Reserve <= p.Limit.Capacity()
}

// Fair divides a policy's bucket among the tenants that spend from it. It is immutable, and an override that changes
// the limit for one tenant leaves it alone.
type Fair struct {
	Record   *schema.Fair
	Rate     float64 // tokens per second
	Capacity float64 // tokens of the full bucket
}

func newFair(record *schema.Fair, l *limit.Limit) *Fair {
	spec := l.Spec()
	return &Fair{
		Record: record, Rate: float64(spec.Quantity) * float64(limit.Second) / float64(spec.Window),
		Capacity: float64(l.Capacity()),
	}
}

// Weight returns the weight of the tenants of a tier.
func (f *Fair) Weight(tier string) int64 { return f.Record.Weight(tier) }

// Equal reports whether two policies divide alike; nil is one that does not.
func (f *Fair) Equal(other *Fair) bool {
	if f == nil || other == nil {
		return f == other
	}
	return f.Record.Equal(other.Record)
}

// divides reports whether a node can divide a row's limit, which p has. It is cheaper than the row's Faults.
func (p *Policy) divides(l schema.Limit) bool {
	return p.Scope.Shared() && p.Limit.Spec().Algorithm == limit.TokenBucket && !l.SoftOnly && l.Fair.Default >= 0
}
