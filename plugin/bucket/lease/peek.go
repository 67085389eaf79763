package lease

import (
	"context"
	"slices"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/bucket/store"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/decision"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
)

// Peek implements store.Store: it shows what leases and remembered denials decide, and draws nothing. What is available
// on lease counts as not used.
func (v *Store) Peek(ctx context.Context, bounds []policy.Bound, statuses []decision.Status) error {
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
	if err := v.next.Peek(ctx, d.Bounds, d.Statuses); err != nil {
		return err
	}
	d.report(statuses)
	return nil
}

// peek answers the bounds that need no call of the central store, and reports whether these are all. It changes no
// entry.
func (s *Leases) peek(bounds []policy.Bound, statuses []decision.Status, places []place, shards shardSet) (all bool) {
	s.lock(shards)
	defer s.unlock(shards)
	now := s.now()
	if s.denyFromMemory(bounds, statuses, places, now) {
		return true
	}
	all = true
	before := make([]holdings, len(places))
	for i := range places {
		p := &places[i]
		if p.entry != nil {
			before[i] = p.entry.holdings
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
			places[i].entry.holdings = before[i]
		}
	}
	for i := range places {
		if places[i].how == fromLease {
			places[i].entry.fillStatus(&statuses[i], false, now)
		}
	}
	return all
}
