package policy

import (
	"cmp"
	"hash/maphash"
	"iter"
	"maps"
	"net/netip"
	"slices"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/identity"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

// Snapshot holds all rows of a database at one version, indexed and immutable. [NewSnapshot] builds one;
// [Snapshot.Apply] makes the next from it, copying only the shards that the changes touch; package resolve puts it
// beside a config.
//
// A request finds its rows by its identity: rows of its tenant, its user, its credential and its address are kept
// apart. So the rows of a tenant's other users cost a request nothing.
type Snapshot struct {
	version     int64
	tenantCount int
	shards      [shardCount]*shard

	policies  index[*CompiledPolicy]
	overrides index[*CompiledOverride]
	costs     index[*CostRow]
	prices    index[*PriceRow]

	tiers         map[string]TierRow // by name
	tenantsByTier map[string]int     // tenants by the tier that their row names
	endpoints     *endpointSet       // of policies, overrides and costs

	summary
	candidate *Overlay // nil: no candidate is open
}

// shardCount is the number of parts of a snapshot. A million rows make a thousand in each: the most that one change
// copies.
const shardCount = 1024

// shard holds the rows of the tenants and subjects of one hash.
type shard struct {
	tenants   map[string]*TenantRows
	policies  map[subject][]*CompiledPolicy
	overrides map[subject][]*CompiledOverride
}

// TenantRows holds the rows of one tenant as a whole.
type TenantRows struct {
	hasRow    bool // the tenant itself has a row
	knowsZone bool // timeZone is "" or a zone of the embedded data
	Tier      string
	timeZone  string
	Policies  []*CompiledPolicy   // by namespace, then name
	overrides []*CompiledOverride // on the tenant and on its endpoints
}

// subject identifies a user, a credential or a tag by name, a network by its bytes, or an endpoint of all tenants by
// its pattern. Only a user belongs to a tenant.
type subject struct {
	target target
	tenant string
	name   string
}

// onNetwork returns the subject of an address or a network. No row has the subject of another text.
func onNetwork(text string) subject {
	prefix, _ := ParseNetwork(text) // the zero Prefix with an error
	name, _ := prefix.MarshalBinary()
	return subject{onIP, "", string(name)}
}

// seed spreads tenants over the shards in this process; shards have no meaning outside of it.
var seed = maphash.MakeSeed()

// networkBytes bounds the bytes of a network: an address, and its length.
const networkBytes = 17

func shardOf(name string) int { return int(maphash.String(seed, name) % shardCount) }

// Version returns the version of the database that the snapshot holds.
func (s *Snapshot) Version() int64 { return s.version }

// Len returns the number of rows, without rows of tiers.
func (s *Snapshot) Len() int {
	return s.tenantCount + s.policies.rows + s.overrides.rows + s.costs.rows + s.prices.rows
}

// Tiers returns the rows of all tiers, sorted by name.
func (s *Snapshot) Tiers() []TierRow {
	rows := make([]TierRow, 0, len(s.tiers))
	for _, name := range slices.Sorted(maps.Keys(s.tiers)) {
		rows = append(rows, s.tiers[name])
	}
	return rows
}

// Tenants returns the rows of all tenants, in no particular order.
func (s *Snapshot) Tenants() iter.Seq[schema.Tenant] {
	return func(yield func(schema.Tenant) bool) {
		for i := range s.shards {
			for id, a := range s.shard(i).tenants {
				if a.hasRow && !yield(schema.Tenant{ID: id, Tier: a.Tier, TimeZone: a.timeZone}) {
					return
				}
			}
		}
	}
}

// Policies returns all policies as they were given, except for spellings that mean the same, in no particular order.
func (s *Snapshot) Policies() iter.Seq[PolicyRow] {
	return normalizedRows(&s.policies, (*CompiledPolicy).normalized)
}

// Overrides returns all overrides as they were given, except for spellings that mean the same, in no particular order.
func (s *Snapshot) Overrides() iter.Seq[Override] {
	return normalizedRows(&s.overrides, (*CompiledOverride).Normalized)
}

func normalizedRows[R row, P any](rows *index[R], as func(R) P) iter.Seq[P] {
	return func(yield func(P) bool) {
		for r := range rows.all {
			if !yield(as(r)) {
				return
			}
		}
	}
}

// Tenant returns the rows of a tenant, or nil if there are none.
func (s *Snapshot) Tenant(tenant string) *TenantRows {
	return s.shard(shardOf(tenant)).tenants[tenant]
}

// shard returns a shard, which is empty if no row is in it.
func (s *Snapshot) shard(i int) *shard {
	if s.shards[i] == nil {
		return &noRows
	}
	return s.shards[i]
}

var noRows shard

// Endpoints returns the patterns of the rows' endpoints.
func (s *Snapshot) Endpoints() *Patterns { return s.endpoints.patterns }

// Namespace returns the rows of a namespace.
func (s *Snapshot) Namespace(name string) NamespaceRows {
	if rows := s.namespaces[name]; rows != nil {
		return *rows
	}
	return NamespaceRows{}
}

// Tier returns the row of a tier; ok: it has one of its own.
func (s *Snapshot) Tier(name string) (row TierRow, ok bool) {
	row, ok = s.tiers[name]
	return row, ok
}

// TenantsByTier returns the number of tenants by the tier that their row names.
func (s *Snapshot) TenantsByTier() map[string]int { return maps.Clone(s.tenantsByTier) }

// Rank returns the position of a row's endpoint among the endpoints that match a request, the narrowest first; no
// endpoint comes last. It reports false if the endpoint does not match.
func (s *Snapshot) Rank(endpoint string, matches []int) (int, bool) {
	if endpoint == "" {
		return len(matches), true
	}
	for position, i := range matches {
		if s.endpoints.patterns.list[i].text == endpoint {
			return position, true
		}
	}
	return 0, false
}

// UserPolicies returns the policies of a request's user.
func (s *Snapshot) UserPolicies(id *identity.Identity) []*CompiledPolicy {
	if !s.matches[forUser] || id.Tenant.Kind != identity.Tenant || id.User.Kind != identity.User {
		return nil
	}
	return s.policiesOf(subject{onUser, id.Tenant.ID, id.User.ID})
}

// CredentialPolicies returns the policies of a request's credential.
func (s *Snapshot) CredentialPolicies(id *identity.Identity) []*CompiledPolicy {
	if !s.matches[forCredential] || id.Credential == "" {
		return nil
	}
	return s.policiesOf(subject{onCredential, "", id.Credential})
}

func (s *Snapshot) overridesOf(whose subject) []*CompiledOverride {
	return s.shard(shardOf(whose.name)).overrides[whose]
}

// addressOverrides appends the overrides of all networks that contain a client's address. One that changes limits is
// found only if its network contains all addresses that are counted together with the client's, unless IPv6 addresses
// are counted in full.
func (s *Snapshot) addressOverrides(id *identity.Identity, found []*CompiledOverride) []*CompiledOverride {
	counted := countedNetwork(id, s.overrideSizes)
	if !counted.IsValid() {
		return found
	}
	whole := counted
	if id.Address.Is6() && counted.Contains(id.Address) {
		whole = netip.PrefixFrom(id.Address, id.Address.BitLen())
	}
	for part := range networksAround(whole, s.overrideSizes) {
		var buffer [networkBytes]byte
		name, _ := part.AppendBinary(buffer[:0])
		for _, o := range s.shard(shardOf(string(name))).overrides[subject{onIP, "", string(name)}] {
			if part.Bits() <= counted.Bits() || o.kind == ban || o.kind == exempt {
				found = append(found, o)
			}
		}
	}
	return found
}

// countedNetwork returns the addresses that are counted together with a client's. It returns the zero Prefix for a
// client without an address, and if networks of no size are looked up.
func countedNetwork(id *identity.Identity, sizes []networkSize) (counted netip.Prefix) {
	if len(sizes) > 0 {
		counted, _ = ParseNetwork(id.IP) // the zero Prefix with an error
	}
	return counted
}

// networksAround yields the networks of some sizes that contain a network, in the order of the sizes. None contains the
// zero Prefix.
func networksAround(network netip.Prefix, sizes []networkSize) iter.Seq[netip.Prefix] {
	return func(yield func(netip.Prefix) bool) {
		for _, size := range sizes {
			if size.is4 != network.Addr().Is4() || size.bits > network.Bits() {
				continue
			}
			if part, err := network.Addr().Prefix(size.bits); err != nil || !yield(part) {
				return
			}
		}
	}
}

func (s *Snapshot) policiesOf(whose subject) []*CompiledPolicy {
	return s.shard(shardOf(whose.name)).policies[whose]
}

// NetworkPolicies yields the policies of each network that contains all addresses that are counted together with a
// client's, the narrowest network first.
func (s *Snapshot) NetworkPolicies(id *identity.Identity) iter.Seq[[]*CompiledPolicy] {
	return func(yield func([]*CompiledPolicy) bool) {
		for part := range networksAround(countedNetwork(id, s.policySizes), s.policySizes) {
			var buffer [networkBytes]byte
			name, _ := part.AppendBinary(buffer[:0])
			if !yield(s.shard(shardOf(string(name))).policies[subject{onIP, "", string(name)}]) {
				return
			}
		}
	}
}

// HasPolicyOfPart reports whether a policy is for a network of IPv6 with more leading bits than these.
func (s *Snapshot) HasPolicyOfPart(bits int) bool {
	return slices.ContainsFunc(s.policySizes, func(size networkSize) bool { return !size.is4 && size.bits > bits })
}

// row is a compiled row with an id.
type row interface {
	comparable
	rowID() int64
	pattern() string // of its endpoint; "": it names none
	class() class
	link(b *builder, linked bool) // adds the row to the list in which requests look it up, or removes it
}

// index maps ids to rows. Snapshots share its parts: a change copies one.
type index[R row] struct {
	rows  int
	parts [shardCount][]R // by id, sorted
	few   [shardCount][]R // of each part one row of each class; nil: they have not been found since the part changed
}

// find returns the part of an id, and the place in it where the row with the id is or would be.
func (x *index[R]) find(id int64) (part *[]R, i int, ok bool) {
	part = &x.parts[uint64(id)%shardCount]
	i, ok = slices.BinarySearchFunc(*part, id, func(r R, id int64) int { return cmp.Compare(r.rowID(), id) })
	return part, i, ok
}

func (x *index[R]) get(id int64) (r R, ok bool) {
	part, i, ok := x.find(id)
	if ok {
		r = (*part)[i]
	}
	return r, ok
}

func (x *index[R]) all(yield func(R) bool) {
	for _, part := range x.parts {
		for _, r := range part {
			if !yield(r) {
				return
			}
		}
	}
}

// classes yields rows of all classes. It looks at each row only in parts that have changed since the last time.
func (x *index[R]) classes(yield func(R) bool) {
	for i, part := range x.parts {
		if x.few[i] == nil {
			seen, last := map[class]bool{}, class{}
			for j, r := range part {
				c := r.class()
				if same := j > 0 && c == last; !same && !seen[c] { // comparing is cheaper, and most rows are alike
					seen[c], last = true, c
					x.few[i] = append(x.few[i], r)
				}
			}
		}
		for _, r := range x.few[i] {
			if !yield(r) {
				return
			}
		}
	}
}

// insert adds a row with a new id. It copies the part first unless own is set.
func (x *index[R]) insert(r R, own bool) {
	part, i, _ := x.find(r.rowID())
	if !own {
		*part = append(make([]R, 0, len(*part)+1), *part...)
	}
	*part = slices.Insert(*part, i, r)
	x.few[uint64(r.rowID())%shardCount] = nil
	x.rows++
}

func (x *index[R]) remove(id int64) {
	if part, i, ok := x.find(id); ok {
		*part = slices.Concat((*part)[:i], (*part)[i+1:])
		x.few[uint64(id)%shardCount] = nil
		x.rows--
	}
}
