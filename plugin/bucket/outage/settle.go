package outage

import (
	"context"
	"fmt"
	"slices"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/bucket/store"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/decision"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/limit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/policy"
)

// Settle implements store.Store. What this process admitted is settled in its own buckets, and in what is due from the
// shared store, unless that was charged already. What a request cost beyond its reservation is charged to the shared
// store, at once, or after the outage if it was not sent.
func (v *View) Settle(
	ctx context.Context, bounds []policy.Bound, statuses []decision.Status, actual []int64,
) error {
	if err := store.CheckActual(bounds, statuses, actual); err != nil {
		return err
	}
	if err := v.store.settleShared(ctx, bounds, statuses, actual); err != nil {
		return err
	}
	if slices.ContainsFunc(statuses, func(s decision.Status) bool { return s.Charged }) {
		return v.Local().Settle(ctx, bounds, statuses, actual)
	}
	return nil
}

// settleShared settles what the shared store charged, and charges it what bounds cost that this process admitted,
// beyond their reservations. It leaves the statuses of these bounds alone.
func (s *Store) settleShared(
	ctx context.Context, bounds []policy.Bound, statuses []decision.Status, actual []int64,
) error {
	settled := slices.Clone(statuses)
	calls := false
	for i := range settled {
		status := &settled[i]
		switch {
		case !status.Charged:
			continue
		case isFallback(status):
			if status.Charged = actual[i] > bounds[i].Cost; status.Charged {
				*status = decision.Status{Source: decision.Redis, Charged: true}
			}
		case status.Source != decision.Redis:
			status.Charged = false
		}
		calls = calls || status.Charged
	}
	if calls {
		if err := s.shared.Settle(ctx, bounds, settled, actual); err != nil {
			return err
		}
	}
	s.debts.recordSettlement(bounds, statuses, settled, actual, s.now())
	for i := range statuses {
		if statuses[i].Charged && statuses[i].Source == decision.Redis {
			statuses[i] = settled[i]
		}
	}
	return nil
}

// isFallback reports whether this process answered for the shared store.
func isFallback(s *decision.Status) bool {
	return s.Source == decision.Local && s.Failure != decision.NoFailure
}

// recordSettlement records what the shared store did not settle: what a request cost beyond its reservation and was not
// sent is due later, and what came back is not due any more. The statuses are those of the request, settled are those
// of the call.
func (ds *debts) recordSettlement(
	bounds []policy.Bound, statuses, settled []decision.Status, actual []int64, now limit.Micros,
) {
	ds.mu.Lock()
	defer ds.mu.Unlock()
	for i := range bounds {
		b, status := bounds[i], &statuses[i]
		if !status.Charged || !b.Enforced() {
			continue
		}
		reserved := b.Cost
		failure := settled[i].Failure
		switch {
		case actual[i] > reserved && failure != decision.NoFailure:
			b.Cost = actual[i] - reserved
			ds.record(b.Policy.Name, ds.recordAdmission(&b, failure, now))
		case actual[i] < reserved && isFallback(status):
			b.Cost = reserved - max(actual[i], 0)
			ds.cancelAdmission(&b, status.Failure)
		}
	}
}

// Settle implements store.Store.
func (l local) Settle(
	ctx context.Context, bounds []policy.Bound, statuses []decision.Status, actual []int64,
) error {
	shares, err := l.shares(bounds)
	if err != nil {
		return err
	}
	if err := l.view.store.fallback.Settle(ctx, shares, statuses, actual); err != nil {
		return fmt.Errorf("settle %d bounds locally: %w", len(bounds), err)
	}
	return nil
}
