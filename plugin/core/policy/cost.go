package policy

import (
	"cmp"
	"maps"
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
	rows := make([]CostRow, 0, len(s.costs))
	for _, id := range slices.Sorted(maps.Keys(s.costs)) {
		rows = append(rows, s.costs[id])
	}
	return rows
}

// putCost adds a cost, in place of the one with its id. As in putPolicy, its last good value stays if it has a fault.
func (b *builder) putCost(in CostRow) {
	b.dropCost(in.ID)
	in.Namespace = b.intern(cmp.Or(in.Namespace, defaultNamespace))
	faults := rowFaults(inCosts, strconv.FormatInt(in.ID, 10), CostFaults(in.Cost))
	if len(faults) == 0 {
		if err := b.snapshot.endpoints.acquire(in.Endpoint); err != nil {
			faults = endpointFaults(nil, inCosts, in.ID, err)
		}
	}
	if len(faults) > 0 {
		b.faults = append(b.faults, faults...)
		last, ok := b.previous.costs[in.ID]
		if !ok || !b.acquireEndpoint(last.Endpoint, inCosts, in.ID) {
			return
		}
		in = last
	}
	b.editCosts(in.Namespace, func(byID map[int64]CostRow, byEndpoint map[string]CostRow) {
		byID[in.ID], byEndpoint[in.Endpoint] = in, in
	})
}

// dropCost drops the cost with an id, if there is one.
func (b *builder) dropCost(id int64) {
	row, ok := b.snapshot.costs[id]
	if !ok {
		return
	}
	b.snapshot.endpoints.release(row.Endpoint)
	b.editCosts(row.Namespace, func(byID map[int64]CostRow, byEndpoint map[string]CostRow) {
		delete(byID, id)
		if byEndpoint[row.Endpoint].ID == id { // another row may have taken the endpoint over
			delete(byEndpoint, row.Endpoint)
		}
	})
}

// editCosts edits the costs by their ids and the costs of one namespace by their endpoints. It copies them first, once
// for each builder: another snapshot shares them.
func (b *builder) editCosts(namespace string, edit func(map[int64]CostRow, map[string]CostRow)) {
	s := b.snapshot.namespaces[namespace]
	if s.Tiers == nil {
		s.Tiers = map[string][]*CompiledPolicy{}
	}
	if b.ownedCosts == nil {
		b.ownedCosts = map[string]bool{}
		b.snapshot.costs = copied(b.snapshot.costs)
	}
	if !b.ownedCosts[namespace] {
		b.ownedCosts[namespace] = true
		s.Costs = copied(s.Costs)
	}
	b.snapshot.namespaces[namespace] = s
	edit(b.snapshot.costs, s.Costs)
}

// copied returns a copy of a map, which is never nil.
func copied[K comparable, V any](m map[K]V) map[K]V {
	next := make(map[K]V, len(m)+1)
	maps.Copy(next, m)
	return next
}
