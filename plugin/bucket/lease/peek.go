package lease

import (
	"context"

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
	d := newDraft(len(bounds))
	defer d.putBack()
	if v.store.peek(bounds, statuses, d.places, v.store.locate(bounds, d.places)) {
		return nil
	}
	d.fill(&v.store.terms, bounds)
	if err := v.next.Peek(ctx, d.bounds, d.statuses); err != nil {
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
	before := make([]holdings, len(places))
	for i := range places {
		if e := places[i].entry; e != nil {
			before[i] = e.holdings
		}
	}
	toCall, _ := drawPlaces(bounds, statuses, places, now)
	for i := range places {
		p := &places[i]
		if p.entry != nil {
			p.entry.holdings = before[i]
		}
		if p.how == fromLease {
			p.entry.fillStatus(&statuses[i], false, now)
		}
	}
	return toCall == 0
}
