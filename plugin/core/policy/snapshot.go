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

	policies  index[*CompiledPolicy]   // by id
	overrides index[*CompiledOverride] // by id
	costs     map[int64]CostRow        // by id

	tiers         map[string]bool          // those that have a row of their own
	tenantsByTier map[string]int           // tenants by the tier that their row names
	namespaces    map[string]NamespaceRows // by namespace
	targets       [targets]int             // overrides by target
	networkSizes  []networkSize            // of the networks that overrides name, each once
	matches       [matches]int             // policies by what they apply to
	rowSizes      []networkSize            // of the networks that policies name, each once, the narrowest first
	endpoints     *endpointSet             // of policies, overrides and costs

	candidate *Overlay // nil: no candidate is open
}

// shardCount is the number of parts of a snapshot. A million rows make a thousand in each: the most that one change
// copies.
const shardCount = 1024

// shard holds the rows of the tenants, subjects and networks of one hash.
type shard struct {
	tenants  map[string]*TenantRows
	subjects map[subject][]*CompiledOverride
	networks map[netip.Prefix][]*CompiledOverride

	subjectRows map[subject][]*CompiledPolicy      // policies of users and credentials; nil: none
	networkRows map[netip.Prefix][]*CompiledPolicy // policies of addresses and networks; nil: none
}

// TenantRows holds the rows of one tenant as a whole.
type TenantRows struct {
	hasRow    bool // the tenant itself has a row
	Tier      string
	timeZone  string
	Policies  []*CompiledPolicy   // by namespace, then name
	overrides []*CompiledOverride // on the tenant and on its endpoints
}

// subject identifies a user, a credential or a tag by name, or an endpoint of all tenants by its pattern. Only a user
// belongs to a tenant.
type subject struct {
	target target
	tenant string
	name   string
}

// networkSize counts the overrides of networks of one size. An address is looked up once for each size.
type networkSize struct {
	bits int
	is4  bool
	n    int
}

// NamespaceRows holds the rows of one namespace for tiers, anonymous requests, all requests and the costs of endpoints,
// and counts what all its policies need.
type NamespaceRows struct {
	Tiers          map[string][]*CompiledPolicy // by tier, then by name
	Anonymous, All []*CompiledPolicy            // by name
	Costs          map[string]CostRow           // by endpoint
	needs          needCounts
}

// seed spreads tenants over the shards in this process; shards have no meaning outside of it.
var seed = maphash.MakeSeed()

func tenantShard(tenant string) int { return int(maphash.String(seed, tenant) % shardCount) }

func (s subject) shard() int { return int(maphash.String(seed, s.name) % shardCount) }

func networkShard(network netip.Prefix) int {
	address := network.Addr().As16()
	return int((maphash.Bytes(seed, address[:]) + uint64(network.Bits())) % shardCount)
}

// Version returns the version of the database that the snapshot holds.
func (s *Snapshot) Version() int64 { return s.version }

// Len returns the number of rows, without rows of tiers.
func (s *Snapshot) Len() int {
	return s.tenantCount + s.policies.rows + s.overrides.rows + len(s.costs)
}

