package addresses

import (
	"context"
	"errors"
	"fmt"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/bucket/store"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/decision"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/internal/prefix"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/limit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/policy"
)

// Peek implements store.Store. It keeps no new address: it shows the bucket that would count one now.
func (v *View) Peek(ctx context.Context, bounds []policy.Bound, statuses []decision.Status) error {
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

// Refund implements store.Store. What an address above the budget spent by its prefix stays spent: its bucket may be
// another by now.
func (v *View) Refund(ctx context.Context, bounds []policy.Bound, statuses []decision.Status) error {
	if err := store.CheckLengths("refund", bounds, statuses); err != nil {
		return err
	}
	now := v.budget.now()
	var shared, local part
	for i := range bounds {
		status := &statuses[i]
		switch {
		case !status.Charged:
		case status.Source == decision.Local && status.Failure == decision.NoFailure:
			local.addStatus(i, bounds[i], status)
		case prefix.Address(&bounds[i].Key) == nil || v.budget.isApart(&bounds[i], now):
			shared.addStatus(i, bounds[i], status)
		default:
			status.Charged, status.Returned = false, 0
		}
	}
	err := v.next.Refund(ctx, shared.bounds, shared.statuses)
	if len(local.bounds) > 0 {
		err = errors.Join(err, v.local.Refund(ctx, local.bounds, local.statuses))
	}
	for _, p := range []*part{&shared, &local} {
		for j, i := range p.indexes {
			statuses[i] = p.statuses[j]
		}
	}
	return err
}

// isApart reports whether an address is counted in a bucket of its own alone, and has been for as long as what it spent
// counts: an address that was counted by its prefix is counted by both until that has expired.
func (b *Budget) isApart(bound *policy.Bound, now limit.Micros) bool {
	bytes := logBytes(bound)
	hash := b.hash(&bound.Key, bytes)
	if kept, _ := b.own.findKey(hash, now, 0); !kept {
		return false
	}
	return b.peekRoute(&bound.Key, hash, bytes, now).way == byAddress
}

// addStatus adds a bound with its status.
func (p *part) addStatus(i int, b policy.Bound, status *decision.Status) {
	p.addBound(i, b)
	p.statuses[len(p.statuses)-1] = *status
}

// Forget implements store.Store.
func (v *View) Forget(ctx context.Context, keys []policy.Key) (int, error) {
	here, err := v.local.Forget(ctx, keys)
	there, failed := v.next.Forget(ctx, keys)
	return here + there, errors.Join(err, failed)
}
