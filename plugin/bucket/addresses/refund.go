package addresses

import (
	"context"
	"errors"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/bucket/store"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/decision"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/limit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
)

// Refund implements store.Store. What an address above the budget spent by its prefix stays spent: its bucket may be
// another by now.
func (v *Store) Refund(ctx context.Context, bounds []policy.Bound, statuses []decision.Status) error {
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
		case Address(&bounds[i].Key) == nil || v.budget.isApart(&bounds[i], now):
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
