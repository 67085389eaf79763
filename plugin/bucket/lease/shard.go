package lease

import (
	"hash/maphash"
	"math/bits"
	"sync"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/limit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
)

const (
	shardCount = 64 // as many as a shardSet has bits
	spotSets   = 8  // per shard, a power of two
	ways       = 8  // spots of a set
	// sampleSize is the number of entries among which evict chooses.
	sampleSize = 8
)

// shard is a part of the entries, under one lock. A bucket's key alone decides its shard.
type shard struct {
	mu      sync.Mutex
	closed  bool              // Run has ended: nothing is leased
	entries map[uint64]*entry // by the hash of their keys; of two buckets with one hash, the first has an entry
	counts  counts
	gone    Tokens // of entries that were removed
	spots   [spotSets][ways]spot
	_       [64]byte // keeps the next shard's lock off this cache line
}

// spot records when a bucket without an entry was last seen. Most buckets are used rarely and need no more memory.
type spot struct {
	hash uint64
	at   limit.Micros
}

// counts counts the bounds that a shard answered, by what answered.
type counts struct{ drawn, called, remembered uint64 }

func (sh *shard) lookup(hash uint64, key *policy.Key) *entry {
	if e := sh.entries[hash]; e != nil && e.key == *key {
		return e
	}
	return nil
}

// seenRecently reports whether a bucket was seen within the last span, and records that it is seen now: if it has no
// spot, in place of the one that was seen longest ago.
func (sh *shard) seenRecently(hash uint64, now limit.Micros) bool {
	set := &sh.spots[hash>>32&(spotSets-1)]
	oldest := &set[0]
	for i := range set {
		s := &set[i]
		if s.hash == hash {
			seen := now-s.at < span
			s.at = now
			return seen
		}
		if s.at < oldest.at {
			oldest = s
		}
	}
	*oldest = spot{hash: hash, at: now}
	return false
}

// getOrCreate returns the bucket's entry under b's limit, and creates it if there is room; else nil. It schedules the
// return of what was leased under another limit. The shard is locked.
func (s *Leases) getOrCreate(sh *shard, hash uint64, b *policy.Bound, t *terms, now limit.Micros) *entry {
	if e := sh.lookup(hash, &b.Key); e != nil {
		if !e.matchesPolicy(b.Policy, &s.terms) {
			if taken, grants := e.rebind(b.Policy, t, now); taken != nil {
				s.scheduleReturn(dueRenewal{shard: sh, entry: e}, policy.Bound{Policy: taken, Key: e.key}, grants)
			}
		}
		return e
	}
	if sh.entries[hash] != nil || (len(sh.entries) >= s.perShard && !sh.evict()) {
		return nil
	}
	e := &entry{key: b.Key.Clone(), policy: b.Policy, terms: t, lastUsed: now}
	sh.entries[hash] = e
	return e
}

// evict makes room for one entry: of a sample, it removes the one without a lease whose denial ends first. It reports
// whether there was one.
func (sh *shard) evict() bool {
	var victimHash uint64
	var victim *entry
	sampled := 0
	for hash, e := range sh.entries { // a range over a map starts anywhere
		if e.holdings.outstanding() == 0 && e.holdings.returning == 0 && !e.queued &&
			(victim == nil || e.denial.until < victim.denial.until) {
			victimHash, victim = hash, e
		}
		if sampled++; sampled == sampleSize {
			break
		}
	}
	if victim != nil {
		sh.remove(victimHash, victim)
	}
	return victim != nil
}

func (sh *shard) remove(hash uint64, e *entry) {
	sh.gone.add(e.holdings.sums)
	delete(sh.entries, hash)
}

// place records where one bound of a request is decided.
type place struct {
	hash  uint64
	shard *shard
	entry *entry // nil: there is none
	draw  draw
	how   how
}

// how says what decided a bound.
type how uint8

const (
	fromStore  how = iota // by the central store
	fromLease             // from a lease
	fromMemory            // by an earlier denial
)

// fewBounds is the number of bounds that need no memory beyond the stack.
const fewBounds = 8

// manyPlaces pools the memory of requests with more bounds.
var manyPlaces = sync.Pool{New: func() any { return new([]place) }}

func putBack(places *[]place) {
	clear(*places) // they refer to entries
	manyPlaces.Put(places)
}

// shardSet is a set of shards, a bit for each.
type shardSet uint64

// locate finds the shards of the bounds and returns their set. It hashes what the names of a request's keys have in
// common once. A shard distinguishes keys with the same hash.
func (s *Leases) locate(bounds []policy.Bound, places []place) shardSet {
	var set shardSet
	var namespace, group string
	var namespaceHash, groupHash uint64
	for i := range bounds {
		k := &bounds[i].Key
		if k.Namespace != namespace {
			namespace, namespaceHash = k.Namespace, s.hash(k.Namespace)
		}
		if k.GroupID != group {
			group, groupHash = k.GroupID, s.hash(k.GroupID)
		}
		h := mix(mix(uint64(k.Group)<<8|uint64(k.Kind), namespaceHash), groupHash)
		h = mix(mix(mix(h, s.hash(k.Policy)), s.hash(k.Subject)), s.hash(k.Endpoint))
		h ^= h >> 32
		if s.fixedHash != nil {
			h = s.fixedHash(*k)
		}
		places[i].hash, places[i].shard = h, &s.shards[h%shardCount]
		set |= 1 << (h % shardCount)
	}
	return set
}

// mix adds a part to a hash. It loses nothing of either, and the order of the parts matters.
func mix(hash, part uint64) uint64 { return (hash ^ part) * 0x9e3779b97f4a7c15 } // 2^64 ÷ the golden ratio

func (s *Leases) hash(name string) uint64 {
	if name == "" {
		return 0
	}
	return maphash.String(s.seed, name)
}

// lock locks a set of shards, each once and in one order for all requests, so that no two requests wait for each other.
func (s *Leases) lock(set shardSet) {
	for ; set != 0; set &= set - 1 {
		s.shards[bits.TrailingZeros64(uint64(set))].mu.Lock()
	}
}

func (s *Leases) unlock(set shardSet) {
	for ; set != 0; set &= set - 1 {
		s.shards[bits.TrailingZeros64(uint64(set))].mu.Unlock()
	}
}
