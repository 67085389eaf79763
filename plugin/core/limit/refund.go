package limit

import "slices"

// Refunds return what a request spent, as far as that cannot raise any other request's limit.
//
// A refund that comes late must not return what the bucket would have refilled anyway. Let a request have taken cost
// units and left the debt D behind. Without them the debt would have been D − cost, less what was refunded since, and
// would have been paid back (D − cost − refunded) ÷ rate ticks later at the earliest. Until then every tick that
// refilled the bucket would have refilled it without these units too: nothing is lost. From then on the bucket may
// have been full without them, and each tick's refill counts as lost.
//
// The debt is therefore never less than if only what was not refunded had been taken. For a proof, let d be the debt,
// and e the debt of a bucket that never saw the refunded takes; e ≤ d. The two come closer only where e is 0 and d is
// not. At such an instant s, consider the takes before s that are refunded later, and of those the one, j, that is
// refunded last. All others are refunded before j, so they are part of what is refunded since j's take, and
//
//	D(j) − cost(j) − refunded(j) − rate × (s − taken(j)) ≤ the losses counted so far − how much closer d and e came
//
// Where the left side is not above 0, j counts s as lost itself. Where it is, earlier refunds have counted more than
// came about, and j is not among them. So the losses that are counted are at least those that there were. A limit that
// only warns cuts the debt at its capacity and promises nothing.

// The mark of a bucket is its count of refunds, rounded up to steps, modulo 2^48. It begins at a number made of the
// instant at which the bucket began to count; a change of the rate and the start of another window add markSpan. A
// receipt from before a reset, a lost key or such a change therefore differs by markSpan or more, and nothing is
// refunded. The same holds once more was refunded than a mark can count: 16 million tokens, or the refill of 16 million
// ticks where that is more. No sum overflows, and a mark that begins anew does no harm. A changed limit is detected by
// the base and 4 bits of the rate: where a rate of the same base comes and goes between a take and its refund, one such
// change in 16 is missed, and the refund computes the refill of that time with the wrong rate.
const (
	// markSpan bounds how many steps a mark may have advanced since a receipt; a step is the refill of a token, or of a
	// tick.
	markSpan = 1 << 24
	// markMask has the bits of a mark.
	markMask = 1<<48 - 1
	// markTick is the distance between the births of two buckets that ensures different marks, within 71 minutes.
	markTick Micros = 256
	// recentEntries is the number of a sliding log's last entries that a refund can reach.
	recentEntries = 64
)

// Receipt identifies a take to a later refund. The zero value belongs to no take.
type Receipt struct {
	At   Micros // the state's At right after the take
	Debt int64  // the state's Spent right after the take: a token bucket's debt in units of 1/base token
	Mark int64  // the state's Mark at the take

	// Of a concurrency limit At is the deadline of the slot, and Debt and Mark are its id.
}

// Receipt returns the receipt of a take. Call it right after [Limit.Spend].
func (s *State) Receipt() Receipt { return Receipt{At: s.At, Debt: s.Spent, Mark: s.Mark} }

// Join returns a receipt for what is left of two takes of one bucket. A refund by it returns no more than refunds by
// the two receipts would. It is the receipt of the earlier take: without what is left of both takes, the debt after
// the earlier one was no less than its own debt less all of that.
func (r Receipt) Join(other Receipt) Receipt {
	later := (other.Mark - r.Mark) & markMask
	switch earlier := (r.Mark - other.Mark) & markMask; {
	case min(later, earlier) >= markSpan && later < earlier: // r's bucket no longer exists
		return r
	case min(later, earlier) >= markSpan:
		return other
	case r.At != other.At:
		if r.At < other.At {
			return r
		}
		return other
	case later != earlier:
		if later < earlier {
			return r
		}
		return other
	}
	r.Debt = max(r.Debt, other.Debt) // at one instant, and nothing was refunded in between
	return r
}

// mark returns the mark of a bucket that begins to count at now.
func mark(now Micros) int64 { return int64(now/markTick) * markSpan & markMask }

// nextLife moves the mark so far that no earlier receipt counts.
func (s *State) nextLife() { s.Mark = (s.Mark + markSpan) & markMask }

// Refund returns cost tokens of a take to s, as far as they are certain to be missing still. It returns the amount that
// came back, in the units of [State.Spent]. It needs no [Limit.Advance]. Where nothing comes back s is unchanged.
//
// A token bucket gets back all but what it may have refilled without effect, see the top of this file. A window gets
// all back while the tokens count in it, or in the next one. A sliding log gets all back while the entry is one of its
// last 64.
func (l *Limit) Refund(s *State, now Micros, cost int64, r Receipt) int64 {
	if cost = min(cost, l.Capacity()); cost <= 0 || s.Algorithm != l.kind || s.Tag != l.tag || s.ahead(now) {
		return 0
	}
	since := (s.Mark - r.Mark) & markMask
	switch {
	case l.kind == Concurrency:
		return s.releaseSlot(now, r)
	case l.kind == SlidingWindow && since == markSpan && s.At == r.At+l.spec.Window:
		cost = min(cost, s.Previous)
		s.Previous -= cost
		return cost
	case since >= markSpan:
		return 0
	case l.kind == TokenBucket:
		return l.refundBucket(s, now, cost*l.base, since, r)
	case l.kind == SlidingLog:
		return s.refundLog(cost, r)
	}
	cost = min(cost, s.Spent) // the same window: another start has another mark
	s.Spent -= cost
	return cost
}

// WholeTokens converts a result of [Limit.Refund] or [Limit.Settle] to whole tokens, rounded toward 0.
func (l *Limit) WholeTokens(units int64) int64 {
	if l.kind == TokenBucket {
		return units / l.base
	}
	return units
}

func (l *Limit) refundBucket(s *State, now Micros, cost, since int64, r Receipt) int64 {
	if s.Base != l.base || s.At < r.At {
		return 0 // the state of another limit, or of a bucket that began later
	}
	after := *s
	l.refill(&after, now)
	untilFull := max(r.Debt-cost, 0) / l.rate
	if since >= ceilDiv(untilFull, l.step) { // before multiplying, so that the product stays in bounds
		untilFull = 0
	} else {
		untilFull -= since * l.step
	}
	back := cost
	if lost := int64((after.At-r.At)/l.tick) - untilFull; lost >= ceilDiv(cost, l.rate) {
		return 0
	} else if lost > 0 {
		back -= lost * l.rate
	}
	if back = min(back, after.Spent); back <= 0 {
		return 0
	}
	after.Spent -= back
	after.Mark = (after.Mark + ceilDiv(ceilDiv(back, l.rate), l.step)) & markMask
	*s = after
	return back
}

// refundLog returns cost tokens to the entry of a take, and removes an entry of which nothing is left: a log has no
// more entries than tokens, however many takes are refunded.
func (s *State) refundLog(cost int64, r Receipt) int64 {
	for i := len(s.Log) - 1; i >= max(len(s.Log)-recentEntries, 0); i-- {
		if s.Log[i].At != r.At {
			continue
		}
		if s.Log[i].Cost < cost {
			return 0
		}
		s.Spent -= cost
		if s.Log[i].Cost -= cost; s.Log[i].Cost == 0 {
			s.Log = slices.Delete(s.Log, i, i+1)
		}
		if len(s.Log) == 0 {
			s.Log = nil
		}
		return cost
	}
	return 0
}
