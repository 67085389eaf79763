package memory

import (
	"context"
	"maps"
	"time"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/limit"
)

const (
	// round is how long Run takes to visit every shard once.
	round = 10 * time.Second
	// smallMap is the size from which a map that has become mostly empty is worth making anew.
	smallMap = 64
)

// Run forgets expired buckets until ctx ends, one shard at a time. It is not an error that ctx ends. Without Run a
// store is correct, and grows up to its ceiling.
func (s *Store) Run(ctx context.Context) error {
	ticker := time.NewTicker(round / time.Duration(len(s.shards)))
	defer ticker.Stop()
	for i := 0; ; i = (i + 1) % len(s.shards) {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
			s.shards[i].sweep(s.now())
		}
	}
}

// Sweep forgets all buckets that have expired at now.
func (s *Store) Sweep(now limit.Micros) {
	for i := range s.shards {
		s.shards[i].sweep(now)
	}
}

func (sh *shard) sweep(now limit.Micros) {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	for hash, b := range sh.byHash {
		for b != nil {
			next := b.next
			if b.expiry <= now {
				sh.forget(hash, b, now)
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

func (sh *shard) forget(hash uint64, b *bucket, now limit.Micros) {
	sh.remove(hash, b)
	sh.expired++
	sh.forgot = max(sh.forgot, now)
}
