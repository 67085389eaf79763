package resolve

import (
	"fmt"
	"maps"
	"slices"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/identity"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
)

// With returns the plan with another snapshot (nil: the config alone). Its Rules may read more facts and headers than
// the config's own. With compiles the rules, if the snapshot has other needs than the one before, and the candidate, if
// one is open. It does not compile the config again.
func (p *Plan) With(snapshot *policy.Snapshot) *Plan {
	next := *p
	next.snapshot, next.rows, next.candidate, next.enforces = snapshot, policy.NamespaceRows{}, nil, nil
	needs := p.ownNeeds(p.config)
	if snapshot != nil {
		next.rows = snapshot.Namespace(p.namespace)
		needs = needs.Union(snapshot.Needs(p.namespace))
		needs.Tier = len(p.tiers)+len(next.foreignTiers()) > 1
		for _, header := range next.rows.ReserveHeaders() { // after those of the config, as far as there is room
			if p.trusts(header) {
				needs.AddReserve(header)
			}
		}
	}
	if !slices.Equal(next.rows.Prices, p.prices.rows) { // else those that are compiled stay
		next.prices = &prices{llm: p.prices.llm, rows: next.rows.Prices}
	}
	if needs != p.needs {
		next.needs, next.Rules = needs, p.identityRules(needs)
	}
	if snapshot != nil && snapshot.Overlay() != nil {
		next.compileCandidate(p)
	}
	return &next
}

// Snapshot returns the snapshot beside the config, or nil without one.
func (p *Plan) Snapshot() *policy.Snapshot { return p.snapshot }

func (p *Plan) foreignTiers() map[string]bool {
	names := map[string]bool{}
	for _, tier := range p.snapshot.Tiers() {
		names[tier.Name] = true
	}
	for name := range p.rows.Tiers {
		names[name] = true
	}
	for name := range p.tiers {
		delete(names, name)
	}
	return names
}

// Faults returns one fault for each tier that rows of tenants name and that neither the config nor a row has. One of
// its tenants is the key; the default tier applies to all of them. The problem's text does not depend on the tenants.
// Faults also returns one for each header that rows take reservations from and that is not read, and one for each
// reason why rows apply to no request ([Plan.Unmet]).
func (p *Plan) Faults() []policy.Fault {
	if p.snapshot == nil {
		return nil
	}
	unknown := p.snapshot.TenantsByTier()
	maps.DeleteFunc(unknown, func(tier string, _ int) bool { return tier == "" || p.hasTier(tier) })
	faults := append(p.reserveFaults(), p.unmetFaults()...)
	for tenant := range p.snapshot.Tenants() {
		if len(unknown) == 0 {
			break
		}
		if unknown[tenant.Tier] > 0 {
			delete(unknown, tenant.Tier)
			faults = append(faults, policy.Fault{Table: policy.InTenants, Key: tenant.ID, Field: "tier", Problem: fmt.Sprintf(
				"neither the config nor a row defines tier %q: tier %q applies to this and all other tenants of it",
				tenant.Tier, p.defaultTier)})
		}
	}
	return faults
}

// matchEndpoint finds the patterns of the config and of the rows that match, and sets the endpoint to the most
// specific. If neither is more specific, the config's stays, so that it does not change with the rows.
func (p *Plan) matchEndpoint(id *identity.Identity, r *Resolution) {
	r.Endpoint = id.Route
	r.configMatches = p.patterns.Match(id.Method, id.Path, r.configMatches)
	if len(r.configMatches) > 0 {
		r.Endpoint = p.patterns.Text(r.configMatches[0])
	}
	if p.snapshot == nil {
		return
	}
	rows := p.snapshot.Endpoints()
	r.rowMatches = rows.Match(id.Method, id.Path, r.rowMatches)
	if len(r.rowMatches) == 0 {
		return
	}
	if len(r.configMatches) == 0 || rows.IsNarrower(r.rowMatches[0], p.patterns, r.configMatches[0]) {
		r.Endpoint = rows.Text(r.rowMatches[0])
	}
}

