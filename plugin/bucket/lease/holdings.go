package lease

import (
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/limit"
)

// holdings account for the tokens that this node holds of one bucket: the bucket was charged for them and no request
// has spent them yet. It has no clock and does no I/O. The zero value holds nothing.
//
// Every granted token ends in one of three ways: Granted = Spent + Returned + Expired + returning + outstanding,
// without those that are only requested.
type holdings struct {
	grants    [2]grant // the first is spent first; one without tokens is none
	requested int64    // tokens that a renewal under way has requested
	pending   int64    // tokens drawn for requests that are not decided yet
	returning int64    // tokens on their way back to the bucket, which no request can spend
	sums      Tokens
}

// grant is a number of tokens taken from the bucket at once.
type grant struct {
	tokens  int64
	receipt limit.Receipt // identifies them to a refund
	since   limit.Micros  // this node's clock before they were requested
	ends    limit.Micros  // this node's clock from which they must not be spent
}

// draw is what one request has taken out of the holdings of a bucket.
type draw struct {
	grant
	epoch uint64 // of the entry, see there
}

// Tokens counts leased tokens by what became of them.
type Tokens struct {
	Granted  int64 `metric:"leased_tokens_total outcome=granted"`  // taken from shared buckets ahead of need
	Spent    int64 `metric:"leased_tokens_total outcome=spent"`    // by requests that were admitted
	Returned int64 `metric:"leased_tokens_total outcome=returned"` // returned to shared buckets
	Expired  int64 `metric:"leased_tokens_total outcome=expired"`  // ended unspent, or their bucket had refilled
}

func (t *Tokens) add(other Tokens) {
	t.Granted += other.Granted
	t.Spent += other.Spent
	t.Returned += other.Returned
	t.Expired += other.Expired
}

// available returns the tokens that can be drawn, unless their grants have ended meanwhile.
func (h *holdings) available() int64 { return h.grants[0].tokens + h.grants[1].tokens }

// outstanding returns the tokens that the bucket lacks, or may lack soon, and that a request may still spend.
func (h *holdings) outstanding() int64 { return h.available() + h.pending + h.requested }

// beginRenewal records that a renewal requests tokens.
func (h *holdings) beginRenewal(tokens int64) { h.requested = tokens }

// endRenewal ends a renewal. A grant without tokens is a denial, or no answer.
func (h *holdings) endRenewal(g grant) {
	h.requested = 0
	h.sums.Granted += g.tokens
	h.addGrant(g)
}

// addGrant adds a grant behind the others. A third one is joined with the second, with the worse of both.
func (h *holdings) addGrant(g grant) {
	switch {
	case g.tokens == 0:
	case h.grants[0].tokens == 0:
		h.grants[0] = g
	case h.grants[1].tokens == 0:
		h.grants[1] = g
	default:
		h.grants[1] = joinGrants(h.grants[1], g)
	}
}

// joinGrants returns two grants as one that promises no more than either.
func joinGrants(a, b grant) grant {
	switch {
	case a.tokens == 0:
		return b
	case b.tokens == 0:
		return a
	}
	return grant{
		tokens:  a.tokens + b.tokens,
		receipt: a.receipt.Join(b.receipt),
		since:   min(a.since, b.since),
		ends:    min(a.ends, b.ends),
	}
}

// draw takes cost tokens for a request that must then be settled. It reports whether there were enough.
func (h *holdings) draw(d *grant, cost int64, now limit.Micros) bool {
	first, second := &h.grants[0], &h.grants[1]
	if cost < first.tokens && now < first.ends { // the usual case
		*d = *first
		d.tokens = cost
		first.tokens -= cost
		h.pending += cost
		return true
	}
	h.expire(now)
	if h.available() == 0 || cost > h.available() {
		return false
	}
	*d = *first
	if d.tokens = min(cost, first.tokens); d.tokens < cost {
		more := *second
		more.tokens = cost - d.tokens
		*d = joinGrants(*d, more)
		second.tokens -= more.tokens
	}
	if first.tokens -= min(cost, first.tokens); first.tokens == 0 {
		*first, *second = *second, grant{}
	}
	h.pending += cost
	return true
}

// settle ends a draw: its tokens are spent, or return to the holdings if they have not ended.
func (h *holdings) settle(d *grant, admitted bool, now limit.Micros) {
	h.pending -= d.tokens
	switch {
	case admitted:
		h.sums.Spent += d.tokens
	case now >= d.ends:
		h.sums.Expired += d.tokens
	default:
		h.grants[0] = joinGrants(*d, h.grants[0])
	}
}

// expire drops the grants that have ended.
func (h *holdings) expire(now limit.Micros) {
	for i := range h.grants {
		if g := &h.grants[i]; g.tokens > 0 && now >= g.ends {
			h.sums.Expired += g.tokens
			*g = grant{}
		}
	}
	if h.grants[0].tokens == 0 {
		h.grants[0], h.grants[1] = h.grants[1], grant{}
	}
}

// withdraw removes and returns the grants that were requested before an instant, without those that have ended, to be
// returned to the bucket. End each with endReturn.
func (h *holdings) withdraw(before, now limit.Micros) [2]grant {
	h.expire(now)
	var taken [2]grant
	for i := range h.grants {
		if g := &h.grants[i]; g.tokens > 0 && g.since < before {
			h.returning += g.tokens
			taken[i], *g = *g, grant{}
		}
	}
	h.expire(now)
	return taken
}

// endReturn ends the return of tokens, of which the bucket got back got.
func (h *holdings) endReturn(tokens, got int64) {
	h.returning -= tokens
	h.sums.Returned += got
	h.sums.Expired += tokens - got
}

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
