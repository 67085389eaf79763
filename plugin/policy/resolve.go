package policy

import (
	"fmt"
	"maps"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/identity"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/limit"
)

// With is the plan's config beside a snapshot (nil: the config alone), in the place of the snapshot that it had. Its Rules
// may ask for more, or name more headers, than the config's own do. It is cheap: nothing is compiled but the rules, and
// those only if the snapshot needs something else than the one before.
func (s *Plan) With(snapshot *Snapshot) *Plan {
	next := *s
	next.snapshot, next.space = snapshot, space{}
	needs := s.ownNeeds(s.config)
	if snapshot != nil {
		next.space = snapshot.spaces[s.namespace]
		needs = needs.and(snapshot.Needs(s.namespace))
		needs.Tier = len(s.tiers)+len(next.foreignTiers()) > 1
	}
	if needs != s.needs {
		next.needs, next.Rules = needs, rules(s.config, needs)
	}
	return &next
}

// Snapshot is the snapshot beside the config; nil if there is none.
func (s *Plan) Snapshot() *Snapshot { return s.snapshot }

// foreignTiers are the tiers that the rows know and the config does not.
func (s *Plan) foreignTiers() map[string]bool {
	names := maps.Clone(s.snapshot.tiers)
	for name := range s.space.tiers {
		names[name] = true
	}
	for name := range s.tiers {
		delete(names, name)
	}
	return names
}

// Faults are the tiers that rows of tenants name and that neither the config nor a row knows: one fault each, with one
// of the tenants as its key. The default tier applies to all of them. The problem is told in the same words whichever
// tenants there are.
func (s *Plan) Faults() []Fault {
	if s.snapshot == nil {
		return nil
	}
	unknown := maps.Clone(s.snapshot.claimed)
	maps.DeleteFunc(unknown, func(tier string, _ int) bool { return tier == "" || s.knows(tier) })
	var faults []Fault
	for tenant := range s.snapshot.Tenants() {
		if len(unknown) == 0 {
			break
		}
		if unknown[tenant.Tier] > 0 {
			delete(unknown, tenant.Tier)
			faults = append(faults, Fault{inTenants, tenant.ID, "tier", fmt.Sprintf(
				"%q is a tier that neither the config nor a row knows: tier %q applies to this and all other tenants of it", tenant.Tier, s.defaultTier)})
		}
	}
	return faults
}

// locate finds the patterns that match, those of the config and those of the rows, and names the endpoint: the most
// specific of both. The config's name stays where neither is, so that it does not change with the rows.
func (s *Plan) locate(id *identity.Identity, r *Resolution) {
	r.Endpoint = id.Route
	r.matched = s.patterns.match(id.Method, id.Path, r.matched)
	if len(r.matched) > 0 {
		r.Endpoint = s.patterns.list[r.matched[0]].text
	}
	if s.snapshot == nil {
		return
	}
	theirs := s.snapshot.endpoints.patterns
	r.matching = theirs.match(id.Method, id.Path, r.matching)
	if len(r.matching) == 0 {
		return
	}
	if narrowest := &theirs.list[r.matching[0]]; len(r.matched) == 0 || relate(narrowest, &s.patterns.list[r.matched[0]]) == narrower {
		r.Endpoint = narrowest.text
	}
}

// standing is an override that holds for a request.
type standing struct {
	*override
	place int // of its endpoint or network among those that match, the narrowest first; those without one come last
}

// find looks up what the snapshot says of the request's tenant, and collects the overrides that hold now.
func (s *Plan) find(id *identity.Identity, now limit.Micros, r *Resolution) (who *account) {
	b := s.snapshot
	if b == nil {
		return nil
	}
	if id.Tenant.Kind == identity.Tenant {
		if who = b.account(id.Tenant.ID); who != nil {
			b.collect(who.overrides, id, now, r)
		}
		if id.User.Kind == identity.User && b.targets[onUser]+b.targets[onUserEndpoint] > 0 {
			b.collect(b.of(subject{onUser, id.Tenant.ID, id.User.ID}), id, now, r)
		}
	}
	if id.Credential != "" && b.targets[onCredential] > 0 {
		b.collect(b.of(subject{onCredential, "", id.Credential}), id, now, r)
	}
	r.around = b.around(id.IP, r.around)
	b.collect(r.around, id, now, r)
	return who
}

