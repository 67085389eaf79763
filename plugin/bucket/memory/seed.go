package memory

import (
	"hash/maphash"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/limit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
)

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
		b = sh.makeBucket(hash, &key, s.perShard, now)
	}
	b.write(&seeded, l, now)
}
