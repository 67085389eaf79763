// Package memory keeps buckets in this process: the embedded default, for one node.
//
// All buckets of a request are checked and spent under the locks of their shards, so a decision is atomic. Memory is
// bounded twice: a bucket is dropped when it has expired, and at the ceiling a new bucket replaces one whose loss
// matters little. Buckets that nodes share are in package redis; what the numbers mean is in package limit.
package memory

import (
	"context"
	"hash/maphash"
	"math/bits"
	"slices"
	"sync"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/bucket/store"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/limit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
)

// Options configures a Store. Now must be set.
type Options struct {
	// Now is the clock of all buckets. It should never step, as a clock.Clock: if it steps back by an hour or less,
	// buckets stand still until it has caught up.
	Now func() limit.Micros
	// MaxBuckets is the ceiling; 0: one million. A bucket takes about 300 bytes, short names included.
	MaxBuckets int
}

// Stats holds a store's numbers, all but Buckets since its start.
type Stats struct {
	Buckets int    `metric:"local_buckets"`               // kept now
	Expired uint64 `metric:"local_buckets_expired_total"` // dropped when they had expired
	Evicted uint64 `metric:"local_buckets_evicted_total"` // dropped at the ceiling, with what was spent from them
}

const (
	defaultBuckets = 1_000_000
	maxShards      = 256
	// fullShard is the least number of buckets that a shard has room for, so that an eviction has a choice.
	fullShard = 32
)

// Store keeps buckets. It is safe for concurrent use. Make it with New.
//
// At the ceiling, a new bucket evicts another, see evict.go. The tenant, user or address of that bucket starts with a
// fresh one, so it is admitted at most its limit's bound once more.
type Store struct {
	now      func() limit.Micros
	seed     maphash.Seed
	perShard int
	shards   []shard // a power of two
}

// shard is a part of the buckets, under one lock. Which part a bucket belongs to is decided by its key alone.
type shard struct {
	mu   sync.Mutex
	seed maphash.Seed // of the store
	// byHash has the buckets by the hash of their keys, which is far smaller than a key. Buckets of one hash are linked.
	byHash  map[uint64]*bucket
	cohorts map[cohortKey]*cohort
	kept    int // buckets
	most    int // the most buckets since the map was made
	// droppedAt is the latest instant at which expired buckets were dropped. No earlier instant is used for a bucket: a
	// clock that stepped back would find a fresh bucket where an expired one was.
	droppedAt limit.Micros
	expired   uint64
	evicted   uint64
	_         [64]byte // keeps the next shard's lock off this cache line
}

// bucket is a state and the instant from which it may be dropped.
type bucket struct {
	key    policy.Key
	state  limit.State
	expiry limit.Micros
	next   *bucket // another of the same hash
	cohort *cohort // nil: it is the bucket of an endpoint or of all
	place  int32   // in the cohort
	used   int32   // 1/1024 of the limit, when it was last spent from; 1 at least
}

// findBucket returns the bucket of a key, or nil.
func (sh *shard) findBucket(hash uint64, key *policy.Key) *bucket {
	b := sh.byHash[hash]
	for b != nil && b.key != *key {
		b = b.next
	}
	return b
}

// makeBucket adds an empty bucket for a request. In a full shard it evicts another. The names in its key come from the
// request and may be cut from much larger texts; here they are copied into one, because they are compared together.
func (sh *shard) makeBucket(hash uint64, key *policy.Key, perShard int, t *taking) *bucket {
	if sh.kept >= perShard {
		sh.evict(t, key, perShard)
	}
	names := string(slices.Concat([]byte(key.GroupID), []byte(key.Subject), []byte(key.Endpoint)))
	subject, endpoint := len(key.GroupID), len(key.GroupID)+len(key.Subject)
	b := &bucket{key: *key, next: sh.byHash[hash]}
	b.key.GroupID, b.key.Subject, b.key.Endpoint = names[:subject], names[subject:endpoint], names[endpoint:]
	sh.byHash[hash] = b
	sh.joinCohort(b)
	sh.kept++
	sh.most = max(sh.most, sh.kept)
	return b
}

