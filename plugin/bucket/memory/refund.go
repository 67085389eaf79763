package memory

import (
	"context"
	"hash/maphash"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/bucket/store"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/decision"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
)

// Refund implements store.Store.
func (s *Store) Refund(_ context.Context, bounds []policy.Bound, statuses []decision.Status) error {
	if err := store.CheckLengths("refund", bounds, statuses); err != nil {
		return err
	}
	for i := range statuses {
		if statuses[i].Charged {
			s.refund(&bounds[i], &statuses[i])
		}
	}
	return nil
}

// refund returns what one bound has spent.
func (s *Store) refund(b *policy.Bound, status *decision.Status) {
	hash := maphash.Comparable(s.seed, b.Key)
	sh := &s.shards[s.shardIndex(hash)]
	sh.mu.Lock()
	defer sh.mu.Unlock()
	status.Charged, status.Returned = false, 0
	now := max(s.now(), sh.droppedAt)
	kept := sh.findBucket(hash, &b.Key)
	if kept == nil || kept.expiry <= now {
		return
	}
	l, state := &b.Policy.Limit, kept.state
	status.Returned = l.WholeTokens(l.Refund(&state, now, b.Cost, status.Receipt))
	if status.Returned > 0 {
		kept.write(&state, l, now)
	}
	l.Advance(&state, now)
	status.Status, status.Now = l.Status(&state, now), now
}
