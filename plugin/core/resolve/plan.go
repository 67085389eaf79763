// Package resolve finds out which limits apply to a request, and explains why.
//
// A [Plan] is the immutable, compiled set of all policies of one plugin config. [Plan.With] puts a [policy.Snapshot]
// beside it: the rows of a database at one version. [Plan.ResolveAt] resolves an identity to bounds, which are policies
// with their bucket keys:
//
//   - Policies with different names all apply. Of those with the same name one does: a row of the user, the credential,
//     the narrowest network, the tenant, anonymous requests, the tier or all requests, in this order, before the
//     config, and within each the one with the most specific endpoint.
//   - A request costs what it says, else what a row says of its endpoint, else what the config says, else 1 token.
//   - Overrides change what applies to a tenant, a user, an endpoint, a credential or an address.
//
// [Plan.Explain] describes the result. [FromConfig] compiles what an administrator writes. Package policy compiles the
// rows, identity identifies requests.
package resolve

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/identity"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/limit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/settle"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

// Plan holds a compiled set of policies. It is immutable.
type Plan struct {
	Rules identity.Rules // how a request of this config is identified

	config      *schema.Config
	forCallers  bool                 // names come from identity.Caller, not from the sources in config
	needs       policy.Needs         // of the config and the snapshot
	snapshot    *policy.Snapshot     // nil: the config alone
	rows        policy.NamespaceRows // of the snapshot
	namespace   string
	modes       policy.Modes
	tiers       map[string][]*policy.Policy
	pools       map[string]uint8 // of Redis, by tier; absent: the first
	defaultTier string
	anonymous   []*policy.Policy // nil: each anonymous address gets the limits of the default tier
	global      []*policy.Policy
	patterns    *policy.Patterns
	costs       []int64     // by pattern index; -1 where the pattern sets no cost
	exempt      *exemptions // nil: the config has none
	prices      *prices     // of models
	candidate   *Candidate  // nil: no candidate is open
	enforces    *Candidate  // whose plan this is as it decides for assigned tenants; nil: no candidate's
}

// Resolution holds what applies to one request. Its slices are reused. The zero value is ready to use.
type Resolution struct {
	Tier string // the tier that provides the limits; "" for anonymous requests with limits of their own
	// TierSource is where Tier comes from: TierOfRow, TierOfDefault or a source of the config, such as consumer.tag.tier;
	// "": the caller states it.
	TierSource string
	Namespace  string // of the plan's buckets
	Pool       uint8  // of Redis, that has the buckets, by its number
	Endpoint   string // the canonical endpoint: the most specific pattern that matches, else the route
	Bounds     []policy.Bound
	Cost       RequestCost // what the request costs where a policy has no cost of its own

	// UserRequired: a limit per user applies, enforced or in shadow mode by the config, but the request names no user.
	UserRequired bool

	Unpriced bool // a bound is
	Settles  bool // the policy of a bound settles: the request ends with a settlement
	Fair     bool // the policy of a bound is shared fairly

	Calls *settle.Calls // where the call of the request is read, with the prices in force; nil: no bound needs it

	Banned   bool         // deny, whatever Bounds are
	Until    limit.Micros // end of a ban; 0: it is permanent
	Override int64        // the id of the row that bans or exempts; meaningless without one

	Exempt    bool      // no limit applies: there are no bounds
	Preflight bool      // a CORS preflight: no limit of a tenant applies, and a tenant or user need not be named
	Exemption Exemption // what exempts the request, or lifts limits from it

	configMatches  []int                    // patterns of the config that match, most specific first
	rowMatches     []int                    // the same of the snapshot
	overrides      policy.ActiveOverrides   // active for the request
	rows           []*policy.CompiledPolicy // that replace the config's policies of their names
	zone           string                   // of the tenant's row; "": none
	exemptNetworks []netip.Prefix           // of the config's exemptions: those that the address is in
	exemptPatterns []int                    // of the config's exemptions: those that match
	considered     *[]*policy.Policy        // by bind, for explanations; nil: they are not recorded
	now            limit.Micros             // when the request arrived
	kept           []policy.Bound           // active ones that stay where a candidate is enforced
}

