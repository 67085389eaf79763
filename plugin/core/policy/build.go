package policy

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/settle"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

// NewSnapshot builds the snapshot of all rows, and returns a fault for every row that does not compile. Such a row
// keeps its last good value from the previous snapshot. Without a previous one (nil) the snapshot omits the row.
func NewSnapshot(rows Rows, previous *Snapshot) (*Snapshot, []Fault) {
	empty := &Snapshot{
		tiers:         map[string]bool{},
		tenantsByTier: map[string]int{},
		namespaces:    map[string]NamespaceRows{},
		endpoints:     newEndpoints(),
	}
	if previous == nil {
		previous = empty
	}
	b := builder{snapshot: empty, previous: previous, fresh: true, interned: map[string]string{}}
	b.putRows(rows)
	return b.finish(rows.Version)
}

// Apply returns the snapshot after changes, and a fault for every row that does not compile; b does not change. Such a
// row keeps its last good value. The snapshot has no candidate: see [Snapshot.WithCandidate]. The time grows with the
// changes and the shards that they touch, not with the snapshot.
func (s *Snapshot) Apply(changes Changes) (*Snapshot, []Fault) {
	next := *s
	next.candidate = nil
	next.tiers, next.tenantsByTier = maps.Clone(s.tiers), maps.Clone(s.tenantsByTier)
	next.namespaces, next.endpoints = maps.Clone(s.namespaces), s.endpoints.clone()
	w := builder{snapshot: &next, previous: s, interned: map[string]string{}}
	w.dropRows(changes.Removed)
	w.putRows(changes.Rows)
	return w.finish(changes.Version)
}

// builder makes a snapshot before it is published.
type builder struct {
	snapshot *Snapshot
	previous *Snapshot // holds the last good values
	fresh    bool      // the snapshot began empty: it shares no part with another
	owned    [shardCount]bool
	interned map[string]string       // one copy of each name that many rows have
	rules    map[string]*settle.Rule // one copy of each rule that many rows have, by its record

	ownedCosts map[string]bool // the namespaces whose costs no other snapshot shares; nil: costs were not changed yet
	faults     []Fault
}

// dropRows drops the rows of these keys.
func (b *builder) dropRows(removed RowKeys) {
	for _, name := range removed.Tiers {
		delete(b.snapshot.tiers, name)
	}
	for _, id := range removed.Tenants {
		b.dropTenant(id)
	}
	for _, id := range removed.Policies {
		if r, ok := b.snapshot.policies.get(id); ok {
			b.dropPolicy(r)
		}
	}
	for _, id := range removed.Overrides {
		if o, ok := b.snapshot.overrides.get(id); ok {
			b.dropOverride(o)
		}
	}
	for _, id := range removed.Costs {
		b.dropCost(id)
	}
}

// putRows adds rows; each replaces the row of its key.
func (b *builder) putRows(rows Rows) {
	for _, tier := range rows.Tiers {
		switch length := len(tier.Name); {
		case length == 0:
			b.faults = append(b.faults, Fault{inTiers, "", "name", "must be given"})
		case length > maxName:
			problem := fmt.Sprintf("must have at most %d bytes, got %d", maxName, length)
			b.faults = append(b.faults, Fault{inTiers, tier.Name, "name", problem})
		default:
			b.snapshot.tiers[tier.Name] = true
		}
	}
	for _, tenant := range rows.Tenants {
		b.putTenant(tenant)
	}
	for i := range rows.Policies {
		b.putPolicy(rows.Policies[i])
	}
	for i := range rows.Overrides {
		b.putOverride(rows.Overrides[i])
	}
	for _, cost := range rows.Costs {
		b.putCost(cost)
	}
}

func (b *builder) finish(version int64) (*Snapshot, []Fault) {
	b.snapshot.version = version
	b.snapshot.endpoints.compile()
	return b.snapshot, b.faults
}

