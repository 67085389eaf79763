// Package memory keeps buckets in this process: the embedded default, for one node.
//
// All buckets of a request are asked and spent under the locks of their shards, so a decision is atomic. Memory is
// bounded twice: a bucket goes when its state means nothing any more, and at the ceiling a new bucket takes the place
// of one whose owner loses little by it. Buckets shared between nodes are another store's business; what the numbers
// mean is package limit's.
package memory

import (
	"hash/maphash"
	"math/bits"
	"slices"
	"sync"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/limit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/policy"
)

// Options are what a Store needs. Now must be set.
type Options struct {
	// Now is the clock of all buckets. It should never step, as a clock.Clock: if it steps back by an hour or less, buckets
	// stand still until it has caught up.
	Now func() limit.Micros
	// MaxBuckets is the ceiling; 0: one million. A bucket takes about 300 bytes, short names included.
	MaxBuckets int
}

// Stats are a store's numbers, all but Buckets since its start.
type Stats struct {
	Buckets int    // kept now
	Expired uint64 // forgotten because their state meant nothing any more
	Evicted uint64 // forgotten at the ceiling, with what was spent from them
}

const (
	defaultBuckets = 1_000_000
	maxShards      = 256
	// fullShard is how many buckets a shard has room for at least, so that an eviction has a choice.
	fullShard = 32
)

// Store keeps buckets. It is safe for concurrent use. Make it with New.
//
// At the ceiling, a new bucket evicts another: see crowd.go for which. Whoever owned that bucket starts with a fresh
// one, so it is admitted at most its limit's bound once more.
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
	// byHash has the buckets by the hash of their keys, which is at hand already and far smaller than a key. Buckets of
	// one hash are linked.
	byHash map[uint64]*bucket
	crowds map[owner]*crowd
	kept   int // buckets
	most   int // the most buckets since the map was made
	// forgot is the latest instant for which buckets were forgotten. No bucket is asked about an earlier one: a clock
	// that stepped back would find a fresh bucket where an expired one was.
	forgot  limit.Micros
	expired uint64
	evicted uint64
	_       [64]byte // keeps the next shard's lock off this cache line
}

// bucket is a state and the instant from which it may be forgotten.
type bucket struct {
	key    policy.Key
	state  limit.State
	expiry limit.Micros
	next   *bucket // another of the same hash
	crowd  *crowd  // nil: it is the bucket of a tenant, an endpoint, or everybody
	place  int32   // in the crowd
	used   int32   // 1/1024 of the limit, when it was last spent from; 1 at least
}

func (sh *shard) find(hash uint64, key *policy.Key) *bucket {
	b := sh.byHash[hash]
	for b != nil && b.key != *key {
		b = b.next
	}
	return b
}

// add keeps a new bucket. The names in its key come from the request, and may be cut from much larger texts; here they
// stand together, because they are compared together.
func (sh *shard) add(hash uint64, key policy.Key) *bucket {
	names := string(slices.Concat([]byte(key.GroupID), []byte(key.Subject), []byte(key.Endpoint)))
	subject, endpoint := len(key.GroupID), len(key.GroupID)+len(key.Subject)
	key.GroupID, key.Subject, key.Endpoint = names[:subject], names[subject:endpoint], names[endpoint:]
	b := &bucket{key: key, next: sh.byHash[hash]}
	sh.byHash[hash] = b
	sh.join(b)
	sh.kept++
	sh.most = max(sh.most, sh.kept)
	return b
}

func (sh *shard) remove(hash uint64, b *bucket) {
	sh.kept--
	sh.part(b)
	if head := sh.byHash[hash]; head == b {
		if b.next == nil {
			delete(sh.byHash, hash)
		} else {
			sh.byHash[hash] = b.next
		}
	} else {
		for head.next != b {
			head = head.next
		}
		head.next = b.next
	}
}

// New makes a store. It starts nothing: see [Store.Run].
func New(o Options) *Store {
	if o.MaxBuckets <= 0 {
		o.MaxBuckets = defaultBuckets
	}
	shards := 1 << (bits.Len(uint(min(max(o.MaxBuckets/fullShard, 1), maxShards))) - 1)
	s := &Store{now: o.Now, seed: maphash.MakeSeed(), perShard: max(o.MaxBuckets/shards, 1), shards: make([]shard, shards)}
	for i := range s.shards {
		s.shards[i].seed = s.seed
		s.shards[i].byHash, s.shards[i].crowds = map[uint64]*bucket{}, map[owner]*crowd{}
	}
	return s
}

// Stats counts the buckets, shard by shard.
func (s *Store) Stats() Stats {
	var stats Stats
	for i := range s.shards {
		s.shards[i].count(&stats)
	}
	return stats
}

func (sh *shard) count(stats *Stats) {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	stats.Buckets += sh.kept
	stats.Expired += sh.expired
	stats.Evicted += sh.evicted
}
