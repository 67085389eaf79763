package lease

import (
	"hash/maphash"
	"math/bits"
	"strings"
	"sync"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/limit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/policy"
)

const (
	shardCount = 64 // as many as a shardSet has bits
	spotSets   = 8  // per shard, a power of two
	ways       = 8  // spots of a set
	// sampleSize is among how many entries one is chosen that makes room.
	sampleSize = 8
)

// shard is a part of the entries, under one lock. Which part a bucket belongs to is decided by its key alone.
type shard struct {
	mu      sync.Mutex
	closed  bool              // nothing is leased any more
	entries map[uint64]*entry // by the hash of their keys; of two buckets with one hash, the first has an entry
	counts  counts
	gone    Tokens // of entries that were forgotten
	spots   [spotSets][ways]spot
	_       [64]byte // keeps the next shard's lock off this cache line
}

// spot is where a bucket without an entry was seen last. Most buckets are asked rarely; they cost no more memory.
type spot struct {
	hash uint64
	at   limit.Micros
}

// counts are what a shard has answered, by bounds.
type counts struct{ drawn, asked, remembered uint64 }

func (sh *shard) lookup(hash uint64, key *policy.Key) *entry {
	if e := sh.entries[hash]; e != nil && e.key == *key {
		return e
	}
	return nil
}

// seenRecently tells whether a bucket was seen within the last span, and sees it: where there is no spot for it, in the place of
// the one that was seen longest ago.
func (sh *shard) seenRecently(hash uint64, now limit.Micros) bool {
	set := &sh.spots[hash>>32&(spotSets-1)]
	eldest := &set[0]
	for i := range set {
		s := &set[i]
		if s.hash == hash {
			seen := now-s.at < span
			s.at = now
			return seen
		}
		if s.at < eldest.at {
			eldest = s
		}
	}
	*eldest = spot{hash: hash, at: now}
	return false
}

// getOrCreate answers the bucket's entry under b's limit, and makes it if there is room. What was leased under another limit is
// given back. The shard is locked.
func (s *Store) getOrCreate(sh *shard, hash uint64, b *policy.Bound, t *terms, now limit.Micros) *entry {
	if e := sh.lookup(hash, &b.Key); e != nil {
		if !e.matchesPolicy(b.Policy, &s.terms) {
			if asked, grants := e.rebind(b.Policy, t, now); asked != nil {
				s.scheduleReturn(dueRenewal{shard: sh, entry: e}, policy.Bound{Policy: asked, Key: e.key}, grants)
			}
		}
		return e
	}
	if sh.entries[hash] != nil || (len(sh.entries) >= s.perShard && !sh.evict()) {
		return nil
	}
	key := b.Key // its names may be cut from much larger texts
	key.GroupID, key.Subject, key.Endpoint = strings.Clone(key.GroupID), strings.Clone(key.Subject), strings.Clone(key.Endpoint)
	e := &entry{key: key, policy: b.Policy, terms: t, lastUsed: now}
	sh.entries[hash] = e
	return e
}

// evict makes room for one entry: of a sample, the one without a lease whose refusal ends first goes. It tells whether
// there was one.
func (sh *shard) evict() bool {
	var of uint64
	var victim *entry
	sampled := 0
	for hash, e := range sh.entries { // a range over a map starts anywhere
		if e.ledger.outstanding() == 0 && e.ledger.returning == 0 && !e.queued && (victim == nil || e.denial.until < victim.denial.until) {
			of, victim = hash, e
		}
		if sampled++; sampled == sampleSize {
			break
		}
	}
	if victim != nil {
		sh.remove(of, victim)
	}
	return victim != nil
}

func (sh *shard) remove(hash uint64, e *entry) {
	sh.gone.add(e.ledger.sums)
	delete(sh.entries, hash)
}

// place is where one bound of a request is decided.
type place struct {
	hash  uint64
	shard *shard
	entry *entry // nil: there is none
	draw  draw
	how   how
}

// how a bound was decided.
type how uint8

const (
	fromStore  how = iota // by the shared store
	fromLease             // from a lease
	fromMemory            // by an earlier refusal
)

// fewBounds is how many bounds need no memory beyond the stack.
const fewBounds = 8

// manyPlaces is the memory of requests with more bounds, which others use again.
var manyPlaces = sync.Pool{New: func() any { return new([]place) }}

func putBack(places *[]place) {
	clear(*places) // they refer to entries
	manyPlaces.Put(places)
}

// shardSet is some shards, a bit for each.
type shardSet uint64

// locate finds the shards of the bounds, and answers all of them. What the names of a request's keys have in common is
// hashed once. Of keys with one hash it is their shard that tells them apart.
func (s *Store) locate(bounds []policy.Bound, places []place) shardSet {
	var set shardSet
	var namespace, owner string
	var ofNamespace, ofOwner uint64
	for i := range bounds {
		k := &bounds[i].Key
		if k.Namespace != namespace {
			namespace, ofNamespace = k.Namespace, s.hash(k.Namespace)
		}
		if k.GroupID != owner {
			owner, ofOwner = k.GroupID, s.hash(k.GroupID)
		}
		h := mix(mix(uint64(k.Group)<<8|uint64(k.Kind), ofNamespace), ofOwner)
		h = mix(mix(mix(h, s.hash(k.Policy)), s.hash(k.Subject)), s.hash(k.Endpoint))
		h ^= h >> 32
		places[i].hash, places[i].shard = h, &s.shards[h%shardCount]
		set |= 1 << (h % shardCount)
	}
	return set
}

// mix adds a part to a hash. Nothing of either is lost, and the order of the parts matters.
func mix(hash, part uint64) uint64 { return (hash ^ part) * 0x9e3779b97f4a7c15 } // 2^64 ÷ the golden ratio

func (s *Store) hash(name string) uint64 {
	if name == "" {
		return 0
	}
	return maphash.String(s.seed, name)
}

// lock locks some shards, each once and in one order for all requests, so that no two requests wait for each other.
func (s *Store) lock(set shardSet) {
	for ; set != 0; set &= set - 1 {
		s.shards[bits.TrailingZeros64(uint64(set))].mu.Lock()
	}
}

func (s *Store) unlock(set shardSet) {
	for ; set != 0; set &= set - 1 {
		s.shards[bits.TrailingZeros64(uint64(set))].mu.Unlock()
	}
}