// intern returns the one copy of a name that many rows share.
func (b *builder) intern(text string) string {
	if shared, ok := b.interned[text]; ok {
		return shared
	}
	b.interned[text] = text
	return text
}

// internRule replaces the rule by which a row settles, if any, by the one copy that many rows share.
func (b *builder) internRule(r *CompiledPolicy) {
	if r == nil || r.Settle == nil {
		return
	}
	record := r.Settle.Spec().JSON()
	if shared, ok := b.rules[record]; ok {
		r.Settle = shared
		return
	}
	if b.rules == nil {
		b.rules = map[string]*settle.Rule{}
	}
	b.rules[record] = r.Settle
}

// ownedShard returns a shard that may be changed, and copies it first if another snapshot shares it.
func (b *builder) ownedShard(i int) *shard {
	switch s := b.snapshot.shards[i]; {
	case s == nil:
		b.snapshot.shards[i] = &shard{tenants: map[string]*TenantRows{}}
	case !b.fresh && !b.owned[i]:
		b.snapshot.shards[i] = &shard{
			maps.Clone(s.tenants), maps.Clone(s.subjects), maps.Clone(s.networks), maps.Clone(s.subjectRows),
			maps.Clone(s.networkRows),
		}
	}
	b.owned[i] = true
	return b.snapshot.shards[i]
}

// editTenant replaces the rows of a tenant with an edited copy, and drops an empty one.
func (b *builder) editTenant(tenant string, edit func(*TenantRows)) {
	tenants := b.ownedShard(tenantShard(tenant)).tenants
	var next TenantRows
	if now := tenants[tenant]; now != nil {
		next = *now
	}
	edit(&next)
	if !next.hasRow && len(next.Policies) == 0 && len(next.overrides) == 0 {
		delete(tenants, tenant)
		return
	}
	tenants[tenant] = &next
}

func (b *builder) putTenant(in schema.Tenant) {
	if in.ID == "" || len(in.ID) > maxPart || len(in.Tier) > maxName {
		b.faults = append(b.faults, rowFaults(InTenants, in.ID, in.Faults())...)
		last := b.previous.Tenant(in.ID)
		if last == nil || !last.hasRow {
			return
		}
		in.Tier, in.TimeZone = last.Tier, last.timeZone
	}
	b.dropTenant(in.ID)
	b.editTenant(b.intern(in.ID), func(a *TenantRows) {
		a.hasRow, a.Tier, a.timeZone = true, b.intern(in.Tier), b.intern(in.TimeZone)
	})
	b.snapshot.tenantCount++
	b.snapshot.tenantsByTier[in.Tier]++
}

func (b *builder) dropTenant(id string) {
	a := b.snapshot.Tenant(id)
	if a == nil || !a.hasRow {
		return
	}
	if b.snapshot.tenantsByTier[a.Tier]--; b.snapshot.tenantsByTier[a.Tier] == 0 {
		delete(b.snapshot.tenantsByTier, a.Tier)
	}
	b.snapshot.tenantCount--
	b.editTenant(id, func(a *TenantRows) { a.hasRow, a.Tier, a.timeZone = false, "", "" })
}

// acquireEndpoint counts a use of the endpoint of a row's last good value, and reports whether it is compatible with
// the others.
func (b *builder) acquireEndpoint(text, table string, id int64) bool {
	err := b.snapshot.endpoints.acquire(text)
	if err != nil {
		b.faults = append(b.faults, endpointFaults(nil, table, id, err)...)
	}
	return err == nil
}

// endpointFaults returns the faults of a row whose endpoint is not accepted: what is wrong with the endpoint by itself,
// which says more, or else that it does not go with others.
func endpointFaults(own []Fault, table string, id int64, err error) []Fault {
	for _, f := range own {
		if f.Field == "endpoint" {
			return []Fault{f}
		}
	}
	return []Fault{{table, strconv.FormatInt(id, 10), "endpoint", err.Error()}}
}

