package addresses

import (
	"cmp"
	"hash/maphash"
	"math"
	"sync/atomic"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/limit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
)

// The defaults of Options.
const (
	DefaultMost = 250_000
	DefaultRate = 1000
)

const (
	// burst is how many seconds of the rate of new keys can be saved up: a node that starts has an empty table.
	burst = 10
	// prefixPart is the divisor of the budget for the prefixes' own part.
	prefixPart = 10
	// reserved is how long a request may take to write its key before its place is free again.
	reserved = 5 * limit.Second
)

// Options configures a Budget. Now must be set.
type Options struct {
	Now  func() limit.Micros // a clock that never steps
	Most int                 // addresses of this node with a key at once, 20 bytes each; 0: DefaultMost
	Rate int                 // new ones a second; 0: DefaultRate; negative: any number
}

// Budget bounds the keys that addresses make in one central store. It is safe for concurrent use. Make it with New;
// requests take by a [Store].
type Budget struct {
	now      func() limit.Micros
	seed     maphash.Seed
	own      *table // addresses with a bucket of their own
	prefixes *table
	rate     int

	counts [ways]atomic.Uint64
}

// New returns an empty budget. It starts no goroutine.
func New(o Options) *Budget {
	most, rate := cmp.Or(o.Most, DefaultMost), cmp.Or(o.Rate, DefaultRate)
	b := &Budget{now: o.Now, seed: maphash.MakeSeed(), own: newTable(most, rate), rate: max(rate, 0)}
	if rate > 0 {
		rate = max(rate/prefixPart, 1)
	}
	b.prefixes = newTable(max(most/prefixPart, 1), rate)
	return b
}

// Stats holds a budget's numbers. Apart, Prefix and Local are since its start.
type Stats struct {
	Apart  uint64 `metric:"new_addresses_total by=own"`    // new addresses that were counted in a bucket of their own
	Prefix uint64 `metric:"new_addresses_total by=prefix"` // requests whose address was counted by its prefix
	Local  uint64 `metric:"new_addresses_total by=local"`  // requests whose address was counted in this process
	Kept   int    `metric:"addresses"`                     // addresses that may have a key by this node now
	Most   int    `metric:"addresses_max"`                 // addresses that can
	Rate   int    `metric:"new_addresses_per_second_max"`  // new ones a second; 0: any number

	LogBytes     int64 `metric:"address_log_bytes"`     // that sliding logs of addresses by this node may have now
	MostLogBytes int64 `metric:"address_log_bytes_max"` // that they can, without the logs of prefixes
}

// Stats returns the budget's numbers. It counts the addresses set by set.
func (b *Budget) Stats() Stats {
	return Stats{
		Apart: b.counts[byAddress].Load(), Prefix: b.counts[byPrefix].Load(), Local: b.counts[inProcess].Load(),
		Kept: b.own.count(b.now()), Most: len(b.own.sets) * places, Rate: b.rate,
		LogBytes: b.own.bytes.Load(), MostLogBytes: b.own.mostBytes,
	}
}

// way is how a bound is counted.
type way uint8

const (
	notByAddress way = iota // not by an address
	byAddress               // in the bucket of its address
	byBoth                  // in that, and in the one of its prefix
	byPrefix                // in the bucket of its prefix alone
	inProcess               // in this process
	ways         = 5
)

// route is how one bound of a request is counted.
type route struct {
	way        way
	hash       uint64 // of the address
	prefix     string // byBoth, byPrefix: what replaces the address
	prefixHash uint64
}

// subject identifies one key in the store. A sliding log has a key beside the one of its address, which is counted on
// its own. With another size it is another log, because its bytes are reserved.
type subject struct {
	key   policy.Key
	bytes uint32 // of a sliding log
}

// hash returns the hash of a key's subject; with bytes, of its sliding log.
func (b *Budget) hash(k *policy.Key, bytes uint32) uint64 {
	s := subject{*k, bytes}
	if bytes == 0 {
		s.key.Policy, s.key.Endpoint = "", ""
	}
	return maphash.Comparable(b.seed, s)
}

// route decides how the bound of an address is counted now. Bytes are what its sliding log may grow to; 0: it has none.
func (b *Budget) route(key *policy.Key, hash uint64, bytes uint32, now limit.Micros) route {
	r := route{way: byAddress, hash: hash}
	kept, shared := b.own.extend(hash, now, now+reserved)
	if kept && !shared {
		return r
	}
	r.prefix, r.prefixHash = b.prefixOf(key, bytes)
	inUse, _ := b.prefixes.extend(r.prefixHash, now, 0)
	switch {
	case kept && inUse:
		r.way = byBoth
	case kept:
		b.own.separate(hash, now)
	case b.own.add(hash, inUse, bytes, now):
		if b.counts[byAddress].Add(1); inUse {
			r.way = byBoth
		}
	case b.prefixes.add(r.prefixHash, false, bytes, now):
		r.way = byPrefix
		b.counts[byPrefix].Add(1)
	default:
		r.way = inProcess
		b.counts[inProcess].Add(1)
	}
	return r
}

// prefixOf returns the prefix of the address in a key, and its hash.
func (b *Budget) prefixOf(key *policy.Key, bytes uint32) (name string, hash uint64) {
	name = Wider(*Address(key))
	k := WithAddress(*key, name)
	return name, b.hash(&k, bytes)
}

// keyBytes is the size of a key in the store, with a bucket or two in it and the store's own tables.
const keyBytes = 230

// How the store keeps the entries of a sliding log, see bucket/redis/lua/sliding_log.lua.
const (
	logHead, logEntry = 15, 14 // bytes
	// logExpired is how many expired entries a log always keeps. Beyond, it is rewritten when more than half have expired.
	logExpired = 64
	// growth bounds the spare bytes that the server adds to a string; below, it doubles the string.
	growth = 1 << 20
)

// slotBytes is what a slot of a concurrency limit takes in the store, in a large sorted set.
const slotBytes = 150

// logBytes returns the most bytes that the sliding log of a bound may take in the store, its key included, or the slots
// of a concurrency limit; 0: the bound has neither. An allocator rounds up by a quarter at most. Names are
// percent-encoded, each byte as three.
func logBytes(b *policy.Bound) uint32 {
	l := &b.Policy.Limit
	most, value := l.Capacity(), int64(0) // an entry spends one token at least
	switch l.Spec().Algorithm {
	case limit.SlidingLog:
		length := logHead + logEntry*max(2*most, most+logExpired)
		value = (length + min(length, growth)) * 5 / 4
	case limit.Concurrency:
		value = slotBytes * most
	default:
		return 0
	}
	return uint32(min(keyBytes+3*int64(len(b.Key.Policy)+len(b.Key.Endpoint))+value, math.MaxUint32))
}
