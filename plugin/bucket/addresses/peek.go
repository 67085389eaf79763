package addresses

import (
	"context"
	"fmt"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/bucket/store"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/decision"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/limit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
)

// Peek implements store.Store. It keeps no new address: it shows the bucket that would count one now.
func (v *Store) Peek(ctx context.Context, bounds []policy.Bound, statuses []decision.Status) error {
	if err := store.CheckLengths("peek at", bounds, statuses); err != nil {
		return err
	}
	d := drafts.Get().(*draft)
	defer d.putBack()
	if v.budget.chooseRoutes(d, bounds, v.budget.now(), true) {
		return v.next.Peek(ctx, bounds, statuses)
	}
	clear(statuses)
	d.distribute(bounds)
	if len(d.local.bounds) > 0 {
		if err := v.local.Peek(ctx, d.local.bounds, d.local.statuses); err != nil {
			return fmt.Errorf("peek at addresses in this process: %w", err)
		}
		if d.local.report(statuses) || len(d.shared.bounds) == 0 {
			return nil
		}
	}
	if err := v.next.Peek(ctx, d.shared.bounds, d.shared.statuses); err != nil {
		return err
	}
	d.shared.report(statuses)
	return nil
}

// peekRoute returns how [Budget.route] would count an address, and changes nothing.
func (b *Budget) peekRoute(key *policy.Key, hash uint64, bytes uint32, now limit.Micros) route {
	r := route{way: byAddress, hash: hash}
	kept, shared := b.own.findKey(hash, now, 0)
	if kept && !shared {
		return r
	}
	r.prefix, r.prefixHash = b.prefixOf(key, bytes)
	inUse, _ := b.prefixes.findKey(r.prefixHash, now, 0)
	switch own := kept || b.own.hasRoom(hash, bytes, now); {
	case own && inUse:
		r.way = byBoth
	case own:
	case inUse || b.prefixes.hasRoom(r.prefixHash, bytes, now):
		r.way = byPrefix
	default:
		r.way = inProcess
	}
	return r
}

// hasRoom reports whether a new key could be added now.
func (t *table) hasRoom(hash uint64, bytes uint32, now limit.Micros) bool {
	if !t.reserve(bytes, now) {
		return false
	}
	t.bytes.Add(-int64(bytes))
	s := t.setOf(hash)
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.free(now) >= 0 && t.pace.isDue(now)
}

// isDue reports whether one more event is due at now, and does not count it.
func (p *pace) isDue(now limit.Micros) bool {
	at := 1000 * int64(now)
	return p.step == 0 || max(p.next.Load(), at-burst*1_000_000_000)+p.step <= at
}