func (sh *shard) removeBucket(hash uint64, b *bucket) {
	sh.kept--
	sh.leaveCohort(b)
	switch head := sh.byHash[hash]; {
	case head == b && b.next == nil:
		delete(sh.byHash, hash)
	case head == b:
		sh.byHash[hash] = b.next
	default:
		for head.next != b {
			head = head.next
		}
		head.next = b.next
	}
}

// New returns an empty store. It starts no goroutine, see [Store.Run].
func New(o Options) *Store {
	if o.MaxBuckets <= 0 {
		o.MaxBuckets = defaultBuckets
	}
	shards := 1 << (bits.Len(uint(min(max(o.MaxBuckets/fullShard, 1), maxShards))) - 1)
	s := &Store{now: o.Now, seed: maphash.MakeSeed(), perShard: max(o.MaxBuckets/shards, 1), shards: make([]shard, shards)}
	for i := range s.shards {
		s.shards[i].seed = s.seed
		s.shards[i].byHash, s.shards[i].cohorts = map[uint64]*bucket{}, map[cohortKey]*cohort{}
	}
	return s
}

// Stats returns the store's numbers. It counts the buckets shard by shard.
func (s *Store) Stats() Stats {
	var stats Stats
	for i := range s.shards {
		sh := &s.shards[i]
		sh.mu.Lock()
		stats.Buckets += sh.kept
		stats.Expired += sh.expired
		stats.Evicted += sh.evicted
		sh.mu.Unlock()
	}
	return stats
}

// Forget implements store.Keeper. It returns no error.
func (s *Store) Forget(_ context.Context, bounds []policy.Bound) (forgotten int, err error) {
	for i := range bounds {
		if s.forget(&bounds[i].Key) {
			forgotten++
		}
	}
	return forgotten, nil
}

// forget deletes one bucket, and reports whether it still counted anything.
func (s *Store) forget(key *policy.Key) bool {
	hash := maphash.Comparable(s.seed, *key)
	sh := &s.shards[s.shardIndex(hash)]
	sh.mu.Lock()
	defer sh.mu.Unlock()
	b := sh.findBucket(hash, key)
	if b == nil {
		return false
	}
	sh.removeBucket(hash, b)
	return b.expiry > max(s.now(), sh.droppedAt)
}

// Slots implements store.Keeper. It returns no error.
func (s *Store) Slots(_ context.Context, bound *policy.Bound, most int) (store.Slots, error) {
	key := &bound.Key
	hash := maphash.Comparable(s.seed, *key)
	sh := &s.shards[s.shardIndex(hash)]
	sh.mu.Lock()
	defer sh.mu.Unlock()
	slots := store.Slots{Now: max(s.now(), sh.droppedAt)}
	if b := sh.findBucket(hash, key); b != nil {
		slots.Deadlines = b.state.Deadlines(slots.Now, most)
	}
	return slots, nil
}

// Seed raises what is spent of a bucket to tokens, as if they had been spent at the instant at under l and nothing
// since. A bucket of which as much is spent already stays as it is, so a second call changes nothing. Tokens beyond the
// capacity of l are cut off; an instant later than the store's clock is used unchanged.
func (s *Store) Seed(key policy.Key, l *limit.Limit, tokens int64, at limit.Micros) {
	if tokens <= 0 {
		return
	}
	hash := maphash.Comparable(s.seed, key)
	sh := &s.shards[s.shardIndex(hash)]
	sh.mu.Lock()
	defer sh.mu.Unlock()
	now := max(s.now(), sh.droppedAt)

	var seeded, kept limit.State
	l.Advance(&seeded, at)
	l.Spend(&seeded, at, min(tokens, l.Capacity()))
	l.Advance(&seeded, now)
	b := sh.findBucket(hash, &key)
	if b != nil && b.expiry > now {
		kept = b.state
	}
	l.Advance(&kept, now)
	if l.Status(&kept, now).Used >= l.Status(&seeded, now).Used {
		return
	}
	if b == nil {
		b = sh.makeBucket(hash, &key, s.perShard, &taking{now: now})
	}
	b.write(&seeded, l, now)
}