func (r *Resolution) applyBanOrExemption() {
	o := r.overrides.BanOrExemption()
	if o == nil {
		return
	}
	r.Banned, r.Exempt, r.Override = o.IsBan(), o.IsExemption(), o.ID
	if r.Banned {
		r.Until = o.Expires
	} else {
		r.Exemption = Exemption{By: o.TargetText(), Override: o.ID}
	}
}

// Where a tier comes from, beside the sources that a config names.
const (
	TierOfRow     = "row"     // the tenant's row
	TierOfDefault = "default" // the config's default
)

// tierOf returns the tier of a request's tenant, and where it comes from: the tier of its row, else what the request
// claims, if it exists; else the default tier. Where a header names no tier the header is the source: a client chose
// the default.
func (p *Plan) tierOf(rows *policy.TenantRows, id *identity.Identity) (tier, source string) {
	claimed, source := id.Tier, id.TierSource
	if rows != nil && rows.Tier != "" {
		claimed, source = rows.Tier, TierOfRow
	}
	switch {
	case id.Tenant.Kind == identity.Tenant && p.hasTier(claimed):
		return claimed, source
	case claimed != "" && identity.IsHeader(source):
		return p.defaultTier, source
	}
	return p.defaultTier, TierOfDefault
}

// bindRows appends the bounds of the rows for a request. Of rows with one name the row of its user goes before the row
// of its credential, then come the rows of its networks (the narrowest first), its tenant, anonymous requests, its
// tier, and all requests. Of rows for the same, a narrower endpoint goes before a wider one, then the younger before
// the older.
func (p *Plan) bindRows(rows *policy.TenantRows, id *identity.Identity, cost int64, r *Resolution) {
	s := p.snapshot
	if s == nil {
		return
	}
	p.bindRowList(s.UserPolicies(id), id, cost, r)
	p.bindRowList(s.CredentialPolicies(id), id, cost, r)
	for list := range s.NetworkPolicies(id) {
		p.bindRowList(list, id, cost, r)
	}
	if rows != nil {
		p.bindRowList(rows.Policies, id, cost, r)
	}
	if id.Tenant.Kind == identity.IP {
		p.bindRowList(p.rows.Anonymous, id, cost, r)
	}
	p.bindRowList(p.rows.Tiers[r.Tier], id, cost, r)
	p.bindRowList(p.rows.All, id, cost, r)
}

// bindRowList appends the bounds of a list of rows, in which rows of one namespace and name stand together.
func (p *Plan) bindRowList(list []*policy.CompiledPolicy, id *identity.Identity, cost int64, r *Resolution) {
	for len(list) > 0 {
		n := 1
		for n < len(list) && list[n].Name == list[0].Name && list[n].Namespace == list[0].Namespace {
			n++
		}
		for i := 0; r.considered != nil && list[0].Namespace == p.namespace && i < n; i++ {
			*r.considered = append(*r.considered, &list[i].Policy)
		}
		if list[0].Namespace == p.namespace && !r.hasRow(list[0].Name) {
			if best := p.narrowest(list[:n], r); best != nil {
				r.rows = append(r.rows, best)
				p.appendBound(best.Variant(p.modes), id, cost, r)
			}
		}
		list = list[n:]
	}
}

// narrowest returns the row of one name with the most specific endpoint that matches, or nil if none does.
func (p *Plan) narrowest(list []*policy.CompiledPolicy, r *Resolution) (best *policy.CompiledPolicy) {
	lowest := 0
	for _, candidate := range list {
		if rank, ok := p.snapshot.Rank(candidate.Endpoint, r.rowMatches); ok && (best == nil || rank < lowest) {
			best, lowest = candidate, rank
		}
	}
	return best
}

// hasRow reports whether a row has won a name already.
func (r *Resolution) hasRow(name string) bool {
	return slices.ContainsFunc(r.rows, func(row *policy.CompiledPolicy) bool { return row.Name == name })
}