// collect keeps those of a list that hold for the request.
func (b *Snapshot) collect(list []*override, id *identity.Identity, now limit.Micros, r *Resolution) {
	for _, o := range list {
		if !o.alive(now) || (o.tenant != "" && (id.Tenant.Kind != identity.Tenant || o.tenant != id.Tenant.ID)) {
			continue
		}
		place, ok := b.place(o.endpoint, r)
		if !ok {
			continue
		}
		if o.target == onIP {
			place = -int(o.bits)
		}
		r.overrides = append(r.overrides, standing{o, place})
	}
}

// place is where a row's endpoint stands among those that match the request, the narrowest first; no endpoint comes
// after all of them. False if it does not match.
func (b *Snapshot) place(endpoint string, r *Resolution) (int, bool) {
	if endpoint == "" {
		return len(r.matching), true
	}
	for place, i := range r.matching {
		if b.endpoints.patterns.list[i].text == endpoint {
			return place, true
		}
	}
	return 0, false
}

// judge finds whether the request is banned or exempt.
func (r *Resolution) judge() {
	var strongest *standing
	for i := range r.overrides {
		o := &r.overrides[i]
		if o.kind != ban && o.kind != exempt {
			continue
		}
		if strongest == nil || precede(strongest.override, o.override, strongest.place, o.place) == secondWins {
			strongest = o
		}
	}
	if strongest != nil {
		r.Banned, r.Exempt, r.Override = strongest.kind == ban, strongest.kind == exempt, strongest.id
		if r.Banned {
			r.Until = strongest.expires
		}
	}
}

// override changes the limit of a bound as the overrides say that cover it: first the commercial one that holds, then
// a detector's penalty.
func (r *Resolution) override(b *Bound) {
	var commercial, penalty *standing
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
		if changed := commercial.on(b.Policy); changed != b.Policy {
			b.Policy, b.Override = changed, commercial.id
		}
	}
	if penalty != nil {
		if changed := penalty.on(b.Policy); changed != b.Policy {
			b.Policy, b.Penalty = changed, penalty.id
		}
	}
}

// stronger is which of two overrides of one source holds; a may be nil.
func stronger(a, b *standing) *standing {
	if a == nil || precede(a.override, b.override, a.place, b.place) == secondWins {
		return b
	}
	return a
}

// tierOf is the tier of a request's tenant: that of its row, else what the request claims, if it exists; else the
// default tier.
func (s *Plan) tierOf(who *account, id *identity.Identity) string {
	if id.Tenant.Kind != identity.Tenant {
		return s.defaultTier
	}
	if who != nil && who.tier != "" {
		return s.Tier(who.tier)
	}
	return s.Tier(id.Tier)
}

// bindRows appends the bounds of the rows for a tenant and for its tier. Of rows with one name a tenant's goes before
// a tier's, then a narrower endpoint before a wider one, then the younger before the older.
func (s *Plan) bindRows(who *account, id *identity.Identity, cost int64, r *Resolution) {
	if s.snapshot == nil {
		return
	}
	if who != nil {
		s.bindList(who.policies, id, cost, r)
	}
	s.bindList(s.space.tiers[r.Tier], id, cost, r)
}

// bindList appends the bounds of a list of rows, in which those of one namespace and name stand together.
func (s *Plan) bindList(list []*row, id *identity.Identity, cost int64, r *Resolution) {
	for len(list) > 0 {
		n := 1
		for n < len(list) && list[n].Name == list[0].Name && list[n].namespace == list[0].namespace {
			n++
		}
		if list[0].namespace == s.namespace && !r.replaced(list[0].Name) {
			if best := s.snapshot.narrowest(list[:n], r); best != nil {
				r.rows = append(r.rows, best)
				s.add(best.under(s.mode, s.failMode, s.accuracy), id, cost, r)
			}
		}
		list = list[n:]
	}
}

// narrowest is the row of one name whose endpoint is the most specific that matches; nil if none does.
func (b *Snapshot) narrowest(list []*row, r *Resolution) (best *row) {
	first := 0
	for _, candidate := range list {
		if place, ok := b.place(candidate.Endpoint, r); ok && (best == nil || place < first) {
			best, first = candidate, place
		}
	}
	return best
}

// replaced tells whether a row has won a name already.
func (r *Resolution) replaced(name string) bool {
	for _, row := range r.rows {
		if row.Name == name {
			return true
		}
	}
	return false
}