// Tiers returns the rows of all tiers, sorted by name.
func (s *Snapshot) Tiers() []TierRow {
	rows := make([]TierRow, 0, len(s.tiers))
	for _, name := range slices.Sorted(maps.Keys(s.tiers)) {
		rows = append(rows, TierRow{name})
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

func normalizedRows[R hasID, P any](rows *index[R], as func(R) P) iter.Seq[P] {
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

// Tenant returns the rows of a tenant, or nil if there are none.
func (s *Snapshot) Tenant(tenant string) *TenantRows {
	return s.shard(tenantShard(tenant)).tenants[tenant]
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
func (s *Snapshot) Namespace(name string) NamespaceRows { return s.namespaces[name] }

// HasTier reports whether a tier has a row of its own.
func (s *Snapshot) HasTier(tier string) bool { return s.tiers[tier] }

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
	if s.matches[forUser] == 0 || id.Tenant.Kind != identity.Tenant || id.User.Kind != identity.User {
		return nil
	}
	return s.rowsOf(subject{onUser, id.Tenant.ID, id.User.ID})
}

// CredentialPolicies returns the policies of a request's credential.
func (s *Snapshot) CredentialPolicies(id *identity.Identity) []*CompiledPolicy {
	if s.matches[forCredential] == 0 || id.Credential == "" {
		return nil
	}
	return s.rowsOf(subject{onCredential, "", id.Credential})
}

// overridesOf returns the overrides of a subject.
func (s *Snapshot) overridesOf(whose subject) []*CompiledOverride {
	return s.shard(whose.shard()).subjects[whose]
}

// addressOverrides appends the overrides of all networks that contain a client's address. One that changes limits is
// found only if its network contains all addresses that are counted together with the client's, unless IPv6 addresses
// are counted in full.
func (s *Snapshot) addressOverrides(id *identity.Identity, found []*CompiledOverride) []*CompiledOverride {
	counted := countedNetwork(id, s.networkSizes)
	if !counted.IsValid() {
		return found
	}
	whole := counted
	if id.Address.Is6() && counted.Contains(id.Address) {
		whole = netip.PrefixFrom(id.Address, id.Address.BitLen())
	}
	for _, size := range s.networkSizes {
		if size.is4 != whole.Addr().Is4() || size.bits > whole.Bits() {
			continue
		}
		part, err := whole.Addr().Prefix(size.bits)
		if err != nil {
			continue
		}
		for _, o := range s.shard(networkShard(part)).networks[part] {
			if size.bits <= counted.Bits() || o.kind == ban || o.kind == exempt {
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

// rowsOf returns the policies of a user or a credential.
func (s *Snapshot) rowsOf(whose subject) []*CompiledPolicy {
	return s.shard(whose.shard()).subjectRows[whose]
}

// rowsOfNetwork returns the policies of exactly one address or network.
func (s *Snapshot) rowsOfNetwork(text string) []*CompiledPolicy {
	prefix, err := ParseNetwork(text)
	if err != nil {
		return nil
	}
	return s.shard(networkShard(prefix)).networkRows[prefix]
}

// NetworkPolicies yields the policies of each network that contains all addresses that are counted together with a
// client's, the narrowest network first.
func (s *Snapshot) NetworkPolicies(id *identity.Identity) iter.Seq[[]*CompiledPolicy] {
	return func(yield func([]*CompiledPolicy) bool) {
		counted := countedNetwork(id, s.rowSizes)
		for _, size := range s.rowSizes {
			if !counted.IsValid() || size.is4 != counted.Addr().Is4() || size.bits > counted.Bits() {
				continue
			}
			part, err := counted.Addr().Prefix(size.bits)
			if err != nil {
				continue
			}
			if !yield(s.shard(networkShard(part)).networkRows[part]) {
				return
			}
		}
	}
}

// HasPolicyOfPart reports whether a policy is for a network of IPv6 with more leading bits than these.
func (s *Snapshot) HasPolicyOfPart(bits int) bool {
	return slices.ContainsFunc(s.rowSizes, func(size networkSize) bool { return !size.is4 && size.bits > bits })
}

// hasID is a row with an id.
type hasID interface {
	comparable
	rowID() int64
}

// index maps ids to rows. Snapshots share its parts: a change copies one.
type index[R hasID] struct {
	rows  int
	parts [shardCount][]R // by id, sorted
}

func (x *index[R]) part(id int64) *[]R { return &x.parts[uint64(id)%shardCount] }

func searchID[R hasID](part []R, id int64) (int, bool) {
	return slices.BinarySearchFunc(part, id, func(r R, id int64) int { return cmp.Compare(r.rowID(), id) })
}

func (x *index[R]) get(id int64) (r R, ok bool) {
	part := *x.part(id)
	i, ok := searchID(part, id)
	if ok {
		r = part[i]
	}
	return r, ok
}

// insert adds a row with a new id. It copies the part first unless own is set.
func (x *index[R]) insert(r R, own bool) {
	part := x.part(r.rowID())
	i, _ := searchID(*part, r.rowID())
	if !own {
		*part = append(make([]R, 0, len(*part)+1), *part...)
	}
	*part = slices.Insert(*part, i, r)
	x.rows++
}

// remove drops a row, copying its part.
func (x *index[R]) remove(id int64) {
	part := x.part(id)
	i, ok := searchID(*part, id)
	if !ok {
		return
	}
	*part = slices.Concat((*part)[:i], (*part)[i+1:])
	x.rows--
}
