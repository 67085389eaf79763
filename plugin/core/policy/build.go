package policy

import (
	"cmp"
	"fmt"
	"maps"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/settle"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

// NewSnapshot builds the snapshot of all rows, and returns a fault for every row that does not compile. Such a row
// keeps its last good value from the previous snapshot. Without a previous one (nil) the snapshot omits the row.
func NewSnapshot(rows Rows, previous *Snapshot) (*Snapshot, []Fault) {
	empty := &Snapshot{
		tiers:         map[string]TierRow{},
		tenantsByTier: map[string]int{},
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
	next.endpoints = s.endpoints.clone()
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
	faults   []Fault
}

func (b *builder) dropRows(removed RowKeys) {
	for _, name := range removed.Tiers {
		delete(b.snapshot.tiers, name)
	}
	for _, id := range removed.Tenants {
		b.dropTenant(id)
	}
	drop(b, &b.snapshot.policies, removed.Policies...)
	drop(b, &b.snapshot.overrides, removed.Overrides...)
	drop(b, &b.snapshot.costs, removed.Costs...)
	drop(b, &b.snapshot.prices, removed.Prices...)
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
			b.snapshot.tiers[tier.Name] = tier
		}
	}
	for _, tenant := range rows.Tenants {
		b.putTenant(tenant)
	}
	for i, r := range compileAll(rows.Policies) {
		b.putPolicy(&rows.Policies[i], r)
	}
	for i := range rows.Overrides {
		b.putOverride(rows.Overrides[i])
	}
	for _, cost := range rows.Costs {
		b.putCost(cost)
	}
	for _, price := range rows.Prices {
		b.putPrice(price)
	}
}

func (b *builder) finish(version int64) (*Snapshot, []Fault) {
	b.snapshot.version = version
	b.snapshot.endpoints.compile()
	b.snapshot.summarize()
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
	record := fmt.Sprintf("%s %q", r.Settle.Spec().JSON(), cmp.Or(r.Settle.Match(), &schema.Match{}))
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
		b.snapshot.shards[i] = &shard{maps.Clone(s.tenants), maps.Clone(s.policies), maps.Clone(s.overrides)}
	}
	b.owned[i] = true
	return b.snapshot.shards[i]
}

