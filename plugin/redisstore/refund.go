package redisstore

import (
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/limit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/policy"
)

// refund makes p the request that gives back what bounds have spent at the instant taken of the server's clock.
//
// How much can be given back is decided where the bucket is, see lua/refund.lua: never more than is certain to be the
// request's own. A log's entry is looked for at that instant: if the clock had stepped back, it stays spent.
func (p *plan) refund(bounds []policy.Bound, taken limit.Micros) error {
	p.number(bounds)
	for i := range bounds {
		p.records = append(p.records, record{bound: i, bucket: p.of[i], spends: true})
	}
	if p.tooMany() {
		return errTooMany
	}
	p.begin(modeRefund)
	for i := range p.records {
		p.appendRecord(&p.records[i], price(&bounds[i].Policy.Limit, bounds[i].Cost), int64(taken))
	}
	p.end()
	return nil
}

// spentBounds are the bounds that the script has spent.
func (p *plan) spentBounds() []policy.Bound {
	var spent []policy.Bound
	for i := range p.records {
		if r := &p.records[i]; p.spent(r) {
			spent = append(spent, p.bounds[r.bound])
		}
	}
	return spent
}
