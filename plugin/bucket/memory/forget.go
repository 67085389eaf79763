package memory

import (
	"context"
	"hash/maphash"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
)

// Forget implements store.Store. It returns no error.
func (s *Store) Forget(_ context.Context, keys []policy.Key) (forgotten int, err error) {
	for i := range keys {
		if s.forget(&keys[i]) {
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
