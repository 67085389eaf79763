package redis

import (
	"fmt"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/limit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/policy"
)

// refund compiles the request that refunds what bounds have spent, by the receipts of their takes. lua/refund.lua
// decides how much each bucket gets: never more than is certain to be missing still.
func (p *scriptCall) refund(bounds []policy.Bound, receipts []limit.Receipt) error {
	p.numberBuckets(bounds)
	p.receipts = receipts
	for i := range bounds {
		p.records = append(p.records, record{bound: i, bucket: p.bucketOf[i], spends: true})
	}
	if p.tooMany() {
		return errTooMany
	}
	p.writeHeader(modeRefund)
	for i := range p.records {
		l, r := &bounds[i].Policy.Limit, &receipts[i]
		p.appendRecord(&p.records[i])
		p.appendNumbers(costInUnits(l, bounds[i].Cost), int64(r.At), r.Debt, r.Mark)
		p.appendParameters(&p.records[i])
		p.appendNumbers(l.Units().Step)
	}
	p.setArgument()
	return nil
}

// readReturned reads the reply to a refund. It returns how many whole tokens each bound got back.
func (p *scriptCall) readReturned(reply []byte) ([]int64, error) {
	returned, err := integers(reply)
	if err != nil {
		return nil, err
	}
	if len(returned) != len(p.records) {
		return nil, fmt.Errorf("%w: %d numbers for %d refunds", errReply, len(returned), len(p.records))
	}
	for i, n := range returned {
		if n < 0 {
			return nil, fmt.Errorf("%w: a refund returned %d", errReply, n)
		}
		returned[i] = p.bounds[i].Policy.Limit.WholeTokens(n)
	}
	return returned, nil
}

// provisional returns the bounds that the script has spent, and their receipts.
func (p *scriptCall) provisional() (spent []policy.Bound, receipts []limit.Receipt) {
	states := make([]limit.State, len(p.buckets))
	for i := range p.buckets {
		states[i] = p.buckets[i].state
	}
	for i := range p.records {
		if r := &p.records[i]; p.wasSpent(r) {
			state := &states[r.bucket]
			*state = p.spend(r, *state)
			spent, receipts = append(spent, p.bounds[r.bound]), append(receipts, state.Receipt())
		}
	}
	return spent, receipts
}
