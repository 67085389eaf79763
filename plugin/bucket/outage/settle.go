package outage

import (
	"context"
	"slices"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/bucket/store"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/decision"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/limit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
)

// Settle implements store.Store. Which store admitted a bound decides where it is settled:
//
//   - The central store: there.
//   - This process: in its buckets. If the central store did not answer, also in the debt that this process charges to
//     it after the outage. Once that is charged, the central store returns nothing.
//   - None, by fail mode open: in that debt alone. Such a status is Unanswered with a Failure, and the caller marks it
//     as Charged.
//
// Of bounds with a debt, what a request cost beyond its reservation is charged to the central store at once. If that
// fails, it adds to the debt.
func (v *Store) Settle(
	ctx context.Context, bounds []policy.Bound, statuses []decision.Status, actual []int64,
) error {
	if err := store.CheckActual(bounds, statuses, actual); err != nil {
		return err
	}
	if err := v.store.settleCentral(ctx, bounds, statuses, actual); err != nil {
		return err
	}
	if slices.ContainsFunc(statuses, func(s decision.Status) bool { return s.Charged }) {
		return v.Local().Settle(ctx, bounds, statuses, actual)
	}
	return nil
}

// settleCentral settles the bounds that the central store charged. Of bounds that were admitted without it, it charges
// there what they cost beyond their reservations. It does not change the statuses of bounds that this process counted.
func (s *Guard) settleCentral(
	ctx context.Context, bounds []policy.Bound, statuses []decision.Status, actual []int64,
) error {
	settled := slices.Clone(statuses)
	calls := false
	for i := range settled {
		status := &settled[i]
		switch {
		case !status.Charged:
			continue
		case isUnverified(status):
			if status.Charged = actual[i] > bounds[i].Cost; status.Charged {
				*status = decision.Status{Source: decision.Redis, Charged: true}
			}
		case status.Source != decision.Redis:
			status.Charged = false
		}
		calls = calls || status.Charged
	}
	if calls {
		if err := s.central.Settle(ctx, bounds, settled, actual); err != nil {
			return err
		}
		s.debts.recordLostSlots(bounds, settled, s.now()) // a release that had no answer
	}
	changes := s.debts.recordSettlement(bounds, statuses, settled, actual, s.now())
	for i := range statuses {
		status := &statuses[i]
		switch {
		case !status.Charged:
		case status.Source == decision.Redis:
			*status = settled[i]
		case status.Source == decision.Unanswered:
			status.Charged, status.Settled = false, settled[i].Settled+changes[i]
		}
	}
	return nil
}

// isUnverified reports whether a bound was admitted without the central store: this process answered, or no store did.
func isUnverified(s *decision.Status) bool {
	return s.Failure != decision.NoFailure && (s.Source == decision.Local || s.Source == decision.Unanswered)
}

// recordSettlement records in the debts what the central store did not settle. A cost beyond the reservation that could
// not be charged adds to the debt, and a cost below the reservation of a bound that is still due reduces it. statuses
// are the statuses of the request, settled the statuses of the call. It returns the change of each debt in tokens.
func (ds *debts) recordSettlement(
	bounds []policy.Bound, statuses, settled []decision.Status, actual []int64, now limit.Micros,
) (changes []int64) {
	ds.mu.Lock()
	defer ds.mu.Unlock()
	changes = make([]int64, len(bounds))
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
			t := ds.recordAdmission(&b, failure, now, now)
			ds.record(b.Policy.Name, t)
			changes[i] = t.Unverified - t.WrittenOff
		case actual[i] < reserved && isUnverified(status):
			if b.Cost = reserved - max(actual[i], 0); ds.cancelAdmission(&b, status) {
				changes[i] = -b.Cost
			}
		}
	}
	return changes
}