// editTenant replaces the rows of a tenant with an edited copy, and drops an empty one.
func (b *builder) editTenant(tenant string, edit func(*TenantRows)) {
	tenants := b.ownedShard(shardOf(tenant)).tenants
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
		b.report(InTenants, in.ID, in.Faults())
		last := b.previous.Tenant(in.ID)
		if last == nil || !last.hasRow {
			return
		}
		in.Tier, in.TimeZone = last.Tier, last.timeZone
	}
	b.dropTenant(in.ID)
	knowsZone := IsZone(in.TimeZone)
	if !knowsZone { // the rest of the row is in force
		must := schema.FieldNamed[schema.Tenant]("time_zone").Must()
		b.faults = append(b.faults, Fault{InTenants, in.ID, "time_zone", must})
	}
	b.editTenant(b.intern(in.ID), func(a *TenantRows) {
		a.hasRow, a.Tier, a.timeZone, a.knowsZone = true, b.intern(in.Tier), b.intern(in.TimeZone), knowsZone
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
	b.editTenant(id, func(a *TenantRows) { a.hasRow, a.knowsZone, a.Tier, a.timeZone = false, false, "", "" })
}

func (b *builder) report(table, key string, faults []schema.Fault) {
	for _, f := range faults {
		b.faults = append(b.faults, Fault{table, key, f.Path, f.Message})
	}
}

// put puts a compiled row in place of the one with its id. If the row does not compile (nil), or its endpoint does not
// go with others, its last good value stays. own returns what is wrong with the row by itself.
func put[R row](
	b *builder, table string, rows, previous *index[R], id int64, r R, own func() []schema.Fault,
) {
	drop(b, rows, id) // first: the new endpoint may cross the old one
	var none R
	key := strconv.FormatInt(id, 10)
	if r == none {
		b.report(table, key, own())
	} else if err := b.snapshot.endpoints.acquire(r.pattern()); err != nil {
		b.report(table, key, endpointFaults(own(), err))
		r = none
	}
	if r == none {
		last, ok := previous.get(id)
		if !ok {
			return
		}
		if err := b.snapshot.endpoints.acquire(last.pattern()); err != nil {
			b.report(table, key, endpointFaults(nil, err))
			return
		}
		r = last
	}
	rows.insert(r, b.fresh)
	r.link(b, true)
}

func drop[R row](b *builder, rows *index[R], ids ...int64) {
	for _, id := range ids {
		if r, ok := rows.get(id); ok {
			b.snapshot.endpoints.release(r.pattern())
			rows.remove(id)
			r.link(b, false)
		}
	}
}

// endpointFaults returns the faults of a row whose endpoint is not accepted: what is wrong with the endpoint by itself,
// which says more, or else that it does not go with others.
func endpointFaults(own []schema.Fault, err error) []schema.Fault {
	for _, f := range own {
		if f.Path == "endpoint" {
			return []schema.Fault{f}
		}
	}
	return []schema.Fault{{Path: "endpoint", Message: err.Error()}}
}

// compileAll compiles policies on all cores.
func compileAll(rows []PolicyRow) []*CompiledPolicy {
	compiled := make([]*CompiledPolicy, len(rows))
	var group sync.WaitGroup
	size := len(rows)/runtime.GOMAXPROCS(0) + 1
	for from := 0; from < len(rows); from += size {
		group.Go(func() {
			for i := from; i < min(from+size, len(rows)); i++ {
				compiled[i] = compileRow(&rows[i])
			}
		})
	}
	group.Wait()
	return compiled
}

// putPolicy puts r, which in compiles to; nil: it has faults.
func (b *builder) putPolicy(in *PolicyRow, r *CompiledPolicy) {
	if r != nil {
		r.Namespace, r.Tier, r.tenant = b.intern(r.Namespace), b.intern(r.Tier), b.intern(r.tenant)
		r.Name, r.Endpoint = b.intern(r.Name), b.intern(r.Endpoint)
	}
	b.internRule(r)
	own := func() []schema.Fault { return Faults(in.Policy) }
	put(b, InPolicies, &b.snapshot.policies, &b.previous.policies, in.ID, r, own)
}

func (r *CompiledPolicy) link(b *builder, linked bool) {
	edit := func(list []*CompiledPolicy) []*CompiledPolicy {
		if linked {
			i, _ := slices.BinarySearchFunc(list, r, compareRows)
			return inserted(list, i, r)
		}
		return removed(list, r)
	}
	switch r.match {
	case forTenant:
		b.editTenant(r.tenant, func(a *TenantRows) { a.Policies = edit(a.Policies) })
	case forUser, forCredential, forNetwork:
		key := r.match.subject(r.tenant, r.Policy.subject)
		editList(&b.ownedShard(shardOf(key.name)).policies, key, edit)
	default: // each build lists the policies of a namespace anew
	}
}

// compareRows orders policies by namespace and name, the younger row first.
func compareRows(a, b *CompiledPolicy) int {
	return cmp.Or(
		strings.Compare(a.Namespace, b.Namespace), strings.Compare(a.Name, b.Name), cmp.Compare(b.Row, a.Row),
	)
}

// subject returns the key under which the policies of a match are looked up: for a user, a credential or a network.
func (m match) subject(tenant, name string) subject {
	switch m {
	case forUser:
		return subject{onUser, tenant, name}
	case forCredential:
		return subject{onCredential, "", name}
	default:
		return onNetwork(name)
	}
}

func (b *builder) putOverride(in Override) {
	in.Tenant, in.Endpoint, in.Policy = b.intern(in.Tenant), b.intern(in.Endpoint), b.intern(in.Policy)
	in.Reason, in.Author = b.intern(in.Reason), b.intern(in.Author)
	own := func() []schema.Fault { return OverrideFaults(in.Override) }
	put(b, inOverrides, &b.snapshot.overrides, &b.previous.overrides, in.ID, compileOverride(in), own)
}

func (o *CompiledOverride) link(b *builder, linked bool) {
	edit := func(list []*CompiledOverride) []*CompiledOverride {
		if linked {
			return inserted(list, len(list), o)
		}
		return removed(list, o)
	}
	if o.target == onTenant || o.target == onEndpoint {
		b.editTenant(o.Tenant, func(a *TenantRows) { a.overrides = edit(a.overrides) })
		return
	}
	key := o.subject()
	editList(&b.ownedShard(shardOf(key.name)).overrides, key, edit)
}

// subject returns the key under which an override of a user, a credential, a network, a tag, or an endpoint of all
// tenants is looked up.
func (o *CompiledOverride) subject() subject {
	switch o.target {
	case onIP:
		return onNetwork(o.targetName)
	case onCredential, onTag:
		return subject{o.target, "", o.targetName}
	case onEndpointOfAll:
		return subject{o.target, "", o.endpoint}
	default:
		return subject{onUser, o.Tenant, o.targetName}
	}
}

// editList edits the list of a subject. An empty one is dropped.
func editList[R any](lists *map[subject][]R, key subject, edit func([]R) []R) {
	if *lists == nil {
		*lists = map[subject][]R{}
	}
	if list := edit((*lists)[key]); len(list) > 0 {
		(*lists)[key] = list
	} else {
		delete(*lists, key)
	}
}

// inserted returns a copy of a list with an item inserted at i. It has no spare capacity: a snapshot has very many
// lists.
func inserted[T any](list []T, i int, item T) []T {
	return slices.Concat(list[:i], []T{item}, list[i:])
}

func removed[T comparable](list []T, item T) []T {
	return slices.DeleteFunc(slices.Clone(list), func(other T) bool { return other == item })
}