func (b *builder) putOverride(in Override) {
	if o, ok := b.snapshot.overrides.get(in.ID); ok {
		b.dropOverride(o)
	}
	in.Tenant, in.Endpoint, in.Policy = b.intern(in.Tenant), b.intern(in.Endpoint), b.intern(in.Policy)
	in.Reason, in.Author = b.intern(in.Reason), b.intern(in.Author)
	o, faults := compileOverride(in)
	if o != nil {
		if err := b.snapshot.endpoints.acquire(o.endpoint); err != nil {
			o, faults = nil, endpointFaults(in.faults(), inOverrides, in.ID, err)
		}
	}
	if o == nil {
		b.faults = append(b.faults, faults...)
		last, ok := b.previous.overrides.get(in.ID)
		if !ok || !b.acquireEndpoint(last.endpoint, inOverrides, in.ID) {
			return
		}
		o = last
	}
	b.snapshot.overrides.insert(o, b.fresh)
	b.editTarget(o, 1, func(list []*CompiledOverride) []*CompiledOverride { return inserted(list, len(list), o) })
}

func (b *builder) dropOverride(o *CompiledOverride) {
	b.snapshot.endpoints.release(o.endpoint)
	b.snapshot.overrides.remove(o.ID)
	b.editTarget(o, -1, func(list []*CompiledOverride) []*CompiledOverride { return removed(list, o) })
}

// editTarget edits the list in which o is looked up, and counts o's target n times.
func (b *builder) editTarget(o *CompiledOverride, n int, edit func([]*CompiledOverride) []*CompiledOverride) {
	b.snapshot.targets[o.target] += n
	switch o.target {
	case onTenant, onEndpoint:
		b.editTenant(o.Tenant, func(a *TenantRows) { a.overrides = edit(a.overrides) })
	case onIP:
		prefix, err := ParseNetwork(o.targetName)
		if err != nil {
			return // unreachable: compileOverride has parsed it
		}
		b.snapshot.networkSizes = countSize(b.snapshot.networkSizes, prefix, n)
		shard := b.ownedShard(networkShard(prefix))
		shard.networks = editedList(shard.networks, prefix, edit)
	default:
		key := o.subject()
		shard := b.ownedShard(key.shard())
		shard.subjects = editedList(shard.subjects, key, edit)
	}
}

// countSize returns sizes with n more rows of the size of a network, the narrowest networks first.
func countSize(sizes []networkSize, network netip.Prefix, n int) []networkSize {
	s := networkSize{bits: network.Bits(), is4: network.Addr().Is4()}
	sizes = slices.Clone(sizes)
	i := slices.IndexFunc(sizes, func(other networkSize) bool { return other.bits == s.bits && other.is4 == s.is4 })
	if i < 0 {
		for i = 0; i < len(sizes) && sizes[i].bits > s.bits; {
			i++
		}
		sizes = slices.Insert(sizes, i, s)
	}
	if sizes[i].n += n; sizes[i].n == 0 {
		sizes = slices.Delete(sizes, i, i+1)
	}
	return sizes
}

// subject returns the key under which an override of a user, a credential, a tag, or an endpoint of all tenants is
// looked up.
func (o *CompiledOverride) subject() subject {
	switch o.target {
	case onCredential, onTag:
		return subject{o.target, "", o.targetName}
	case onEndpointOfAll:
		return subject{o.target, "", o.endpoint}
	default:
		return subject{onUser, o.Tenant, o.targetName}
	}
}

// inserted returns a copy of a list with an item inserted at i. It has no spare capacity: a snapshot has very many
// lists.
func inserted[T any](list []T, i int, item T) []T {
	return slices.Concat(list[:i], []T{item}, list[i:])
}

// removed returns a copy of a list without an item.
func removed[T comparable](list []T, item T) []T {
	return slices.DeleteFunc(slices.Clone(list), func(other T) bool { return other == item })
}
