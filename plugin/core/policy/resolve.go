package policy

import (
	"fmt"
	"maps"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/identity"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/limit"
)

// With returns the plan with another snapshot (nil: the config alone). Its Rules may read more facts and headers than
// the config's own. With is cheap: it compiles the rules only, and only if the snapshot has other needs than the one
// before.
func (p *Plan) With(snapshot *Snapshot) *Plan {
	next := *p
	next.snapshot, next.rows, next.candidate, next.enforces = snapshot, namespaceRows{}, nil, nil
	needs := p.ownNeeds(p.config)
	if snapshot != nil {
		next.rows = snapshot.namespaces[p.namespace]
		needs = needs.union(snapshot.Needs(p.namespace))
		needs.Tier = len(p.tiers)+len(next.foreignTiers()) > 1
		p.addRowReserves(&needs, &next.rows)
	}
	if needs != p.needs {
		next.needs, next.Rules = needs, p.identityRules(needs)
	}
	if snapshot != nil && snapshot.candidate != nil {
		next.compileCandidate(p)
	}
	return &next
}

// Snapshot returns the snapshot beside the config, or nil without one.
func (p *Plan) Snapshot() *Snapshot { return p.snapshot }

// foreignTiers returns the tiers that the rows have and the config does not.
func (p *Plan) foreignTiers() map[string]bool {
	names := maps.Clone(p.snapshot.tiers)
	for name := range p.rows.tiers {
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
func (p *Plan) Faults() []Fault {
	if p.snapshot == nil {
		return nil
	}
	unknown := maps.Clone(p.snapshot.tenantsByTier)
	maps.DeleteFunc(unknown, func(tier string, _ int) bool { return tier == "" || p.hasTier(tier) })
	faults := append(p.reserveFaults(), p.unmetFaults()...)
	for tenant := range p.snapshot.Tenants() {
		if len(unknown) == 0 {
			break
		}
		if unknown[tenant.Tier] > 0 {
			delete(unknown, tenant.Tier)
			faults = append(faults, Fault{inTenants, tenant.ID, "tier", fmt.Sprintf(
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
	r.configMatches = p.patterns.match(id.Method, id.Path, r.configMatches)
	if len(r.configMatches) > 0 {
		r.Endpoint = p.patterns.list[r.configMatches[0]].text
	}
	if p.snapshot == nil {
		return
	}
	patterns := p.snapshot.endpoints.patterns
	r.rowMatches = patterns.match(id.Method, id.Path, r.rowMatches)
	if len(r.rowMatches) == 0 {
		return
	}
	narrowest := &patterns.list[r.rowMatches[0]]
	if len(r.configMatches) == 0 || relate(narrowest, &p.patterns.list[r.configMatches[0]]) == narrower {
		r.Endpoint = narrowest.text
	}
}

// activeOverride holds an override that applies to a request.
type activeOverride struct {
	*override
	rank int // of its endpoint or network among those that match, the narrowest first; those without one come last
}

// collectOverrides returns the rows of the request's tenant, and collects the overrides that apply now.
func (p *Plan) collectOverrides(id *identity.Identity, now limit.Micros, r *Resolution) (rows *tenantRows) {
	b := p.snapshot
	if b == nil {
		return nil
	}
	if id.Tenant.Kind == identity.Tenant {
		if rows = b.tenant(id.Tenant.ID); rows != nil {
			b.collectActive(rows.overrides, id, now, r)
		}
		if id.User.Kind == identity.User && b.targets[onUser]+b.targets[onUserEndpoint] > 0 {
			b.collectActive(b.overridesOf(subject{onUser, id.Tenant.ID, id.User.ID}), id, now, r)
		}
	}
	if id.Credential != "" && b.targets[onCredential] > 0 {
		b.collectActive(b.overridesOf(subject{onCredential, "", id.Credential}), id, now, r)
	}
	r.networkOverrides = b.addressOverrides(id, r.networkOverrides)
	b.collectActive(r.networkOverrides, id, now, r)
	if b.targets[onTag] > 0 {
		for _, tag := range id.Tags {
			b.collectActive(b.overridesOf(subject{onTag, "", tag}), id, now, r)
		}
	}
	if b.targets[onEndpointOfAll] > 0 {
		for _, i := range r.rowMatches {
			b.collectActive(b.overridesOf(subject{onEndpointOfAll, "", b.endpoints.patterns.list[i].text}), id, now, r)
		}
	}
	return rows
}

// collectActive adds those of a list that apply to the request.
func (s *Snapshot) collectActive(list []*override, id *identity.Identity, now limit.Micros, r *Resolution) {
	for _, o := range list {
		if !o.activeAt(now) || (o.tenant != "" && (id.Tenant.Kind != identity.Tenant || o.tenant != id.Tenant.ID)) {
			continue
		}
		rank, ok := s.rank(o.endpoint, r)
		if !ok || (o.kind == exempt && o.endpoint != "" && !isUnambiguous(id)) {
			continue
		}
		if o.target == onIP {
			rank = -int(o.bits)
		}
		r.overrides = append(r.overrides, activeOverride{o, rank})
	}
}

// rank returns the position of a row's endpoint among those that match the request, the narrowest first; no endpoint
// comes last. It reports false if the endpoint does not match.
func (s *Snapshot) rank(endpoint string, r *Resolution) (int, bool) {
	if endpoint == "" {
		return len(r.rowMatches), true
	}
	for position, i := range r.rowMatches {
		if s.endpoints.patterns.list[i].text == endpoint {
			return position, true
		}
	}
	return 0, false
}

// applyBanOrExemption sets whether the request is banned or exempt.
func (r *Resolution) applyBanOrExemption() {
	var strongest *activeOverride
	for i := range r.overrides {
		o := &r.overrides[i]
		if o.kind != ban && o.kind != exempt {
			continue
		}
		if strongest == nil || precede(strongest.override, o.override, strongest.rank, o.rank) == secondWins {
			strongest = o
		}
	}
	if strongest != nil {
		r.Banned, r.Exempt, r.Override = strongest.kind == ban, strongest.kind == exempt, strongest.id
		if r.Banned {
			r.Until = strongest.expires
		} else {
			r.Exemption = Exemption{By: targetNames[strongest.target], Override: strongest.id}
		}
	}
}

// applyOverrides changes the limit of a bound by the overrides that cover it: first by the strongest commercial one,
// then by a detector's penalty.
func (r *Resolution) applyOverrides(b *Bound) {
	var commercial, penalty *activeOverride
	for i := range r.overrides {
		o := &r.overrides[i]
		if o.kind == ban || o.kind == exempt || !o.covers(b) {
			continue
		}
		if o.detector {
			penalty = stronger(penalty, o)
		} else {
			commercial = stronger(commercial, o)
		}
	}
	if commercial != nil {
		if changed := commercial.apply(b.Policy); changed != b.Policy {
			b.Policy, b.Override = changed, commercial.id
		}
	}
	if penalty != nil {
		if changed := penalty.apply(b.Policy); changed != b.Policy {
			b.Policy, b.Penalty = changed, penalty.id
		}
	}
}

// stronger returns which of two overrides of one source applies; a may be nil.
func stronger(a, b *activeOverride) *activeOverride {
	if a == nil || precede(a.override, b.override, a.rank, b.rank) == secondWins {
		return b
	}
	return a
}

// Where a tier comes from, beside the sources that a config names.
const (
	TierOfRow     = "row"     // the tenant's row
	TierOfDefault = "default" // the config's default
)

// tierOf returns the tier of a request's tenant, and where it comes from: that of its row, else what the request
// claims, if it exists; else the default tier. Where a header names no tier the header is the source: a client chose
// the default.
func (p *Plan) tierOf(rows *tenantRows, id *identity.Identity) (tier, source string) {
	claimed, source := id.Tier, id.TierSource
	if rows != nil && rows.tier != "" {
		claimed, source = rows.tier, TierOfRow
	}
	switch {
	case id.Tenant.Kind == identity.Tenant && p.hasTier(claimed):
		return claimed, source
	case claimed != "" && identity.IsHeader(source):
		return p.defaultTier, source
	}
	return p.defaultTier, TierOfDefault
}

// bindRows appends the bounds of the rows for a request. Of rows with one name that of its user goes before that of its
// credential, then come those of its networks (the narrowest first), its tenant, anonymous requests, its tier, and all
// requests. Of rows for the same, a narrower endpoint goes before a wider one, then the younger before the older.
func (p *Plan) bindRows(rows *tenantRows, id *identity.Identity, cost int64, r *Resolution) {
	s := p.snapshot
	if s == nil {
		return
	}
	if s.matches[forUser] > 0 && id.Tenant.Kind == identity.Tenant && id.User.Kind == identity.User {
		p.bindRowList(s.rowsOf(subject{onUser, id.Tenant.ID, id.User.ID}), id, cost, r)
	}
	if s.matches[forCredential] > 0 && id.Credential != "" {
		p.bindRowList(s.rowsOf(subject{onCredential, "", id.Credential}), id, cost, r)
	}
	for list := range s.rowsAround(id) {
		p.bindRowList(list, id, cost, r)
	}
	if rows != nil {
		p.bindRowList(rows.policies, id, cost, r)
	}
	if id.Tenant.Kind == identity.IP {
		p.bindRowList(p.rows.anonymous, id, cost, r)
	}
	p.bindRowList(p.rows.tiers[r.Tier], id, cost, r)
	p.bindRowList(p.rows.all, id, cost, r)
}

// bindRowList appends the bounds of a list of rows, in which those of one namespace and name stand together.
func (p *Plan) bindRowList(list []*row, id *identity.Identity, cost int64, r *Resolution) {
	for len(list) > 0 {
		n := 1
		for n < len(list) && list[n].Name == list[0].Name && list[n].namespace == list[0].namespace {
			n++
		}
		if list[0].namespace == p.namespace && !r.hasRow(list[0].Name) {
			if best := p.snapshot.narrowest(list[:n], r); best != nil {
				r.rows = append(r.rows, best)
				p.appendBound(best.variant(p.mode, p.failMode, p.accuracy), id, cost, r)
			}
		}
		list = list[n:]
	}
}

// narrowest returns the row of one name with the most specific endpoint that matches, or nil if none does.
func (s *Snapshot) narrowest(list []*row, r *Resolution) (best *row) {
	lowest := 0
	for _, candidate := range list {
		if rank, ok := s.rank(candidate.Endpoint, r); ok && (best == nil || rank < lowest) {
			best, lowest = candidate, rank
		}
	}
	return best
}

// hasRow reports whether a row has won a name already.
func (r *Resolution) hasRow(name string) bool {
	for _, row := range r.rows {
		if row.Name == name {
			return true
		}
	}
	return false
}
