package memory

import (
	"context"
	"hash/maphash"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/bucket/store"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/decision"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/limit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
)

// Settle implements store.Store. It waits for locks only.
func (s *Store) Settle(
	_ context.Context, bounds []policy.Bound, statuses []decision.Status, actual []int64,
) error {
	if err := store.CheckActual(bounds, statuses, actual); err != nil {
		return err
	}
	for i := range statuses {
		if status := &statuses[i]; status.Charged {
			status.Charged = false
			status.Settled = s.settle(&bounds[i], status.Receipt, actual[i])
		}
	}
	return nil
}

// settle settles one bound, and returns the change in tokens. A charge makes a bucket where there is none.
func (s *Store) settle(b *policy.Bound, r limit.Receipt, actual int64) int64 {
	hash := maphash.Comparable(s.seed, b.Key)
	sh := &s.shards[s.shardIndex(hash)]
	sh.mu.Lock()
	defer sh.mu.Unlock()
	now := max(s.now(), sh.droppedAt)
	var state limit.State
	kept := sh.findBucket(hash, &b.Key)
	if kept != nil && kept.expiry > now {
		state = kept.state
	}
	l := &b.Policy.Limit
	change := l.Settle(&state, now, b.Cost, actual, r)
	if change == 0 {
		return 0
	}
	if kept == nil {
		kept = sh.makeBucket(hash, &b.Key, s.perShard, now)
	}
	expiry := kept.expiry
	if kept.write(&state, l, now); change < 0 {
		kept.expiry = expiry // as in Redis: later than this limit needs, but perhaps not another
	}
	return l.WholeTokens(change)
}

// Refund implements store.Refunder.
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