// Reset empties the resolution and keeps its memory.
func (r *Resolution) Reset() {
	r.overrides.Reset()
	clear(r.rows) // keep no reference to a snapshot that was replaced
	*r = Resolution{
		Bounds: r.Bounds[:0], configMatches: r.configMatches[:0], rowMatches: r.rowMatches[:0],
		overrides: r.overrides, rows: r.rows[:0],
		exemptNetworks: r.exemptNetworks[:0], exemptPatterns: r.exemptPatterns[:0], considered: r.considered,
	}
}

// ResolveAt fills r with the bounds of a request from id at an instant. Overrides that have not begun or have expired
// by then do not apply. It allocates only while r's slices grow, when an override or a row is first used for a policy
// or config, and for a request of a tenant that is assigned to a candidate with changes of shared limits.
func (p *Plan) ResolveAt(id *identity.Identity, now limit.Micros, r *Resolution) {
	p.resolve(id, now, r)
	if p.enforces != nil && !r.Exempt {
		p.enforces.keepShared(id, now, r)
	}
}

// resolve does what ResolveAt does, but for what assigned tenants share with others.
func (p *Plan) resolve(id *identity.Identity, now limit.Micros, r *Resolution) {
	r.Reset()
	r.Namespace, r.now = p.namespace, now
	p.matchEndpoint(id, r)
	var rows *policy.TenantRows
	if p.snapshot != nil {
		rows = p.snapshot.CollectOverrides(id, now, r.rowMatches, &r.overrides)
	}
	if r.applyBanOrExemption(); !r.Banned && !r.Exempt {
		p.applyExemption(id, r)
	}
	if r.Exempt {
		if p.hasTierOf(id) {
			r.Tier, r.TierSource = p.tierOf(rows, id)
		}
		return
	}
	p.bind(rows, id, r)
	if r.Preflight { // the other bounds stay: nothing proves that a browser sent the request
		r.Bounds = slices.DeleteFunc(r.Bounds, func(b policy.Bound) bool { return b.Key.Group == policy.ByTenant })
		r.UserRequired, r.Unpriced = false, false
		r.Settles = slices.ContainsFunc(r.Bounds, func(b policy.Bound) bool { return b.Policy.Reserves() })
	}
}

// OverridesOf returns the ids of the overrides that have changed the limit of one of r's bounds, in their order. Some
// may be 0, which is none.
func (r *Resolution) OverridesOf(b *policy.Bound) []int64 {
	ids := []int64{b.Override}
	if b.TopUp > 0 {
		ids = append(ids, r.overrides.TopUps(b)...)
	}
	return append(ids, b.Penalty)
}

// bind appends the bounds of a request, whose tenant has rows (nil: none).
func (p *Plan) bind(rows *policy.TenantRows, id *identity.Identity, r *Resolution) {
	r.Cost = p.requestCost(id, r)
	cost := r.Cost.Tokens
	r.zone = rows.Zone()
	hasTier := p.hasTierOf(id)
	if hasTier {
		r.Tier, r.TierSource = p.tierOf(rows, id)
		r.Pool = p.pools[r.Tier]
	}
	p.bindRows(rows, id, cost, r)
	switch {
	case hasTier:
		p.bindPolicies(p.tiers[r.Tier], id, cost, r)
	case id.Tenant.Kind != identity.Unidentified:
		p.bindPolicies(p.anonymous, id, cost, r)
	}
	p.bindPolicies(p.global, id, cost, r)
}

// hasTierOf reports whether the limits of a tier apply to the requests of an identity: of a tenant, or of an address
// that stands in for one where anonymous requests have no limits of their own.
func (p *Plan) hasTierOf(id *identity.Identity) bool {
	return id.Tenant.Kind == identity.Tenant || id.Tenant.Kind != identity.Unidentified && p.anonymous == nil
}

func (p *Plan) hasTier(tier string) bool {
	if _, ok := p.tiers[tier]; ok {
		return true
	}
	if p.snapshot == nil {
		return false
	}
	if _, ok := p.rows.Tiers[tier]; ok {
		return true
	}
	_, ok := p.snapshot.Tier(tier)
	return ok
}

// PoolOf returns the name of the pool of Redis that counts the requests of a tier, or of none (""). It returns "" if
// the config has no pools.
func (p *Plan) PoolOf(tier string) string {
	if len(p.config.RedisPools) == 0 || p.config.Strategy != schema.StrategyRedis {
		return ""
	}
	return p.config.PoolName(int(p.pools[tier]))
}

