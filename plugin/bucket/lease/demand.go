package lease

import "github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/limit"

// span is the time whose demand one lease covers.
const span = limit.Second / 10

// demand counts the tokens of one bucket that requests spend on this node, by spans, as far as leases have room for
// them. The zero value is no demand.
type demand struct {
	span    limit.Micros // the current one, counted from the clock's zero
	current int64        // tokens in it so far
	average int64        // tokens in the spans before, exponentially weighted: ½, ¼, …
	cost    int64        // of the last request
}

// observe counts a cost that was spent at now, if it is above 0.
func (d *demand) observe(cost int64, now limit.Micros) {
	if cost <= 0 {
		return
	}
	d.roll(now)
	d.current += cost
	d.cost = cost
}

// perSpan returns about how many tokens are spent in one span.
func (d *demand) perSpan(now limit.Micros) int64 {
	d.roll(now)
	return max(d.average, d.current)
}

// isHot reports whether a lease saves calls: two requests of the last cost arrive in a span.
func (d *demand) isHot(now limit.Micros) bool { return d.perSpan(now) >= minLease*max(d.cost, 1) }

func (d *demand) roll(now limit.Micros) {
	passed := now/span - d.span
	if passed <= 0 {
		return
	}
	d.average = (d.average + d.current + 1) / 2 >> min(passed-1, 62)
	d.span, d.current = now/span, 0
}
