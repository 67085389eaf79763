package policy

import (
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/limit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

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
