package memstore

import (
	"context"
	"time"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/limit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/policy"
)

const (
	// round is how long Run takes to visit every shard once.
	round = 10 * time.Second
	// sampleSize is how many buckets a new one chooses from at the ceiling.
	sampleSize = 8
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
	for key, b := range sh.buckets {
		if b.expiry <= now {
			sh.forget(key, now)
		}
	}
	// A map never shrinks by itself.
	if kept := len(sh.buckets); sh.most > smallMap && kept < sh.most/4 {
		smaller := make(map[policy.Key]*bucket, kept)
		for key, b := range sh.buckets {
			smaller[key] = b
		}
		sh.buckets, sh.most = smaller, kept
	}
}

func (sh *shard) forget(key policy.Key, now limit.Micros) {
	delete(sh.buckets, key)
	sh.expired++
	sh.forgot = max(sh.forgot, now)
}

// evict makes room in a full shard: of a sample, the bucket that expires soonest goes. A bucket of the request that
// needs the room does not count; where the shard holds no others, it grows by this one.
func (sh *shard) evict(t *taking) {
	var soonest policy.Key
	var victim *bucket
	sampled := 0
	for key, b := range sh.buckets { // a range over a map starts anywhere
		if t.uses(b) {
			continue
		}
		if victim == nil || b.expiry < victim.expiry {
			soonest, victim = key, b
		}
		if sampled++; sampled == sampleSize {
			break
		}
	}
	switch {
	case victim == nil:
	case victim.expiry <= t.now:
		sh.forget(soonest, t.now)
	default:
		delete(sh.buckets, soonest)
		sh.evicted++
	}
}

func (t *taking) uses(b *bucket) bool {
	for i := range t.drafts {
		if t.drafts[i].bucket == b {
			return true
		}
	}
	return false
}
