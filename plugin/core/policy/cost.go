package policy

import (
	"cmp"
	"slices"
	"strconv"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

// CostRow is what requests to an endpoint cost, as a database holds it. Its key is ID.
type CostRow struct {
	ID int64 `json:"id"`
	schema.Cost
}

// CostFaults returns everything that is wrong with a cost by itself, as Faults does for a policy.
func CostFaults(c schema.Cost) []schema.Fault { return c.Faults(costCompiles) }

// costCompiles returns why the pattern of a cost matches nothing, as schema.Faults.
func costCompiles(cost schema.Cost) error {
	return asError(AppendFaults(nil, "endpoint", checkPattern(cost.Endpoint)))
}

// Costs returns all costs of endpoints, ordered by id.
func (s *Snapshot) Costs() []CostRow {
	rows := make([]CostRow, 0, s.costs.rows)
	for r := range s.costs.all {
		rows = append(rows, *r)
	}
	slices.SortFunc(rows, func(a, b CostRow) int { return cmp.Compare(a.ID, b.ID) })
	return rows
}

func (r *CostRow) rowID() int64        { return r.ID }
func (r *CostRow) pattern() string     { return r.Endpoint }
func (r *CostRow) link(*builder, bool) {} // each build lists the costs of a namespace anew

func (b *builder) putCost(in CostRow) {
	in.Namespace = b.intern(cmp.Or(in.Namespace, defaultNamespace))
	own := func() []Fault { return rowFaults(inCosts, strconv.FormatInt(in.ID, 10), CostFaults(in.Cost)) }
	compiled := &in
	if len(own()) > 0 {
		compiled = nil
	}
	put(b, inCosts, &b.snapshot.costs, &b.previous.costs, in.ID, compiled, own)
}
