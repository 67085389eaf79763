package policy

import (
	"maps"
	"net/netip"
	"slices"
	"strconv"
)

// NewSnapshot builds the snapshot of all rows. The faults tell every row that does not compile. Of such a row the last good
// value is taken from the previous snapshot, if there is one (nil: there is none); otherwise the snapshot is without it.
func NewSnapshot(rows Rows, previous *Snapshot) (*Snapshot, []Fault) {
	empty := &Snapshot{tiers: map[string]bool{}, claimed: map[string]int{}, spaces: map[string]space{}, endpoints: newEndpoints()}
	if previous == nil {
		previous = empty
	}
	b := builder{snapshot: empty, previous: previous, fresh: true, names: map[string]string{}}
	b.add(rows)
	return b.finish(rows.Version)
}

// Apply is the snapshot after changes; b stays as it is. A row that does not compile is told in the faults, and its last
// good value stays. It takes time for the changes and the shards that they touch, not for the snapshot.
func (b *Snapshot) Apply(changes Changes) (*Snapshot, []Fault) {
	next := *b
	next.tiers, next.claimed = maps.Clone(b.tiers), maps.Clone(b.claimed)
	next.spaces, next.endpoints = maps.Clone(b.spaces), b.endpoints.copied()
	w := builder{snapshot: &next, previous: b, names: map[string]string{}}
	w.drop(changes.Gone)
	w.add(changes.Rows)
	return w.finish(changes.Version)
}

// builder makes a snapshot that nobody sees yet.
type builder struct {
	snapshot *Snapshot
	previous *Snapshot // has the last good values
	fresh    bool      // the snapshot began empty: nothing of it is shared with another
	owned    [shardCount]bool
	names    map[string]string // one copy of each name that many rows have
	faults   []Fault
}

// drop takes the rows of these keys out.
func (b *builder) drop(gone Gone) {
	for _, name := range gone.Tiers {
		delete(b.snapshot.tiers, name)
	}
	for _, id := range gone.Tenants {
		b.forgetTenant(id)
	}
	for _, id := range gone.Policies {
		if r, ok := b.snapshot.policies.get(id); ok {
			b.removePolicy(r)
		}
	}
	for _, id := range gone.Overrides {
		if o, ok := b.snapshot.overrides.get(id); ok {
			b.removeOverride(o)
		}
	}
}

