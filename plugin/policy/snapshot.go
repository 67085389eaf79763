package policy

import (
	"hash/maphash"
	"iter"
	"maps"
	"net/netip"
	"slices"
)

// Snapshot is the immutable, indexed set of all rows of a database at one version. [NewSnapshot] builds one; [Snapshot.Apply]
// makes the next from it, copying only the shards that the changes touch; [Plan.With] puts it beside a config.
//
// A request finds its rows by who it is from: those of its tenant, of its user, its credential and its address are
// kept apart, so that a tenant with a million users costs a request of one of them nothing.
type Snapshot struct {
	version int64
	tenants int
	shards  [shardCount]*shard

	policies  index[*row]      // by id
	overrides index[*override] // by id

	tiers     map[string]bool  // those that have a row of their own
	claimed   map[string]int   // tenants by the tier that their row names
	spaces    map[string]space // by namespace
	targets   [targets]int     // overrides by target
	sizes     []size           // of the networks that overrides name, each once
	endpoints *endpoints       // of policies and overrides
}

// shardCount is the number of parts of a snapshot. A million rows make a thousand in each: the most that one change copies.
const shardCount = 1024

// shard is the rows of the tenants and subjects whose hash is the same.
type shard struct {
	accounts map[string]*account
	subjects map[subject][]*override
	networks map[netip.Prefix][]*override
}

// account is what the rows say of one tenant as a whole.
type account struct {
	known     bool // there is a row of the tenant itself
	tier      string
	timeZone  string
	policies  []*row      // by namespace, then name
	overrides []*override // on the tenant and on its endpoints
}

// subject is somebody who is looked up by a name: a user or a credential. Only users belong to a tenant.
type subject struct {
	target target
	tenant string
	who    string
}

// size is the length of networks, and how many overrides name one of it. An address is looked up once for each size.
type size struct {
	bits int
	is4  bool
	n    int
}

// space is the rows of one namespace that are a tier's, and how many of all its rows need what.
type space struct {
	tiers map[string][]*row // by tier, then by name
	uses  tally
}

// seed makes the shards of this process's snapshots; which shard a tenant is in means nothing outside.
var seed = maphash.MakeSeed()

func tenantShard(tenant string) int { return int(maphash.String(seed, tenant) % shardCount) }

func (s subject) shard() int { return int(maphash.String(seed, s.who) % shardCount) }

func networkShard(network netip.Prefix) int {
	address := network.Addr().As16()
	return int((maphash.Bytes(seed, address[:]) + uint64(network.Bits())) % shardCount)
}

// Version is the version of the database that the snapshot holds.
func (b *Snapshot) Version() int64 { return b.version }

// Len is the number of rows, without those of tiers.
func (b *Snapshot) Len() int { return b.tenants + b.policies.rows + b.overrides.rows }

// Tiers are the rows of all tiers, by name.
func (b *Snapshot) Tiers() []TierRow {
	rows := make([]TierRow, 0, len(b.tiers))
	for _, name := range slices.Sorted(maps.Keys(b.tiers)) {
		rows = append(rows, TierRow{name})
	}
	return rows
}

// Tenants are the rows of all tenants, in no particular order.
func (b *Snapshot) Tenants() iter.Seq[TenantRow] {
	return func(yield func(TenantRow) bool) {
		for _, s := range b.shards {
			if s == nil {
				continue
			}
			for id, a := range s.accounts {
				if a.known && !yield(TenantRow{ID: id, Tier: a.tier, TimeZone: a.timeZone}) {
					return
				}
			}
		}
	}
}

// Policies are all policies as they were given, but for spellings that mean the same, in no particular order.
func (b *Snapshot) Policies() iter.Seq[Row] { return plain(&b.policies, (*row).plain) }

// Overrides are all overrides as they were given, but for spellings that mean the same, in no particular order.
func (b *Snapshot) Overrides() iter.Seq[Override] { return plain(&b.overrides, (*override).plain) }

func plain[R keyed, P any](rows *index[R], as func(R) P) iter.Seq[P] {
	return func(yield func(P) bool) {
		for _, part := range rows.parts {
			for _, r := range part {
				if !yield(as(r)) {
					return
				}
			}
		}
	}
}

// account is what is known of a tenant; nil if nothing is.
func (b *Snapshot) account(tenant string) *account {
	if s := b.shards[tenantShard(tenant)]; s != nil {
		return s.accounts[tenant]
	}
	return nil
}

// of are the overrides of a subject.
func (b *Snapshot) of(s subject) []*override {
	if shard := b.shards[s.shard()]; shard != nil {
		return shard.subjects[s]
	}
	return nil
}

// within are the overrides of a network.
func (b *Snapshot) within(network netip.Prefix) []*override {
	if shard := b.shards[networkShard(network)]; shard != nil {
		return shard.networks[network]
	}
	return nil
}

// around appends the overrides of all networks that an address is in, as identities are counted by it: an IPv4
// address, or a network of IPv6. A network that is smaller than that cannot be told from others, and is not found.
func (b *Snapshot) around(address string, found []*override) []*override {
	if len(b.sizes) == 0 {
		return found
	}
	whole, err := network(address)
	if err != nil {
		return found // a client without an address
	}
	for _, s := range b.sizes {
		if s.is4 != whole.Addr().Is4() || s.bits > whole.Bits() {
			continue
		}
		if part, err := whole.Addr().Prefix(s.bits); err == nil {
			found = append(found, b.within(part)...)
		}
	}
	return found
}

// keyed is a row with an id.
type keyed interface {
	comparable
	key() int64
}

// index finds rows by their ids. Its parts are shared between snapshots: a change copies one.
type index[R keyed] struct {
	rows  int
	parts [shardCount][]R // by id, sorted
}

func (x *index[R]) part(id int64) *[]R { return &x.parts[uint64(id)%shardCount] }

func find[R keyed](part []R, id int64) (int, bool) {
	return slices.BinarySearchFunc(part, id, func(r R, id int64) int {
		switch k := r.key(); {
		case k < id:
			return -1
		case k > id:
			return 1
		}
		return 0
	})
}

func (x *index[R]) get(id int64) (r R, ok bool) {
	part := *x.part(id)
	i, ok := find(part, id)
	if ok {
		r = part[i]
	}
	return r, ok
}

// insert adds a row whose id is not there. Unless own, the part is copied first.
func (x *index[R]) insert(r R, own bool) {
	part := x.part(r.key())
	i, _ := find(*part, r.key())
	if !own {
		*part = append(make([]R, 0, len(*part)+1), *part...)
	}
	*part = slices.Insert(*part, i, r)
	x.rows++
}

// remove takes a row away. The part is copied.
func (x *index[R]) remove(id int64) {
	part := x.part(id)
	i, ok := find(*part, id)
	if !ok {
		return
	}
	*part = slices.Concat((*part)[:i], (*part)[i+1:])
	x.rows--
}
