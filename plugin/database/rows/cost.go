package rows

import (
	"cmp"
	"context"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/resolve"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

// Cost is what requests to an endpoint cost, as the database has it.
type Cost struct {
	// Assigned by the database; a write does not need it.
	ID int64 `json:"id,omitempty"`

	schema.Cost

	Revision int64 `json:"revision,omitempty"` // as in Policy
}

func (c Cost) rowKey() any     { return c.ID }
func (c Cost) revision() int64 { return c.Revision }
func (Cost) table() any        { return costTable }

// String names the cost by its endpoint.
func (c Cost) String() string {
	text := "cost of " + c.Endpoint
	if namespace := cmp.Or(c.Namespace, defaultNamespace); namespace != defaultNamespace {
		text += " in namespace " + namespace
	}
	return text
}

// Equal reports whether two costs are the same but for the names of parameters and their rows.
func (c Cost) Equal(other Cost) bool {
	return c.key() == other.key() && *c.Cost.Cost == *other.Cost.Cost
}

// key returns what names a cost in a namespace.
func (c Cost) key() string { return schema.CanonicalEndpoint(c.Endpoint) }

// check returns what is wrong with c by itself.
func (c Cost) check() error { return invalid(c.String(), policy.CostFaults(c.Cost)) }

// CostFilter selects costs. The zero value selects all.
type CostFilter struct {
	Namespace string `query:"namespace" maxLength:"64"   doc:"Only costs of this namespace."`
	Endpoint  string `query:"endpoint"  maxLength:"1024" doc:"Only the cost of this endpoint, as written in the cost; the names of parameters do not matter."`

	After int64 // only costs with a larger ID: the last one of the page before
	Max   int   // at most so many; 0: all
}

// Costs returns the costs that a filter selects, in the order of their IDs.
func (s *DB) Costs(ctx context.Context, f CostFilter) ([]Cost, error) { return costs(ctx, s.pool, f) }

func costs(ctx context.Context, q querier, f CostFilter) ([]Cost, error) {
	var w where
	w.equal("namespace", f.Namespace)
	w.endpoint(f.Endpoint)
	given(&w, "id > %s", f.After)
	return readAll[Cost](ctx, q, "list costs", costTable.selects+w.String()+" ORDER BY id"+limitTo(f.Max), w.args...)
}

// Cost returns the cost of an endpoint in a namespace ("": default), or a NotFoundError.
func (s *DB) Cost(ctx context.Context, namespace, endpoint string) (Cost, error) {
	named := Cost{Cost: schema.Cost{Namespace: namespace, Endpoint: endpoint}}
	found, err := costOf(ctx, s.pool, named)
	return found, fail("read the "+named.String(), err)
}

func costOf(ctx context.Context, q querier, c Cost) (Cost, error) {
	return one[Cost](ctx, q, "the "+c.String(), costTable.selects+` WHERE namespace = $1
		AND rate_limiter.canonical_endpoint(endpoint) = rate_limiter.canonical_endpoint($2)`,
		cmp.Or(c.Namespace, defaultNamespace), c.Endpoint)
}

// PutCost sets what requests to an endpoint cost, where a row for it may exist. It returns the row after the write, and
// the version in which it is in force.
func (s *DB) PutCost(ctx context.Context, c Change, cost Cost) (Cost, int64, error) {
	cost.Namespace = cmp.Or(cost.Namespace, defaultNamespace)
	find := func(ctx context.Context, q querier) (Cost, error) { return costOf(ctx, q, cost) }
	return costTable.put(ctx, s, c, "the "+cost.String(), cost.Revision, find, func(current Cost) (Cost, error) {
		cost.ID = current.ID
		return cost, cost.check()
	})
}

// CostWarnings returns what an operator should check of a cost: limits that can never hold it. A nil config is unknown:
// its limits are not compared.
func (s *DB) CostWarnings(ctx context.Context, config *resolve.Plan, c Cost) ([]string, error) {
	var w where
	w.equal("namespace", cmp.Or(c.Namespace, defaultNamespace))
	w.add("(endpoint = '' OR rate_limiter.canonical_endpoint(endpoint) = rate_limiter.canonical_endpoint(%s))", c.Endpoint)
	w.add("(tier <> '' OR coalesce(burst, \"limit\") < 2 * %s::bigint)", *c.Cost.Cost)
	rows, err := policiesWhere(ctx, s.pool, &w, 0)
	if err != nil {
		return nil, fail("review the "+c.String(), err)
	}
	return costWarnings(config, rows, []Cost{c}), nil
}

// costWarnings returns the warnings of CostWarnings for costs of one namespace beside rows of it.
func costWarnings(config *resolve.Plan, rows []Policy, costs []Cost) []string {
	if len(costs) == 0 {
		return nil
	}
	if config != nil && config.Namespace() != cmp.Or(costs[0].Namespace, defaultNamespace) {
		config = nil
	}
	limits := make([]schema.Policy, len(rows))
	for i, p := range rows {
		limits[i] = p.Policy
	}
	problems := resolve.CostCheck(config, limits)
	var warnings []string
	for _, c := range costs {
		for _, problem := range problems(c.Cost) {
			warnings = append(warnings, c.String()+": "+problem)
		}
	}
	return warnings
}

func (set Set) diffCosts(ctx context.Context, q querier, namespace string) (*RowDiff[Cost], error) {
	return diffRows(set.Costs, set.Partial,
		func() ([]Cost, error) { return costs(ctx, q, CostFilter{Namespace: namespace}) },
		func(c *Cost) error {
			c.Namespace = namespace
			return c.check()
		},
		Cost.key, func(before, after Cost) (Cost, bool) {
			after.ID, after.Revision = before.ID, before.Revision
			return after, before.ID == 0 || !before.Equal(after) || before.Endpoint != after.Endpoint
		})
}
