package resolve

import (
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/identity"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

// CostCheck returns a function that returns why limits of a config, or rows of its namespace beside it, may deny every
// request of a cost. A nil plan is unknown: its limits are not compared.
func CostCheck(plan *Plan, rows []schema.Policy) func(schema.Cost) []string {
	var c schema.Config
	if plan != nil {
		c = *plan.config
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
	if len(p.rows.Costs) > 0 {
		for _, i := range r.rowMatches {
			endpoint := p.snapshot.Endpoints().Text(i)
			if row, ok := p.rows.Costs[endpoint]; ok {
				return RequestCost{Tokens: *row.Cost.Cost, From: RowCost, Row: row.ID, Endpoint: endpoint}
			}
		}
	}
	for _, i := range r.configMatches {
		if p.costs[i] >= 0 {
			return RequestCost{Tokens: p.costs[i], From: ConfigCost, Endpoint: p.patterns.Text(i)}
		}
	}
	return RequestCost{Tokens: 1, From: DefaultCost}
}
