package addresses

import (
	"context"
	"errors"
	"slices"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/bucket/store"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/decision"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/limit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
)

// Settle implements store.Store. What an address above the budget spent by its prefix stays spent: its bucket may be
// another by now. What an address cost beyond its reservation is charged where it is counted now.
func (v *Store) Settle(
	ctx context.Context, bounds []policy.Bound, statuses []decision.Status, actual []int64,
) error {
	if err := store.CheckActual(bounds, statuses, actual); err != nil {
		return err
	}
	if !slices.ContainsFunc(bounds, func(b policy.Bound) bool { return Address(&b.Key) != nil }) {
		return v.next.Settle(ctx, bounds, statuses, actual)
	}
	now := v.budget.now()
	var shared, local part
	for i := range bounds {
		b, status := &bounds[i], &statuses[i]
		switch {
		case !status.Charged:
		case status.Source == decision.Local && status.Failure == decision.NoFailure:
			local.Add(i, *b, *status)
		case Address(&b.Key) == nil:
			shared.Add(i, *b, *status)
		default:
			v.budget.settleAddress(&shared, &local, i, *b, status, actual[i], now)
		}
	}
	err := shared.settle(ctx, v.next, statuses, actual)
	if len(local.Bounds) > 0 {
		err = errors.Join(err, local.settle(ctx, v.local, statuses, actual))
	}
	return err
}

// settleAddress adds the bound of an address to the parts of the stores that count the address now, and keeps its keys
// for as long as a charge counts there. An address that its prefix counts too gets nothing back.
func (b *Budget) settleAddress(
	shared, local *part, i int, bound policy.Bound, status *decision.Status, actual int64, now limit.Micros,
) {
	bytes := logBytes(&bound)
	if bound.Key.Slots { // it is released wherever it is: no other bucket has its id
		shared.Add(i, bound, *status)
		prefix, _ := b.prefixOf(&bound.Key, bytes)
		bound.Key = WithAddress(bound.Key, prefix)
		shared.Add(i, bound, *status)
		return
	}
	r := b.route(&bound.Key, b.hash(&bound.Key, bytes), bytes, now)
	if actual <= bound.Cost {
		if status.Charged, status.Settled = r.way == byAddress, 0; status.Charged {
			shared.Add(i, bound, *status)
		}
		return
	}
	lasts := chargeLife(&bound, status, actual)
	switch r.way {
	case inProcess:
		local.Add(i, bound, *status)
		return
	case byPrefix:
		b.prefixes.extend(r.prefixHash, now, now+lasts)
	default:
		shared.Add(i, bound, *status)
		if b.own.extend(r.hash, now, now+lasts); r.way == byAddress {
			return
		}
	}
	bound.Key = WithAddress(bound.Key, r.prefix)
	shared.Add(i, bound, *status)
}

// chargeLife returns how long the key of a bound may live in the store after a charge, by its status after the take.
func chargeLife(b *policy.Bound, taken *decision.Status, actual int64) limit.Micros {
	spec := b.Policy.Limit.Spec()
	lasts := spec.Window
	if b.Policy.Limit.Units().Kind == limit.TokenBucket {
		refill := float64(actual-b.Cost) / float64(spec.Quantity) * float64(spec.Window)
		lasts = max(taken.Reset-taken.Now, 0) + limit.Micros(min(refill, limit.MaxProduct))
	}
	return lasts + lasts/4 + slack
}

// settle settles the part in its store, and fills in the statuses of the request.
func (p *part) settle(ctx context.Context, s store.Store, statuses []decision.Status, actual []int64) error {
	own := make([]int64, len(p.Index))
	for j, i := range p.Index {
		own[j] = actual[i]
	}
	err := s.Settle(ctx, p.Bounds, p.Statuses, own)
	for j, i := range p.Index {
		from := &p.Statuses[j]
		if j > 0 && p.Index[j-1] == i && p.Bounds[j].Key.Slots {
			from.Settled += p.Statuses[j-1].Settled
		}
		statuses[i].Charged, statuses[i].Settled, statuses[i].Failure = from.Charged, from.Settled, from.Failure
	}
	return err
}
