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
	refunds := actual == nil
	if refunds {
		actual = make([]int64, len(bounds))
	}
	if err := store.CheckActual(bounds, statuses, actual); err != nil {
		return err
	}
	for i := range statuses {
		if statuses[i].Charged {
			s.settle(&bounds[i], &statuses[i], actual[i], refunds)
		}
	}
	return nil
}

// settle settles one bound. A charge makes a bucket where there is none. The status of a refund shows the bucket
// after it.
func (s *Store) settle(b *policy.Bound, status *decision.Status, actual int64, refunds bool) {
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
	change := l.Settle(&state, now, b.Cost, actual, status.Receipt)
	status.Charged, status.Settled = false, l.WholeTokens(change)
	if refunds {
		after := state
		l.Advance(&after, now)
		status.Status, status.Now = l.Status(&after, now), now
	}
	if change == 0 {
		return
	}
	if kept == nil {
		kept = sh.makeBucket(hash, &b.Key, s.perShard, &taking{now: now})
	}
	expiry := kept.expiry
	if kept.write(&state, l, now); change < 0 {
		kept.expiry = expiry // as in Redis: later than this limit needs, but perhaps not another
	}
}
