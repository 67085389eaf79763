package policy

import (
	"cmp"
	"fmt"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/identity"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/limit"
)

// ActiveOverrides holds the overrides that apply to one request. The zero value is empty.
type ActiveOverrides struct {
	list     []ActiveOverride
	networks []*CompiledOverride // of the networks that the address is in
}

// ActiveOverride holds an override that applies to a request.
type ActiveOverride struct {
	*CompiledOverride
	rank int // of its endpoint or network among those that match, the narrowest first; those without one come last
}

// Reset empties the set and keeps its memory.
func (a *ActiveOverrides) Reset() {
	clear(a.networks) // keep no reference to a snapshot that was replaced
	clear(a.list)
	a.list, a.networks = a.list[:0], a.networks[:0]
}

// Len returns the number of overrides.
func (a *ActiveOverrides) Len() int { return len(a.list) }

// CollectOverrides returns the rows of the request's tenant, and adds the overrides that apply now to found. endpoints
// are the patterns that match the request ([Snapshot.Endpoints]).
func (s *Snapshot) CollectOverrides(
	id *identity.Identity, now limit.Micros, endpoints []int, found *ActiveOverrides,
) (rows *TenantRows) {
	rows, found.networks = s.visitOverrides(id, endpoints, found.networks, func(list []*CompiledOverride) {
		s.collectActive(list, id, now, endpoints, found)
	})
	return rows
}

// visitOverrides calls visit with the overrides of an identity's tenant, user, credential, tags and address, and with
// overrides of endpoints of all tenants. It returns the rows of the tenant, and appends overrides of the address to
// networks.
func (s *Snapshot) visitOverrides(
	id *identity.Identity, endpoints []int, networks []*CompiledOverride, visit func([]*CompiledOverride),
) (rows *TenantRows, _ []*CompiledOverride) {
	if id.Tenant.Kind == identity.Tenant {
		if rows = s.Tenant(id.Tenant.ID); rows != nil {
			visit(rows.overrides)
		}
		if id.User.Kind == identity.User && (s.targets[onUser] || s.targets[onUserEndpoint]) {
			visit(s.overridesOf(subject{onUser, id.Tenant.ID, id.User.ID}))
		}
	}
	if id.Credential != "" && s.targets[onCredential] {
		visit(s.overridesOf(subject{onCredential, "", id.Credential}))
	}
	if s.targets[onTag] {
		for _, tag := range id.Tags {
			visit(s.overridesOf(subject{onTag, "", tag}))
		}
	}
	if s.targets[onEndpointOfAll] {
		for _, i := range endpoints {
			visit(s.overridesOf(subject{onEndpointOfAll, "", s.Endpoints().Text(i)}))
		}
	}
	networks = s.addressOverrides(id, networks)
	visit(networks)
	return rows, networks
}

func (s *Snapshot) collectActive(
	list []*CompiledOverride, id *identity.Identity, now limit.Micros, endpoints []int, found *ActiveOverrides,
) {
	for _, o := range list {
		if !o.ActiveAt(now) || (o.Tenant != "" && (id.Tenant.Kind != identity.Tenant || o.Tenant != id.Tenant.ID)) {
			continue
		}
		rank, ok := s.Rank(o.endpoint, endpoints)
		if !ok || (o.kind == exempt && o.endpoint != "" && !IsUnambiguous(id)) {
			continue
		}
		if o.target == onIP {
			rank = -int(o.bits)
		}
		found.list = append(found.list, ActiveOverride{o, rank})
	}
}

// OverridesFor returns the overrides of an identity's tenant, user, credential, address and tags, and overrides of the
// endpoints of all tenants.
func (s *Snapshot) OverridesFor(id *identity.Identity) (list []*CompiledOverride) {
	endpoints := make([]int, s.Endpoints().Len())
	for i := range endpoints {
		endpoints[i] = i
	}
	s.visitOverrides(id, endpoints, nil, func(found []*CompiledOverride) { list = append(list, found...) })
	return list
}

// BanOrExemption returns the override that bans or exempts the request, or nil if none does.
func (a *ActiveOverrides) BanOrExemption() *ActiveOverride {
	var strongest *ActiveOverride
	for i := range a.list {
		if o := &a.list[i]; o.IsBan() || o.IsExemption() {
			strongest = stronger(strongest, o)
		}
	}
	return strongest
}

// Change changes the limit of a bound by the overrides that cover it: first by the strongest commercial one, then by
// all top-ups, then by a detector's penalty.
func (a *ActiveOverrides) Change(b *Bound) {
	commercial, penalty := a.Strongest(b, false), a.Strongest(b, true)
	if commercial != nil {
		if changed := commercial.apply(b.Policy); changed != b.Policy {
			b.Policy, b.Override = changed, commercial.ID
		}
	}
	a.topUp(b)
	if penalty != nil {
		if changed := penalty.apply(b.Policy); changed != b.Policy {
			b.Policy, b.Penalty = changed, penalty.ID
		}
	}
}

// topUp adds the top-ups that cover a bound to its limit. The derived limits are cached one on top of another: the
// order of the list is always the same.
func (a *ActiveOverrides) topUp(b *Bound) {
	for i := range a.list {
		o := &a.list[i]
		if o.kind != topUp || !o.Covers(b) {
			continue
		}
		before := b.Policy.Limit.Spec().Quantity
		b.Policy = o.apply(b.Policy)
		b.TopUp += b.Policy.Limit.Spec().Quantity - before
	}
}

