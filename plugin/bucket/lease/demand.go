package lease

import "github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/limit"

// span is how much demand one lease is to cover.
const span = limit.Second / 10

// demand is how many tokens of one bucket requests spend on this node, of those that leases have room for, counted by
// spans. The zero value is none.
type demand struct {
	span    limit.Micros // the current one, counted from the clock's zero
	current int64        // tokens in it so far
	average int64        // tokens in those before, half of it by the last, a quarter by the one before, …
	cost    int64        // of the last request
}

// observe counts what a request has spent at now, if anything.
func (d *demand) observe(cost int64, now limit.Micros) {
	if cost <= 0 {
		return
	}
	d.roll(now)
	d.current += cost
	d.cost = cost
}

// perSpan is about how many are spent in one span.
func (d *demand) perSpan(now limit.Micros) int64 {
	d.roll(now)
	return max(d.average, d.current)
}

// isHot tells whether enough requests come that a lease costs less than they would: two in a span, at what they cost.
func (d *demand) isHot(now limit.Micros) bool { return d.perSpan(now) >= minLease*max(d.cost, 1) }

func (d *demand) roll(now limit.Micros) {
	passed := now/span - d.span
	if passed <= 0 {
		return
	}
	d.average = (d.average + d.current + 1) / 2 >> min(passed-1, 62)
	d.span, d.current = now/span, 0
}
