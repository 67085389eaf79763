package outage

import (
	"context"
	"slices"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/decision"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/limit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
)

// A call without an answer may leave a slot of a concurrency limit in the central store that no request needs: the take
// of a request that its fail mode has decided, or the release of one that has ended. A release names the slot by its
// id, so it is repeated until the store answers or the slot ends by its deadline.

// maxLostSlots bounds the slots that are to be released, about 400 bytes each.
const maxLostSlots = 10_000

// lostSlot is a slot that the central store may hold for no request.
type lostSlot struct {
	bound   policy.Bound
	receipt limit.Receipt
	until   limit.Micros // when it has ended by its deadline, by the clock of the fallback
}

// recordLostSlots records the slots of bounds whose call had no answer.
func (ds *debts) recordLostSlots(bounds []policy.Bound, statuses []decision.Status, now limit.Micros) {
	for i := range bounds {
		b, s := &bounds[i], &statuses[i]
		if !b.Key.Slots || s.Failure == decision.NoFailure || s.Source == decision.Local || s.Receipt == (limit.Receipt{}) {
			continue
		}
		lost := lostSlot{bound: *b, receipt: s.Receipt, until: now + b.Policy.Limit.Spec().Window}
		lost.bound.Key = b.Key.Clone()
		ds.putBackSlots([]lostSlot{lost})
	}
}

// putBackSlots records slots, as far as there is room.
func (ds *debts) putBackSlots(slots []lostSlot) {
	ds.mu.Lock()
	defer ds.mu.Unlock()
	ds.lost = append(ds.lost, slots[:min(len(slots), maxLostSlots-len(ds.lost))]...)
}

// releaseLostSlots releases the slots that the central store may hold for no request. It keeps those that it does
// not answer.
func (s *Guard) releaseLostSlots(ctx context.Context) {
	s.debts.mu.Lock()
	lost := s.debts.lost
	s.debts.lost = nil
	s.debts.mu.Unlock()
	now := s.now()
	for list := range slices.Chunk(lost, batch) {
		bounds, statuses := make([]policy.Bound, len(list)), make([]decision.Status, len(list))
		for i := range list {
			bounds[i] = list[i].bound
			statuses[i] = decision.Status{Source: decision.Redis, Charged: true, Receipt: list[i].receipt}
		}
		limited, cancel := context.WithTimeout(ctx, chargeTimeout)
		err := s.central.Settle(limited, bounds, statuses, make([]int64, len(list)))
		cancel()
		for i := range list {
			if err == nil && statuses[i].Failure != decision.NoFailure && now < list[i].until {
				s.debts.putBackSlots(list[i : i+1])
			}
		}
	}
}
