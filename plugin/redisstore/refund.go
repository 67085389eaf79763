package redisstore

import (
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/limit"
)

// refund makes q the request that gives back what p's has spent, and tells whether there is anything to give back. It
// must be made from p's reply before p settles.
//
// How much can be given back is decided where the bucket is, see lua/refund.lua: never more than is certain to be the
// request's own.
func (q *plan) refund(p *plan) bool {
	q.bounds, q.enforced = p.bounds, 0
	q.subjects, q.buckets = append(q.subjects[:0], p.subjects...), append(q.buckets[:0], p.buckets...)
	q.records = q.records[:0]
	for i := range q.buckets {
		q.buckets[i].log = 0
	}
	for i := range p.records {
		if r := &p.records[i]; p.spent(r) {
			q.records = append(q.records, *r)
		}
	}
	if len(q.records) == 0 {
		return false
	}
	q.begin(modeRefund)
	for i := range q.records {
		r := &q.records[i]
		b, bound := &q.buckets[r.bucket], &q.bounds[r.bound]
		l := &bound.Policy.Limit
		if r.log != nil {
			b.state = r.log.state
		}
		b.state = p.spend(b.state, bound)
		taken := p.now
		if b.state.Algorithm == limit.SlidingLog {
			taken = b.state.Log[len(b.state.Log)-1].At
		}
		q.appendRecord(r, price(l, bound.Cost), int64(taken))
	}
	q.end()
	return true
}
