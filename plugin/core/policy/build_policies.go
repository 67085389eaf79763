package policy

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"
	"strings"
)

// putPolicy drops the old value of a row before it compiles the new one: the new endpoint may cross the old one.
func (b *builder) putPolicy(in PolicyRow) {
	if r, ok := b.snapshot.policies.get(in.ID); ok {
		b.dropPolicy(r)
	}
	in.Namespace, in.Tier, in.Tenant = b.intern(in.Namespace), b.intern(in.Tier), b.intern(in.Tenant)
	in.Limit.Name, in.Limit.Endpoint = b.intern(in.Limit.Name), b.intern(in.Limit.Endpoint)
	r, faults := compileRow(in)
	b.internRule(r)
	if r != nil {
		if err := b.snapshot.endpoints.acquire(r.Endpoint); err != nil {
			r, faults = nil, endpointFaults(in.faults(), InPolicies, in.ID, err)
		}
	}
	if r == nil {
		b.faults = append(b.faults, faults...)
		last, ok := b.previous.policies.get(in.ID)
		if !ok || !b.acquireEndpoint(last.Endpoint, InPolicies, in.ID) {
			return
		}
		r = last
	}
	b.snapshot.policies.insert(r, b.fresh)
	b.countRow(r, 1)
	b.editRows(r, func(list []*CompiledPolicy) []*CompiledPolicy { return insertRow(list, r) })
}

func (b *builder) dropPolicy(r *CompiledPolicy) {
	b.snapshot.endpoints.release(r.Endpoint)
	b.snapshot.policies.remove(r.Row)
	b.countRow(r, -1)
	b.editRows(r, func(list []*CompiledPolicy) []*CompiledPolicy { return removed(list, r) })
}

// countRow counts a row n times by what it applies to, and what it needs in its namespace.
func (b *builder) countRow(r *CompiledPolicy, n int) {
	b.snapshot.matches[r.match] += n
	s, ok := b.snapshot.namespaces[r.Namespace]
	if !ok {
		s.Tiers = map[string][]*CompiledPolicy{}
	}
	s.needs.addRow(r, n)
	b.snapshot.namespaces[r.Namespace] = s
	if r.match == forNetwork {
		b.snapshot.rowSizes = countSize(b.snapshot.rowSizes, r.network(), n)
	}
}

// editRows edits the list in which r is looked up.
func (b *builder) editRows(r *CompiledPolicy, edit func([]*CompiledPolicy) []*CompiledPolicy) {
	switch r.match {
	case forTenant:
		b.editTenant(r.tenant, func(a *TenantRows) { a.Policies = edit(a.Policies) })
	case forUser, forCredential:
		key := r.key()
		shard := b.ownedShard(key.shard())
		shard.subjectRows = editedList(shard.subjectRows, key, edit)
	case forNetwork:
		shard := b.ownedShard(networkShard(r.network()))
		shard.networkRows = editedList(shard.networkRows, r.network(), edit)
	default:
		s := b.snapshot.namespaces[r.Namespace]
		switch r.match {
		case forAnonymous:
			s.Anonymous = edit(s.Anonymous)
		case forAll:
			s.All = edit(s.All)
		default:
			s.Tiers = editedList(maps.Clone(s.Tiers), r.Tier, edit)
		}
		b.snapshot.namespaces[r.Namespace] = s
	}
}

// editedList returns lists with the list of a key edited. An empty one is dropped.
func editedList[K comparable, R any](lists map[K][]R, key K, edit func([]R) []R) map[K][]R {
	if lists == nil {
		lists = map[K][]R{}
	}
	if lists[key] = edit(lists[key]); len(lists[key]) == 0 {
		delete(lists, key)
	}
	return lists
}

// key returns the key under which the policy of a user or a credential is looked up.
func (r *CompiledPolicy) key() subject {
	if r.match == forUser {
		return subject{onUser, r.tenant, r.subject}
	}
	return subject{onCredential, "", r.subject}
}

// network returns the network that the row is for.
func (r *CompiledPolicy) network() netip.Prefix {
	prefix, err := ParseNetwork(r.subject)
	if err != nil {
		panic("policy: a row that was compiled has no network: " + err.Error()) // compileRow has parsed it
	}
	return prefix
}

// insertRow returns a copy of a list with r inserted. The list is sorted by namespace and name, the younger row first.
func insertRow(list []*CompiledPolicy, r *CompiledPolicy) []*CompiledPolicy {
	i, _ := slices.BinarySearchFunc(list, r, func(a, b *CompiledPolicy) int {
		return cmp.Or(
			strings.Compare(a.Namespace, b.Namespace), strings.Compare(a.Name, b.Name), cmp.Compare(b.Row, a.Row),
		)
	})
	return inserted(list, i, r)
}
