package memory

import (
	"context"
	"maps"
	"runtime"
	"time"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/limit"
)

const (
	// round is how long Run takes to visit every shard once.
	round = 10 * time.Second
	// maxTicks is how often Run wakes the process in a round, a power of two, so that it divides the number of shards.
	maxTicks = 64
	// smallMap is the size from which a map that has become mostly empty is made anew.
	smallMap = 64
)

// Run drops expired buckets until ctx ends, one shard at a time, and returns nil then. Between two shards it lets
// requests go first. Without Run a store is correct, and grows up to its ceiling.
func (s *Store) Run(ctx context.Context) error {
	shardsPerTick := max(len(s.shards)/maxTicks, 1)
	ticker := time.NewTicker(round * time.Duration(shardsPerTick) / time.Duration(len(s.shards)))
	defer ticker.Stop()
	for i := 0; ; i = (i + shardsPerTick) % len(s.shards) {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
			for j := range shardsPerTick {
				s.shards[i+j].sweep(s.now())
				runtime.Gosched()
			}
		}
	}
}

// Sweep drops all buckets that have expired at now, as Run does one shard at a time. It is for callers with a clock of
// their own.
func (s *Store) Sweep(now limit.Micros) {
	for i := range s.shards {
		s.shards[i].sweep(now)
	}
}

// sweep drops the shard's buckets that have expired at now.
func (sh *shard) sweep(now limit.Micros) {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	for hash, b := range sh.byHash {
		for b != nil {
			next := b.next
			if b.expiry <= now {
				sh.expireBucket(hash, b, now)
			}
			b = next
		}
	}
	// A map never shrinks by itself.
	if sh.most > smallMap && sh.kept < sh.most/4 {
		smaller := make(map[uint64]*bucket, sh.kept)
		maps.Copy(smaller, sh.byHash)
		sh.byHash, sh.most = smaller, sh.kept
	}
}

// expireBucket removes a bucket that has expired at now.
func (sh *shard) expireBucket(hash uint64, b *bucket, now limit.Micros) {
	sh.removeBucket(hash, b)
	sh.expired++
	sh.droppedAt = max(sh.droppedAt, now)
}
