package policy

import (
	"maps"
	"slices"
	"strconv"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/identity"
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
	var c compiler
	c.checkPattern(cost.Endpoint)
	return c.err()
}

// CostCheck returns a function that returns why limits of a config, or rows of its namespace beside it, may deny every
// request of a cost. A nil config is unknown: its limits are not compared.
func CostCheck(config *Plan, rows []schema.Policy) func(schema.Cost) []string {
	var c schema.Config
	if config != nil {
		c = *config.config
	}
	return c.CostCheck(rows)
}

// RequestCost is what a request costs where a policy has no cost of its own, and where that is set.
type RequestCost struct {
	Tokens   int64
	From     CostSource
	Row      int64  // the id of the row; 0: it is none
	Endpoint string // the pattern of the row, or of the entry of the config; "": neither
}

// CostSource is where the cost of a request is set.
type CostSource uint8

// The sources of a cost, the strongest last.
const (
	NoCost      CostSource = iota // the request is exempt
	DefaultCost                   // 1
	ConfigCost                    // the table of the config
	RowCost                       // a row
	RequestsOwn                   // the header that cost_header names, or the caller
)

// String returns the name in answers and explanations; "": the request is exempt.
func (s CostSource) String() string {
	return [...]string{"", "default", "config", "row", "request"}[s]
}

// requestCost returns what a request costs: what it says itself, else the row of the namespace with the most specific
// endpoint that matches, else the most specific entry of the config's table, else 1.
func (p *Plan) requestCost(id *identity.Identity, r *Resolution) RequestCost {
	if id.Cost > 0 {
		return RequestCost{Tokens: id.Cost, From: RequestsOwn}
	}
	if len(p.rows.costs) > 0 {
		for _, i := range r.rowMatches {
			endpoint := p.snapshot.endpoints.patterns.list[i].text
			if row, ok := p.rows.costs[endpoint]; ok {
				return RequestCost{Tokens: *row.Cost.Cost, From: RowCost, Row: row.ID, Endpoint: endpoint}
			}
		}
	}
	for _, i := range r.configMatches {
		if p.costs[i] >= 0 {
			return RequestCost{Tokens: p.costs[i], From: ConfigCost, Endpoint: p.patterns.list[i].text}
		}
	}
	return RequestCost{Tokens: 1, From: DefaultCost}
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
	in.Namespace = b.intern(first(in.Namespace, defaultNamespace))
	var faults []Fault
	for _, f := range CostFaults(in.Cost) {
		faults = append(faults, Fault{inCosts, strconv.FormatInt(in.ID, 10), f.Path, f.Message})
	}
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

// editCosts edits the costs by their ids and those of one namespace by their endpoints. It copies them first, once for
// each builder: another snapshot shares them.
func (b *builder) editCosts(namespace string, edit func(map[int64]CostRow, map[string]CostRow)) {
	s := b.snapshot.namespaces[namespace]
	if s.tiers == nil {
		s.tiers = map[string][]*row{}
	}
	if b.ownedCosts == nil {
		b.ownedCosts = map[string]bool{}
		b.snapshot.costs = copied(b.snapshot.costs)
	}
	if !b.ownedCosts[namespace] {
		b.ownedCosts[namespace] = true
		s.costs = copied(s.costs)
	}
	b.snapshot.namespaces[namespace] = s
	edit(b.snapshot.costs, s.costs)
}

// copied returns a copy of a map, which is never nil.
func copied[K comparable, V any](m map[K]V) map[K]V {
	next := make(map[K]V, len(m)+1)
	maps.Copy(next, m)
	return next
}
