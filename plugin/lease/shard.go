package lease

import (
	"hash/maphash"
	"slices"
	"strings"
	"sync"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/limit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/policy"
)

const (
	shardCount = 64 // a power of two
	spotSets   = 8  // per shard, a power of two
	ways       = 8  // spots of a set
	// sampleSize is among how many entries one is chosen that makes room.
	sampleSize = 8
)

// shard is a part of the entries, under one lock. Which part a bucket belongs to is decided by its key alone.
type shard struct {
	mu      sync.Mutex
	entries map[uint64]*entry // by the hash of their keys; of two buckets with one hash, the first has an entry
	spots   [spotSets][ways]spot
	gone    Tokens // of entries that were forgotten
	counts  counts
	_       [64]byte // keeps the next shard's lock off this cache line
}

// spot is where a bucket without an entry was seen last. Most buckets are asked rarely; they cost no more memory.
type spot struct {
	hash uint64
	at   limit.Micros
}

// counts are what a shard has answered, by bounds.
type counts struct{ drawn, asked, remembered uint64 }

func (sh *shard) find(hash uint64, key *policy.Key) *entry {
	if e := sh.entries[hash]; e != nil && e.key == *key {
		return e
	}
	return nil
}

// warm tells whether a bucket was seen within the last span, and sees it: where there is no spot for it, in the place of
// the one that was seen longest ago.
func (sh *shard) warm(hash uint64, now limit.Micros) bool {
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

// keep answers the bucket's entry under b's limit, and makes it if there is room. What was leased under another limit is
// given back. The shard is locked.
func (s *Store) keep(sh *shard, hash uint64, b *policy.Bound, t *terms, now limit.Micros) *entry {
	if e := sh.find(hash, &b.Key); e != nil {
		if !e.under(b.Policy, &s.book) {
			if asked, grants := e.turn(b.Policy, t, now); asked != nil {
				s.giveBackSoon(policy.Bound{Policy: asked, Key: e.key}, grants)
			}
		}
		return e
	}
	if sh.entries[hash] != nil || (len(sh.entries) >= s.perShard && !sh.evict()) {
		return nil
	}
	key := b.Key // its names may be cut from much larger texts
	key.Owner, key.Subject, key.Endpoint = strings.Clone(key.Owner), strings.Clone(key.Subject), strings.Clone(key.Endpoint)
	e := &entry{key: key, policy: b.Policy, terms: t, scarce: noLimit, touched: now}
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
		if e.ledger.out() == 0 && !e.queued && (victim == nil || e.denial.until < victim.denial.until) {
			of, victim = hash, e
		}
		if sampled++; sampled == sampleSize {
			break
		}
	}
	if victim != nil {
		sh.forget(of, victim)
	}
	return victim != nil
}

func (sh *shard) forget(hash uint64, e *entry) {
	sh.gone.add(e.ledger.sums)
	delete(sh.entries, hash)
}

// place is where one bound of a request is decided.
type place struct {
	hash  uint64
	index int // of the shard
	shard *shard
	entry *entry // nil: there is none
	draw  draw
	how   how
}

// how a bound was decided.
type how uint8

const (
	asks       how = iota // by the shared store
	draws                 // from a lease
	remembered            // by an earlier refusal
)

// fewBounds is how many bounds need no memory beyond the stack.
const fewBounds = 8

// find places the bounds, and answers the shards to lock, each once and in one order for all requests, so that no two
// requests wait for each other.
func (s *Store) find(bounds []policy.Bound, places []place, locks []int) []int {
	for i := range bounds {
		p := &places[i]
		p.hash = maphash.Comparable(s.seed, bounds[i].Key)
		p.index = int(p.hash & (shardCount - 1))
		p.shard = &s.shards[p.index]
		locks = append(locks, p.index)
	}
	slices.Sort(locks)
	return slices.Compact(locks)
}

func (s *Store) lock(shards []int) {
	for _, i := range shards {
		s.shards[i].mu.Lock()
	}
}

func (s *Store) unlock(shards []int) {
	for _, i := range shards {
		s.shards[i].mu.Unlock()
	}
}
