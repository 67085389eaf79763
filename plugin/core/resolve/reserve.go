package resolve

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/identity"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/settle"
)

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

// addRowReserves adds the headers that carry the reservations of rows, as far as the config trusts them and there is
// room. Headers of the config come before headers of rows.
func (p *Plan) addRowReserves(n *policy.Needs, rows *policy.NamespaceRows) {
	for _, header := range rows.ReserveHeaders() {
		if p.trusts(header) {
			n.AddReserve(header)
		}
	}
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
	var faults []policy.Fault
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
		faults = append(faults, policy.Fault{
			Table: policy.InPolicies, Key: strconv.FormatInt(row.ID, 10), Field: "settle.reserve_header", Problem: problem,
		})
	}
	return faults
}
