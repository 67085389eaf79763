package resolve

import (
	"maps"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/identity"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/limit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/settle"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

// prices holds the prices of a config and of the rows beside it. It compiles those in force when a request first needs
// them, and again when another price has begun.
type prices struct {
	llm     schema.LLM
	rows    []*policy.PriceRow // by model, the earlier start first
	inForce atomic.Pointer[pricePeriod]
}

// pricePeriod holds the prices of all instants from one (inclusive) to another.
type pricePeriod struct {
	from, until limit.Micros
	calls       *settle.Calls
}

// at returns where calls are read, and the prices in force at an instant.
func (p *prices) at(now limit.Micros) *settle.Calls {
	if current := p.inForce.Load(); current != nil && current.from <= now && now < current.until {
		return current.calls
	}
	period, llm := &pricePeriod{until: limit.Never}, p.llm
	inForce := map[string]schema.ModelPrice{} // by pattern
	for _, price := range llm.Prices {
		inForce[price.Model] = price
	}
	for _, row := range p.rows {
		start := limit.Micros(row.StartsAt.UnixMicro())
		if start > now {
			period.until = min(period.until, start)
			continue
		}
		period.from = max(period.from, start)
		inForce[row.Model] = row.ModelPrice
	}
	llm.Prices = slices.SortedFunc(maps.Values(inForce), func(a, b schema.ModelPrice) int {
		return strings.Compare(a.Model, b.Model) // so that processes write the same record
	})
	period.calls = settle.NewCalls(llm)
	p.inForce.Store(period)
	return period.calls
}

// bindCall sets what a bound that settles reserves, by the model that the request states, and the prices that the
// request is settled by.
func (p *Plan) bindCall(id *identity.Identity, bound *policy.Bound, r *Resolution) {
	rule := bound.Policy.Settle
	// With an llm record calls are read wherever a limit settles. A caller states them: prices charge limits of money.
	stated := p.forCallers && bound.Policy.Unit != ""
	if p.config.LLM.Model != "" || rule.NeedsCalls() || stated {
		r.Calls = p.prices.at(r.now)
	}
	matches, known := rule.Match().Matches(id.Model, id.Provider)
	if known && !matches {
		bound.Unmatched, bound.Cost = true, 0
		return
	}
	mayDeny := bound.Policy.Mode == policy.Enforce || p.modes.Mode != policy.Enforce
	bound.Unpriced = rule.ByPrices() && mayDeny && matches && id.Model != "" && r.Calls.PriceOf(id.Model) == nil
	r.Unpriced = r.Unpriced || bound.Unpriced
}