// add puts rows in, each in the place of the one with its key.
func (b *builder) add(rows Rows) {
	for _, tier := range rows.Tiers {
		f := faultList{table: inTiers, key: tier.Name}
		f.tier("name", tier.Name)
		if tier.Name == "" {
			f.add("name", "must be given")
		}
		if b.faults = append(b.faults, f.list...); len(f.list) == 0 {
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
}

func (b *builder) finish(version int64) (*Snapshot, []Fault) {
	b.snapshot.version = version
	b.snapshot.endpoints.compile()
	return b.snapshot, b.faults
}

// name is the one copy of a name that many rows have.
func (b *builder) name(text string) string {
	if known, ok := b.names[text]; ok {
		return known
	}
	b.names[text] = text
	return text
}

// shard is a shard that may be changed.
func (b *builder) shard(i int) *shard {
	switch s := b.snapshot.shards[i]; {
	case s == nil:
		b.snapshot.shards[i] = &shard{accounts: map[string]*account{}, subjects: map[subject][]*override{}, networks: map[netip.Prefix][]*override{}}
	case !b.fresh && !b.owned[i]:
		b.snapshot.shards[i] = &shard{accounts: maps.Clone(s.accounts), subjects: maps.Clone(s.subjects), networks: maps.Clone(s.networks)}
	}
	b.owned[i] = true
	return b.snapshot.shards[i]
}

// change replaces what is known of a tenant by what edit makes of it, and forgets the tenant if nothing is left.
func (b *builder) change(tenant string, edit func(*account)) {
	accounts := b.shard(tenantShard(tenant)).accounts
	var next account
	if now := accounts[tenant]; now != nil {
		next = *now
	}
	edit(&next)
	if !next.known && len(next.policies) == 0 && len(next.overrides) == 0 {
		delete(accounts, tenant)
		return
	}
	accounts[tenant] = &next
}

func (b *builder) putTenant(in TenantRow) {
	f := faultList{table: inTenants, key: in.ID}
	f.part("id", in.ID)
	f.tier("tier", in.Tier)
	if in.ID == "" {
		f.add("id", "must be given")
	}
	if len(f.list) > 0 {
		b.faults = append(b.faults, f.list...)
		last := b.previous.account(in.ID)
		if last == nil || !last.known {
			return
		}
		in.Tier, in.TimeZone = last.tier, last.timeZone
	}
	b.forgetTenant(in.ID)
	b.change(b.name(in.ID), func(a *account) {
		a.known, a.tier, a.timeZone = true, b.name(in.Tier), b.name(in.TimeZone)
	})
	b.snapshot.tenants++
	b.snapshot.claimed[in.Tier]++
}

func (b *builder) forgetTenant(id string) {
	a := b.snapshot.account(id)
	if a == nil || !a.known {
		return
	}
	if b.snapshot.claimed[a.tier]--; b.snapshot.claimed[a.tier] == 0 {
		delete(b.snapshot.claimed, a.tier)
	}
	b.snapshot.tenants--
	b.change(id, func(a *account) { a.known, a.tier, a.timeZone = false, "", "" })
}

// putPolicy takes the old value of a row away before it looks at the new one, whose endpoint may only go with the
// others without it.
func (b *builder) putPolicy(in Row) {
	if r, ok := b.snapshot.policies.get(in.ID); ok {
		b.removePolicy(r)
	}
	in.Namespace, in.Tier, in.Tenant = b.name(in.Namespace), b.name(in.Tier), b.name(in.Tenant)
	in.Limit.Name, in.Limit.Endpoint = b.name(in.Limit.Name), b.name(in.Limit.Endpoint)
	r, faults := compileRow(in)
	if r == nil || !b.endpoint(r.Endpoint, inPolicies, in.ID) {
		b.faults = append(b.faults, faults...)
		last, ok := b.previous.policies.get(in.ID)
		if !ok || !b.endpoint(last.Endpoint, inPolicies, in.ID) {
			return
		}
		r = last
	}
	b.snapshot.policies.insert(r, b.fresh)
	s := b.space(r, 1)
	if r.tenant == "" {
		s.tiers = maps.Clone(s.tiers)
		s.tiers[r.Tier] = withRow(s.tiers[r.Tier], r)
		b.snapshot.spaces[r.namespace] = s
		return
	}
	b.change(r.tenant, func(a *account) { a.policies = withRow(a.policies, r) })
}

func (b *builder) removePolicy(r *row) {
	b.snapshot.endpoints.release(r.Endpoint)
	b.snapshot.policies.remove(r.Row)
	s := b.space(r, -1)
	if r.tenant != "" {
		b.change(r.tenant, func(a *account) { a.policies = without(a.policies, r) })
		return
	}
	s.tiers = maps.Clone(s.tiers)
	if s.tiers[r.Tier] = without(s.tiers[r.Tier], r); len(s.tiers[r.Tier]) == 0 {
		delete(s.tiers, r.Tier)
	}
	b.snapshot.spaces[r.namespace] = s
}

// space counts a row in its namespace.
func (b *builder) space(r *row, n int) space {
	s, ok := b.snapshot.spaces[r.namespace]
	if !ok {
		s.tiers = map[string][]*row{}
	}
	s.uses.count(&r.Policy, n)
	b.snapshot.spaces[r.namespace] = s
	return s
}

// endpoint counts a use of a row's endpoint, and tells whether it goes with the others.
func (b *builder) endpoint(text, table string, id int64) bool {
	err := b.snapshot.endpoints.acquire(text)
	if err != nil {
		b.faults = append(b.faults, Fault{table, strconv.FormatInt(id, 10), "endpoint", err.Error()})
	}
	return err == nil
}

func (b *builder) putOverride(in Override) {
	if o, ok := b.snapshot.overrides.get(in.ID); ok {
		b.removeOverride(o)
	}
	in.Tenant, in.Endpoint, in.Policy = b.name(in.Tenant), b.name(in.Endpoint), b.name(in.Policy)
	in.Reason, in.Author = b.name(in.Reason), b.name(in.Author)
	o, faults := compileOverride(in)
	if o == nil || !b.endpoint(o.endpoint, inOverrides, in.ID) {
		b.faults = append(b.faults, faults...)
		last, ok := b.previous.overrides.get(in.ID)
		if !ok || !b.endpoint(last.endpoint, inOverrides, in.ID) {
			return
		}
		o = last
	}
	b.snapshot.overrides.insert(o, b.fresh)
	b.aim(o, 1, func(list []*override) []*override { return with(list, len(list), o) })
}

func (b *builder) removeOverride(o *override) {
	b.snapshot.endpoints.release(o.endpoint)
	b.snapshot.overrides.remove(o.id)
	b.aim(o, -1, func(list []*override) []*override { return without(list, o) })
}

// aim edits the list of overrides where o is looked up.
func (b *builder) aim(o *override, n int, edit func([]*override) []*override) {
	b.snapshot.targets[o.target] += n
	switch o.target {
	case onTenant, onEndpoint:
		b.change(o.tenant, func(a *account) { a.overrides = edit(a.overrides) })
	case onIP:
		prefix, err := network(o.who)
		if err != nil {
			return // not so: it was parsed when the override was compiled
		}
		b.resize(prefix, n)
		networks := b.shard(networkShard(prefix)).networks
		if networks[prefix] = edit(networks[prefix]); len(networks[prefix]) == 0 {
			delete(networks, prefix)
		}
	default:
		s := o.subject()
		subjects := b.shard(s.shard()).subjects
		if subjects[s] = edit(subjects[s]); len(subjects[s]) == 0 {
			delete(subjects, s)
		}
	}
}

// resize counts the networks of one size.
func (b *builder) resize(network netip.Prefix, n int) {
	s := size{bits: network.Bits(), is4: network.Addr().Is4()}
	sizes := slices.Clone(b.snapshot.sizes)
	i := slices.IndexFunc(sizes, func(known size) bool { return known.bits == s.bits && known.is4 == s.is4 })
	if i < 0 {
		i, sizes = len(sizes), append(sizes, s)
	}
	if sizes[i].n += n; sizes[i].n == 0 {
		sizes = slices.Delete(sizes, i, i+1)
	}
	b.snapshot.sizes = sizes
}

// subject is where an override is looked up that is on somebody with a name.
func (o *override) subject() subject {
	if o.target == onCredential {
		return subject{onCredential, "", o.who}
	}
	return subject{onUser, o.tenant, o.who}
}

// withRow is a list of rows by namespace and name, the younger of one name first, with one more.
func withRow(list []*row, r *row) []*row {
	i := 0
	for i < len(list) && before(list[i], r) {
		i++
	}
	return with(list, i, r)
}

func before(a, b *row) bool {
	if a.namespace != b.namespace {
		return a.namespace < b.namespace
	}
	if a.Name != b.Name {
		return a.Name < b.Name
	}
	return a.Row > b.Row
}

// with is a copy of a list with one more at i. It has no spare room: there are very many such lists.
func with[T any](list []T, i int, item T) []T {
	longer := make([]T, len(list)+1)
	copy(longer, list[:i])
	longer[i] = item
	copy(longer[i+1:], list[i:])
	return longer
}

// without is a copy of a list without an item.
func without[T comparable](list []T, item T) []T {
	shorter := make([]T, 0, max(len(list)-1, 0))
	for _, other := range list {
		if other != item {
			shorter = append(shorter, other)
		}
	}
	return shorter
}