// TierWords returns what tenants read of a tier: its title and its price, each of its row, else of the config, or "".
func (p *Plan) TierWords(tier string) (title, price string) {
	var row policy.TierRow
	if p.snapshot != nil {
		row, _ = p.snapshot.Tier(tier)
	}
	for i := range p.config.Tiers {
		if t := &p.config.Tiers[i]; t.Name == tier {
			return cmp.Or(row.Title, t.Title), cmp.Or(row.PriceText, t.PriceText)
		}
	}
	return row.Title, row.PriceText
}

// Policies returns all policies of the config, in no particular order.
func (p *Plan) Policies() []*policy.Policy {
	all := slices.Concat(p.anonymous, p.global)
	for _, tier := range p.tiers {
		all = append(all, tier...)
	}
	return all
}

// TenantPolicies returns the policies of the config that requests of tenants can have: the policies of tiers in the
// order of their names, then the global ones.
func (p *Plan) TenantPolicies() []*policy.Policy {
	var list []*policy.Policy
	for _, tier := range p.Tiers() {
		list = append(list, p.tiers[tier]...)
	}
	return append(list, p.global...)
}

// Tiers returns the names of the config's tiers, sorted.
func (p *Plan) Tiers() []string { return slices.Sorted(maps.Keys(p.tiers)) }

// Mode returns the mode of the config as a whole: a policy may have another.
func (p *Plan) Mode() policy.Mode { return p.modes.Mode }

// Version returns the version of the rows beside the config, or 0 without rows.
func (p *Plan) Version() int64 {
	if p.snapshot == nil {
		return 0
	}
	return p.snapshot.Version()
}

// Namespace returns the namespace of the plan's buckets.
func (p *Plan) Namespace() string { return p.namespace }

// bindPolicies appends the bounds of a list of the config's policies. Policies of one name stand together, most
// specific first. So only the first that matches binds, and none if a row has the name.
func (p *Plan) bindPolicies(list []*policy.Policy, id *identity.Identity, cost int64, r *Resolution) {
	if r.considered != nil {
		*r.considered = append(*r.considered, list...)
	}
	for i := 0; i < len(list); i++ {
		next := list[i]
		if !r.matches(next) {
			continue
		}
		if !r.hasRow(next.Name) {
			p.appendBound(next, id, cost, r)
		}
		for i+1 < len(list) && list[i+1].Name == next.Name {
			i++
		}
	}
}

// appendBound appends the bound of a policy, changed by the overrides that cover it, unless id lacks the name that it
// is counted per.
func (p *Plan) appendBound(applied *policy.Policy, id *identity.Identity, cost int64, r *Resolution) {
	n := len(r.Bounds)
	r.Bounds = append(r.Bounds, policy.Bound{Policy: applied, Cost: cost, Pool: r.Pool})
	bound := &r.Bounds[n]
	if !applied.FillKey(p.namespace, id, &bound.Key) {
		r.Bounds = r.Bounds[:n]
		mayDeny := applied.Mode == policy.Enforce || p.modes.Mode != policy.Enforce
		r.UserRequired = r.UserRequired || applied.Scope.ByUser() && mayDeny
		return
	}
	if bound.Key.Group == policy.ByTenant {
		applied = applied.InZone(r.zone)
		bound.Policy = applied
	}
	if applied.Cost >= 0 {
		bound.Cost = applied.Cost
	}
	r.Fair = r.Fair || applied.Fair != nil
	switch {
	case applied.Settle != nil:
		r.Settles, bound.Cost = true, p.reserve(applied.Settle, id, bound.Cost)
		p.bindCall(id, bound, r)
	case applied.Limit.IsConcurrency():
		r.Settles, bound.Cost = true, min(bound.Cost, 1)
	}
	if r.overrides.Len() > 0 {
		r.overrides.Change(bound)
		if bound.Policy != applied && bound.Policy.Settle != nil { // a limit below the reservation would deny every request
			bound.Cost = min(bound.Cost, bound.Policy.Limit.Capacity())
		}
	}
}

func (r *Resolution) matches(p *policy.Policy) bool {
	return p.Pattern < 0 || slices.Contains(r.configMatches, p.Pattern)
}
