package lease

import (
	"context"
	"slices"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/bucket/store"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/decision"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/policy"
)

// Peek implements store.Store: it shows what leases and remembered denials decide, and draws nothing. What is available
// on lease counts as not used.
func (v *View) Peek(ctx context.Context, bounds []policy.Bound, statuses []decision.Status) error {
	if err := store.CheckLengths("peek at", bounds, statuses); err != nil {
		return err
	}
	clear(statuses)
	places := make([]place, len(bounds))
	if v.store.peek(bounds, statuses, places, v.store.locate(bounds, places)) {
		return nil
	}
	d := drafts.Get().(*draft)
	defer d.putBack()
	d.fill(&v.store.terms, bounds, places)
	if err := v.next.Peek(ctx, d.bounds, d.statuses); err != nil {
		return err
	}
	d.report(statuses)
	return nil
}

// peek answers the bounds that need no call of the shared store, and reports whether these are all. It changes no
// entry.
func (s *Store) peek(bounds []policy.Bound, statuses []decision.Status, places []place, shards shardSet) (all bool) {
	s.lock(shards)
	defer s.unlock(shards)
	now := s.now()
	if s.denyFromMemory(bounds, statuses, places, now) {
		return true
	}
	all = true
	before := make([]ledger, len(places))
	for i := range places {
		p := &places[i]
		if p.entry != nil {
			before[i] = p.entry.ledger
		}
		switch {
		case p.how == fromMemory: // in shadow
			statuses[i] = p.entry.deniedStatus(bounds[i].Cost, now)
		case p.entry != nil && !p.shard.closed && p.entry.draw(&p.draw, bounds[i].Cost, now):
			p.how = fromLease
		default:
			all = false
		}
	}
	for i := range slices.Backward(places) { // two bounds may have drawn from one entry
		if places[i].entry != nil {
			places[i].entry.ledger = before[i]
		}
	}
	for i := range places {
		if places[i].how == fromLease {
			places[i].entry.fillStatus(&statuses[i], false, now)
		}
	}
	return all
}

// Refund implements store.Store, for what the shared store or this process has spent. What was drawn from a lease stays
// spent, because its grant may have ended.
func (v *View) Refund(ctx context.Context, bounds []policy.Bound, statuses []decision.Status) error {
	if err := store.CheckLengths("refund", bounds, statuses); err != nil {
		return err
	}
	taken := slices.Clone(bounds)
	for i := range taken {
		if t := v.store.terms.get(taken[i].Policy); t != nil {
			taken[i].Policy = t.policy
		}
		if status := &statuses[i]; status.Charged && status.Source == source {
			status.Charged, status.Returned = false, 0
		}
	}
	return v.next.Refund(ctx, taken, statuses)
}

// Forget implements store.Store. It ends the leases and remembered denials of this node too.
func (v *View) Forget(ctx context.Context, keys []policy.Key) (int, error) {
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
func (s *Store) forget(p *place, key *policy.Key) {
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
