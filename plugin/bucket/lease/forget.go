package lease

import (
	"context"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
)

// Forget implements store.Store. It ends the leases and remembered denials of this node too.
func (v *Store) Forget(ctx context.Context, keys []policy.Key) (int, error) {
	n, err := v.next.Forget(ctx, keys)
	bounds := make([]policy.Bound, len(keys))
	for i := range keys {
		bounds[i].Key = keys[i]
	}
	places := make([]place, len(keys))
	v.store.locate(bounds, places)
	for i := range places {
		v.store.forget(&places[i], &keys[i])
	}
	return n, err
}

// forget drops what was learned of a bucket, and schedules the return of its grants.
func (s *Leases) forget(p *place, key *policy.Key) {
	p.shard.mu.Lock()
	defer p.shard.mu.Unlock()
	e := p.shard.lookup(p.hash, key)
	if e == nil {
		return
	}
	if taken, grants := e.rebind(e.policy, e.terms, s.now()); taken != nil {
		s.scheduleReturn(dueRenewal{shard: p.shard, entry: e}, policy.Bound{Policy: taken, Key: e.key}, grants)
	}
}
