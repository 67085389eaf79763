package redis

import (
	"cmp"
	"context"
	"fmt"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/bucket/store"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/decision"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/limit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
)

// settlement is what is settled of one take.
type settlement struct {
	receipt limit.Receipt
	actual  int64 // tokens, of the bound's cost
	most    int64 // units up to which a charge fills the bucket; 0: as far as the limit can owe
}

// Settle implements store.Store, for the statuses with the source Redis. In a cluster each group of bounds with one
// hash tag is settled by a call of its own, all at once, whether or not the others are answered. What is doubtful of a
// refund stays spent, as does the refund of a call that fails.
func (s *Store) Settle(
	ctx context.Context, bounds []policy.Bound, statuses []decision.Status, actual []int64,
) error {
	actual, refunds, err := store.Actuals(bounds, statuses, actual)
	if err != nil {
		return err
	}
	changes := func(i int) bool { return markSettled(&bounds[i], &statuses[i], actual[i], refunds) }
	runAll(s.partsOf(bounds, changes), func(p *part) {
		settlements := make([]settlement, len(p.indexes))
		for j, i := range p.indexes {
			settlements[j] = settlement{receipt: statuses[i].Receipt, actual: actual[i]}
		}
		changes, err := s.runSettle(ctx, p.bounds, settlements)
		switch {
		case err == nil:
		case refunds:
			s.warnOfLostRefund(err)
			return
		default:
			s.countAndWarn(&s.lostSettlements, len(p.indexes), "settling what requests had reserved failed", "error", err)
		}
		for j, i := range p.indexes {
			if err != nil {
				statuses[i].Failure = failure(err)
			} else {
				statuses[i].Settled = changes[j]
			}
		}
	})
	return nil
}

// markSettled marks a status that Redis has charged as not charged, and reports whether its bucket changes.
func markSettled(b *policy.Bound, status *decision.Status, actual int64, refunds bool) bool {
	if !status.Charged || status.Source != decision.Redis {
		return false
	}
	status.Charged, status.Settled = false, 0
	if refunds {
		status.Used, status.Remaining = status.Used-b.Cost, status.Remaining+b.Cost
	}
	return unitsToReturn(&b.Policy.Limit, b.Cost, actual) != 0
}

// runSettle settles bounds of one group by one call, and returns the change of each in tokens.
func (s *Store) runSettle(ctx context.Context, bounds []policy.Bound, settlements []settlement) ([]int64, error) {
	p := scriptCall{levels: &s.levels, clock: s.clock}
	if err := p.settle(bounds, settlements); err != nil {
		return nil, err
	}
	if err := s.run(ctx, &p); err != nil {
		return nil, err
	}
	return p.readSettled(p.call.reply)
}

// settle compiles the request that settles what bounds have spent. lua/settle.lua decides how much each bucket gets:
// never more than is certain to be missing still.
func (p *scriptCall) settle(bounds []policy.Bound, settlements []settlement) error {
	p.numberBuckets(bounds)
	p.settlements = settlements
	for i := range bounds {
		p.addRecord(record{bound: i, spends: true})
	}
	if err := p.writeHeader(modeSettle); err != nil {
		return err
	}
	for i := range p.records {
		l, r := &bounds[i].Policy.Limit, settlements[i].receipt
		cost := unitsToReturn(l, bounds[i].Cost, settlements[i].actual)
		if cost < 0 {
			r.Debt = cmp.Or(settlements[i].most, l.Units().Ceiling)
		}
		p.appendRecord(&p.records[i])
		p.appendNumbers(cost, int64(r.At), r.Debt, r.Mark)
		p.appendParameters(&p.records[i])
		p.appendNumbers(l.Units().Step)
	}
	p.call.args = append(p.call.args[:0], p.request)
	return nil
}

// unitsToReturn returns what the script returns of the reserved tokens, in the units that it counts; below 0: what it
// charges beyond them.
func unitsToReturn(l *limit.Limit, reserved, actual int64) int64 {
	reserved, actual = max(reserved, 0), max(actual, 0)
	if l.IsConcurrency() {
		return 1
	}
	if actual <= reserved {
		return costInUnits(l, max(min(reserved, l.Capacity())-actual, 0))
	}
	u, excess := l.Units(), actual-reserved
	if u.Kind == limit.TokenBucket {
		return -min(excess, u.Ceiling/u.Base) * u.Base
	}
	return -min(excess, u.Ceiling)
}

// readSettled reads the reply to a settlement, and returns the change of each bound in tokens.
func (p *scriptCall) readSettled(reply []byte) ([]int64, error) {
	e := soleReply(reply)
	changes, err := e.integers()
	if err != nil {
		return nil, err
	}
	if len(changes) != len(p.records) {
		return nil, fmt.Errorf("%w: %d numbers for %d settlements", errReply, len(changes), len(p.records))
	}
	for i, returned := range changes {
		bound := &p.bounds[i]
		cost := unitsToReturn(&bound.Policy.Limit, bound.Cost, p.settlements[i].actual)
		if cost < 0 && returned > 0 || cost >= 0 && returned < 0 {
			return nil, fmt.Errorf("%w: %d units came back of %d tokens that cost %d", errReply, returned, bound.Cost,
				p.settlements[i].actual)
		}
		changes[i] = bound.Policy.Limit.WholeTokens(-returned)
	}
	return changes, nil
}

// giveBack returns what the calls of a request have spent that another one denies.
func (s *Store) giveBack(ctx context.Context, p *scriptCall) {
	var spent []policy.Bound
	var settlements []settlement
	states := make([]limit.State, len(p.buckets))
	for i := range p.buckets {
		states[i] = p.buckets[i].state
	}
	for i := range p.records {
		if r := &p.records[i]; p.wasSpent(r) {
			state := &states[r.bucket]
			var receipt limit.Receipt
			*state, receipt = p.spend(r, *state)
			spent, settlements = append(spent, p.bounds[r.bound]), append(settlements, settlement{receipt: receipt})
		}
	}
	if len(spent) == 0 {
		return
	}
	if _, err := s.runSettle(ctx, spent, settlements); err != nil {
		s.warnOfLostRefund(err)
	}
}

func (s *Store) warnOfLostRefund(err error) {
	s.countAndWarn(&s.lostRefunds, 1, "refunding what a denied request had spent failed", "error", err)
}