// TopUps returns the ids of the top-ups that cover a bound.
func (a *ActiveOverrides) TopUps(b *Bound) (ids []int64) {
	for i := range a.list {
		if o := &a.list[i]; o.kind == topUp && o.Covers(b) {
			ids = append(ids, o.ID)
		}
	}
	return ids
}

// Find returns the override with an id, or nil if it does not apply to the request.
func (a *ActiveOverrides) Find(id int64) *ActiveOverride {
	for i := range a.list {
		if a.list[i].ID == id {
			return &a.list[i]
		}
	}
	return nil
}

// Strongest returns the override of one source that applies to a bound, or nil if none covers it.
func (a *ActiveOverrides) Strongest(b *Bound, detector bool) *ActiveOverride {
	var found *ActiveOverride
	for i := range a.list {
		o := &a.list[i]
		if (o.kind == customLimit || o.kind == multiplier) && o.Detector == detector && o.Covers(b) {
			found = stronger(found, o)
		}
	}
	return found
}

// stronger returns which of two overrides of one source applies; a may be nil.
func stronger(a, b *ActiveOverride) *ActiveOverride {
	if a == nil {
		return b
	}
	if order, _ := decidePrecedence(a.CompiledOverride, b.CompiledOverride, a.rank, b.rank); order > 0 {
		return b
	}
	return a
}

// WhyBefore returns in words that a winner applies and a loser does not, and by what criterion.
func WhyBefore(winner, loser *ActiveOverride) string {
	_, by := decidePrecedence(winner.CompiledOverride, loser.CompiledOverride, winner.rank, loser.rank)
	reason := [numberOfCriteria]string{
		byKind:       "a ban goes before an exemption",
		byEnd:        "its ban lasts longer",
		byStrictness: "its factor is smaller",
		byTarget: fmt.Sprintf("%s is more specific than %s",
			targetNames[winner.target], targetNames[loser.target]),
		byNarrowness: "its endpoint is narrower",
		byLimitKind:  "a custom limit goes before a multiplier",
		byPolicy:     "it names its policy",
		byStart:      "it starts later",
		byAge:        "it is younger",
	}[by]
	if by == byNarrowness && winner.target == onIP {
		reason = "its network is narrower"
	}
	return fmt.Sprintf("override %d goes before it: %s", winner.ID, reason)
}

// criterion names what decides which of two overrides applies.
type criterion uint8

const (
	byKind           criterion = iota // a ban goes before an exemption, and both go before changes of limits
	byEnd                             // of two bans the longer
	byStrictness                      // of two penalties the stricter
	byTarget                          // the more specific target
	byNarrowness                      // the narrower endpoint or network
	byLimitKind                       // a custom limit before a multiplier
	byPolicy                          // one that names its policy before one that does not
	byStart                           // the one that starts later
	byAge                             // the younger
	numberOfCriteria = iota
)

// decidePrecedence compares two overrides that both cover one request (bans and exemptions) or one of its bounds
// (custom limits and multipliers of one source). The one that applies is the smaller. It also returns what decided, and
// is the only place that defines their precedence:
//
//   - A ban beats all; of two bans the one that lasts longer sets the time to retry.
//   - An exemption beats all but a ban.
//   - Of two penalties of a detector the stricter one applies. [ActiveOverrides.Change] applies it to the result of a
//     commercial override, whatever the targets, so nothing masks it.
//   - Of two commercial overrides the more specific one applies: user+endpoint, user, credential, ip, endpoint, tenant,
//     and of two endpoints or networks the narrower. For one target a custom limit goes before a multiplier, one that
//     names its policy before one that does not, the one that starts later, and the younger before the older. One
//     without a start started before all others.
//
// A rank orders the endpoints or networks of overrides that match the request, the narrowest first.
func decidePrecedence(a, b *CompiledOverride, rankA, rankB int) (order int, by criterion) {
	if a.kind == ban || b.kind == ban || a.kind == exempt || b.kind == exempt {
		if a.kind != b.kind {
			return cmp.Compare(a.kind, b.kind), byKind
		}
		if a.kind == ban && a.Expires != b.Expires {
			// 0 is permanent: less 1 it is the largest of unsigned numbers.
			return cmp.Compare(uint64(b.Expires)-1, uint64(a.Expires)-1), byEnd
		}
	} else if a.Detector && a.quantity != b.quantity {
		return cmp.Compare(a.quantity, b.quantity), byStrictness
	}
	return compareSpecificity(a, b, rankA, rankB)
}

func compareSpecificity(a, b *CompiledOverride, rankA, rankB int) (order int, by criterion) {
	switch {
	case a.target != b.target:
		return cmp.Compare(a.target, b.target), byTarget
	case rankA != rankB:
		return cmp.Compare(rankA, rankB), byNarrowness
	case a.kind != b.kind:
		return cmp.Compare(a.kind, b.kind), byLimitKind
	case (a.policy == "") != (b.policy == ""):
		return cmp.Compare(min(len(b.policy), 1), min(len(a.policy), 1)), byPolicy
	case a.Starts != b.Starts:
		return cmp.Compare(b.Starts, a.Starts), byStart
	}
	return cmp.Compare(b.ID, a.ID), byAge
}
