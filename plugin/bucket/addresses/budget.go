package addresses

import (
	"cmp"
	"hash/maphash"
	"sync/atomic"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/internal/prefix"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/limit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/policy"
)

// The defaults of Options.
const (
	DefaultMost = 250_000
	DefaultRate = 1000
)

const (
	// burst is for how many seconds the rate of new keys can be saved up: a node that starts knows no address.
	burst = 10
	// prefixPart is the part of the budget that prefixes have for themselves: one in so many.
	prefixPart = 10
	// reserved is how long a request may take to write its key before its place is free again.
	reserved = 5 * limit.Second
)

// Options are what a Budget needs. Now must be set.
type Options struct {
	Now  func() limit.Micros // a clock that never steps
	Most int                 // addresses of this node with a key at once, 20 bytes each; 0: DefaultMost
	Rate int                 // new ones a second; 0: DefaultRate; negative: any number
}

// Budget bounds the keys that addresses make in one shared store. It is safe for concurrent use. Make it with New;
// requests take by a [View].
type Budget struct {
	now      func() limit.Micros
	seed     maphash.Seed
	own      *table // addresses with a bucket of their own
	prefixes *table
	rate     int

	counts [ways]atomic.Uint64
}

// New makes a budget. It starts nothing.
func New(o Options) *Budget {
	most, rate := cmp.Or(o.Most, DefaultMost), cmp.Or(o.Rate, DefaultRate)
	b := &Budget{now: o.Now, seed: maphash.MakeSeed(), own: newTable(most, rate), rate: max(rate, 0)}
	if rate > 0 {
		rate = max(rate/prefixPart, 1)
	}
	b.prefixes = newTable(max(most/prefixPart, 1), rate)
	return b
}

// Stats are a budget's numbers. Apart, Prefix and Local are since its start.
type Stats struct {
	Apart  uint64 // new addresses that were counted in a bucket of their own
	Prefix uint64 // requests whose address was counted by its prefix
	Local  uint64 // requests whose address was counted in this process
	Kept   int    // addresses that have, or may have, a key by this node now
	Most   int    // addresses that can
	Rate   int    // new ones a second; 0: any number

	LogBytes     int64 // that sliding logs of addresses by this node may have in the store now
	MostLogBytes int64 // that they can, those of prefixes not included
}

// Stats counts the addresses, set by set.
func (b *Budget) Stats() Stats {
	return Stats{
		Apart: b.counts[apart].Load(), Prefix: b.counts[byPrefix].Load(), Local: b.counts[locally].Load(),
		Kept: b.own.count(b.now()), Most: b.own.most(), Rate: b.rate,
		LogBytes: b.own.bytes.Load(), MostLogBytes: b.own.mostBytes,
	}
}

// way is how a bound is counted.
type way uint8

const (
	asKnown  way = iota // not by an address
	apart               // in the bucket of its address
	twice               // in that, and in the one of its prefix
	byPrefix            // in the bucket of its prefix alone
	locally             // in this process
	ways     = 5
)

// route is how one bound of a request is counted.
type route struct {
	way        way
	hash       uint64 // of the address
	prefix     string // twice, byPrefix: what stands in the address's place
	prefixHash uint64
}

// subject is what has one key in the store. A sliding log has a key beside the one of its address, which is counted on
// its own: by another size it is another log, because that is what is reserved for it.
type subject struct {
	namespace, owner, name string
	policy, endpoint       string // of a sliding log
	bytes                  uint32 // of a sliding log
	group                  policy.Group
	kind                   policy.Kind
}

func (b *Budget) hash(k *policy.Key, bytes uint32) uint64 {
	s := subject{namespace: k.Namespace, owner: k.GroupID, name: k.Subject, group: k.Group, kind: k.Kind}
	if bytes > 0 {
		s.policy, s.endpoint, s.bytes = k.Policy, k.Endpoint, bytes
	}
	return maphash.Comparable(b.seed, s)
}

// route decides how the bound of an address is counted now. Bytes are what its sliding log may grow to; 0: it has none.
func (b *Budget) route(key *policy.Key, hash uint64, bytes uint32, now limit.Micros) route {
	r := route{way: apart, hash: hash}
	known, shared := b.own.find(hash, now, now+reserved)
	if known && !shared {
		return r
	}
	inUse := false
	if b.prefixes.any(now) {
		r.prefix, r.prefixHash = b.prefixOf(key, bytes)
		inUse, _ = b.prefixes.find(r.prefixHash, now, 0)
	}
	switch {
	case known && inUse:
		r.way = twice
	case known:
		b.own.separate(hash)
	case b.own.add(hash, inUse, bytes, now):
		if b.counts[apart].Add(1); inUse {
			r.way = twice
		}
	default:
		if r.prefix == "" {
			r.prefix, r.prefixHash = b.prefixOf(key, bytes)
		}
		if r.way = locally; b.prefixes.add(r.prefixHash, false, bytes, now) {
			r.way = byPrefix
		}
		b.counts[r.way].Add(1)
	}
	return r
}

func (b *Budget) prefixOf(key *policy.Key, bytes uint32) (name string, hash uint64) {
	name = prefix.Wider(*prefix.Address(key))
	k := prefix.WithAddress(*key, name)
	return name, b.hash(&k, bytes)
}
