// Package memstore keeps buckets in this process: the embedded default, for one node.
//
// All buckets of a request are asked and spent under the locks of their shards, so a decision is atomic. Memory is
// bounded twice: a bucket goes when its state means nothing any more, and at the ceiling a new bucket takes the place
// of one that would have gone soon. Buckets shared between nodes are package redisstore's business; what the numbers
// mean is package limit's.
package memstore

import (
	"context"
	"hash/maphash"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/decision"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/limit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/policy"
)

// Options are what a Store needs. Now must be set.
type Options struct {
	Now        func() limit.Micros // the clock of all buckets
	MaxBuckets int                 // the ceiling; 0: one million
}

// Stats are a store's numbers, all but Buckets since its start.
type Stats struct {
	Buckets int    // kept now
	Expired uint64 // forgotten because their state meant nothing any more
	Evicted uint64 // forgotten at the ceiling, with what was spent from them
}

const (
	shardCount = 256
	fewBounds  = 8 // as many bounds need no memory beyond the stack
	// sampleSize is how many buckets a new one chooses from at the ceiling.
	sampleSize = 8
	// sweepEvery and sweepShards visit every shard about every nine seconds, and lock no more than one at a time.
	sweepEvery  = 100 * time.Millisecond
	sweepShards = 3
)

// Store keeps buckets. It is safe for concurrent use. Make it with New.
//
// At the ceiling, a new bucket evicts the one that expires soonest of a sample of its shard. Whoever owned that
// bucket starts with a fresh one, so it is admitted at most its limit's bound once more; long windows (a tenant's
// daily quota) are the last to go, and a flood of addresses displaces itself first.
type Store struct {
	now      func() limit.Micros
	seed     maphash.Seed
	perShard int
	shards   [shardCount]shard
	expired  atomic.Uint64
	evicted  atomic.Uint64
}

type shard struct {
	mu      sync.Mutex
	buckets map[policy.Key]*bucket
	most    int      // the most buckets since the map was made
	_       [40]byte // a cache line for each lock
}

type bucket struct {
	state  limit.State
	expiry limit.Micros
}

// New makes a store. It starts nothing: see Run.
func New(o Options) *Store {
	if o.MaxBuckets <= 0 {
		o.MaxBuckets = 1_000_000
	}
	s := &Store{now: o.Now, seed: maphash.MakeSeed(), perShard: max(o.MaxBuckets/shardCount, 1)}
	for i := range s.shards {
		s.shards[i].buckets = map[policy.Key]*bucket{}
	}
	return s
}

// entry is a bound of the request that is being taken.
type entry struct {
	shard  *shard
	index  int
	bucket *bucket // nil: not kept yet
	state  limit.State
}

// Take implements admit.Buckets. It never fails.
func (s *Store) Take(_ context.Context, bounds []policy.Bound, statuses []decision.Status) error {
	var few [fewBounds]entry
	entries := few[:min(len(bounds), fewBounds)]
	if len(bounds) > fewBounds {
		entries = make([]entry, len(bounds))
	}
	var order [fewBounds]int
	locks := order[:0]
	for i := range bounds {
		index := int(maphash.Comparable(s.seed, bounds[i].Key) % shardCount)
		entries[i].index, entries[i].shard = index, &s.shards[index]
		locks = append(locks, index)
	}
	slices.Sort(locks) // in one order for all requests, so that none waits for another in a circle
	locks = slices.Compact(locks)
	for _, index := range locks {
		s.shards[index].mu.Lock()
	}
	now := s.now() // under the locks, so that time does not step back between the requests of a bucket
	s.take(bounds, statuses, entries, now)
	for _, index := range locks {
		s.shards[index].mu.Unlock()
	}
	return nil
}

