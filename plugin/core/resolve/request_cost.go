package resolve

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/identity"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/settle"
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

func (p *Plan) trusts(header string) bool {
	return slices.ContainsFunc(p.config.TrustedHeaders, func(name string) bool { return strings.EqualFold(name, header) })
}

// reserveFaults returns a fault for each header that carries reservations of rows and is not read under the config. A
// row with that header is the key.
func (p *Plan) reserveFaults() []policy.Fault {
	unread := map[string]bool{}
	for _, header := range p.rows.ReserveHeaders() {
		if !slices.Contains(p.needs.Reserves[:], header) {
			unread[header] = true
		}
	}
	if len(unread) == 0 || p.forCallers {
		return nil
	}
	return p.rowFaults(func(row schema.Policy) (field, problem string) {
		if row.Settle == nil || !unread[row.Settle.ReserveHeader] {
			return "", ""
		}
		header := row.Settle.ReserveHeader
		if delete(unread, header); p.trusts(header) {
			return "settle.reserve_header", fmt.Sprintf("is not read, because a config reads reservations from at most %d "+
				"headers: requests reserve as without it", identity.MaxReserveHeaders)
		}
		return "settle.reserve_header", fmt.Sprintf("is not in the config's trusted_headers, so %s is not read: requests "+
			"reserve as without it", header)
	})
}

// rowFaults returns the faults of the namespace's rows in which find finds a problem.
func (p *Plan) rowFaults(find func(schema.Policy) (field, problem string)) (faults []policy.Fault) {
	for row := range p.snapshot.Policies() {
		if row.Namespace != p.namespace {
			continue
		}
		if field, problem := find(row.Policy); problem != "" {
			faults = append(faults, policy.Fault{
				Table: policy.InPolicies, Key: strconv.FormatInt(row.ID, 10), Field: field, Problem: problem,
			})
		}
	}
	return faults
}