func (s *Store) take(bounds []policy.Bound, statuses []decision.Status, entries []entry, now limit.Micros) {
	admitted := true
	for i := range bounds {
		e, l := &entries[i], &bounds[i].Policy.Limit
		if e.bucket = e.shard.buckets[bounds[i].Key]; e.bucket != nil {
			e.state = e.bucket.state
		}
		l.Advance(&e.state, now)
		status := &statuses[i]
		status.Source, status.Now = decision.Memory, now
		status.Wait = l.Wait(&e.state, now, bounds[i].Cost+sameBucket(bounds, i))
		if bounds[i].Enforced() && status.Wait != 0 {
			admitted = false
		}
	}
	for i := range bounds {
		e, l := &entries[i], &bounds[i].Policy.Limit
		if admitted && statuses[i].Wait == 0 && bounds[i].Cost > 0 {
			e.state = s.spend(bounds, entries, i, now)
		}
		statuses[i].Status = l.Status(&e.state, now)
	}
}

// sameBucket is what earlier enforced bounds of the request spend from bound i's bucket, if any do: a request may be
// bound twice by one bucket, and then it must have room for both.
func sameBucket(bounds []policy.Bound, i int) int64 {
	var cost int64
	for j := range i {
		if bounds[j].Enforced() && bounds[j].Key == bounds[i].Key {
			cost += bounds[j].Cost
		}
	}
	return cost
}

// spend charges bound i to its bucket, which is made if it is not kept yet, and answers the state.
func (s *Store) spend(bounds []policy.Bound, entries []entry, i int, now limit.Micros) limit.State {
	e, l, key := &entries[i], &bounds[i].Policy.Limit, bounds[i].Key
	if e.bucket == nil {
		e.bucket = e.shard.buckets[key] // an earlier bound may have made it
	}
	if e.bucket == nil {
		if len(e.shard.buckets) >= s.perShard {
			s.evict(e.shard, entries)
		}
		e.bucket = &bucket{}
		e.shard.buckets[key] = e.bucket
		e.shard.most = max(e.shard.most, len(e.shard.buckets))
	}
	state := &e.bucket.state
	l.Advance(state, now)
	l.Spend(state, now, bounds[i].Cost)
	e.bucket.expiry = l.Expiry(state, now)
	return *state
}

// evict forgets the bucket that expires soonest of a sample, but none that the request itself spends from.
func (s *Store) evict(sh *shard, entries []entry) {
	var soonest policy.Key
	var victim *bucket
	seen := 0
	for key, b := range sh.buckets {
		if victim == nil || b.expiry < victim.expiry {
			if !slices.ContainsFunc(entries, func(e entry) bool { return e.bucket == b }) {
				soonest, victim = key, b
			}
		}
		if seen++; seen >= sampleSize && victim != nil {
			break
		}
	}
	if victim != nil {
		delete(sh.buckets, soonest)
		s.evicted.Add(1)
	}
}

// Run forgets expired buckets until ctx ends. Without it a store is correct and grows up to its ceiling.
func (s *Store) Run(ctx context.Context) error {
	ticker := time.NewTicker(sweepEvery)
	defer ticker.Stop()
	for next := 0; ; {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
			for range sweepShards {
				s.sweep(&s.shards[next], s.now())
				next = (next + 1) % shardCount
			}
		}
	}
}

// Sweep forgets all buckets that have expired at now.
func (s *Store) Sweep(now limit.Micros) {
	for i := range s.shards {
		s.sweep(&s.shards[i], now)
	}
}

func (s *Store) sweep(sh *shard, now limit.Micros) {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	for key, b := range sh.buckets {
		if b.expiry <= now {
			delete(sh.buckets, key)
			s.expired.Add(1)
		}
	}
	// A map never shrinks by itself: one that has become mostly empty is made anew.
	if kept := len(sh.buckets); sh.most > 64 && kept < sh.most/4 {
		smaller := make(map[policy.Key]*bucket, kept)
		for key, b := range sh.buckets {
			smaller[key] = b
		}
		sh.buckets, sh.most = smaller, kept
	}
}

// Stats counts the buckets, shard by shard.
func (s *Store) Stats() Stats {
	stats := Stats{Expired: s.expired.Load(), Evicted: s.evicted.Load()}
	for i := range s.shards {
		s.shards[i].mu.Lock()
		stats.Buckets += len(s.shards[i].buckets)
		s.shards[i].mu.Unlock()
	}
	return stats
}
