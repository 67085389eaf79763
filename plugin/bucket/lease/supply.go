package lease

import (
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/decision"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/limit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
)

const (
	// minLease is the smallest lease, in tokens and in requests. A smaller lease saves no call.
	minLease = 2
	// renewalPause is the time without renewals after one that was unanswered or too small.
	renewalPause = limit.Second / 20
	// sharingRound is the interval in which nodes share out what comes back to a scarce bucket. A denial by it lasts two
	// rounds; the answer to the renewal arrives in the second.
	sharingRound = limit.Second / 50
	// maxParts is the number of parts of a renewal: with 1 + 1 + 2 + 4 + … + 32 tokens it can get the last one.
	maxParts = 7
	// maxRenewalTime bounds the expected duration of renewals, so that no lease is renewed while it is half full.
	maxRenewalTime = span / 2
)

// supply is how much a bucket has left, as far as this node knows. The zero value is not scarce, but may be empty.
//
// A bucket is scarce when it has denied what this node would spend. If every node took all it could get, the first
// would get everything that came back, and the calls of the others would be wasted. So each node asks once a round, for
// its fair share and for what the others left in the round before.
type supply struct {
	scarce    bool
	room      int64        // tokens that the bucket had left in its last answer
	lastShare limit.Micros // this node's clock when it last requested its share
}

// fairShare returns the tokens that one of live nodes should request from a scarce bucket.
func (s *supply) fairShare(t *terms, live int64, now limit.Micros) int64 {
	others := t.refill(sharingRound) * (live - 1) / live
	return (t.refill(now-s.lastShare)+live-1)/live + max(s.room-others, 0)
}

// isAmple reports whether a lease of size would be granted again even if all other nodes took their shares.
func (s *supply) isAmple(t *terms, size int64) bool { return s.room >= size+t.refill(sharingRound) }

// renewalDue reports whether a renewal is due: what is left lasts about as long as a renewal takes.
func (e *entry) renewalDue(lasts, now limit.Micros) bool {
	free := e.holdings.available()
	return 2*free <= e.size && e.renewalUseful(0, now) &&
		(free <= minLease || free <= e.demand.perSpan(now)*int64(min(lasts, maxRenewalTime))/int64(span))
}

// renewalUseful reports whether a renewal is worth it when others are due anyway, or when cost had to be taken from the
// store.
func (e *entry) renewalUseful(cost int64, now limit.Micros) bool {
	free := e.holdings.available()
	return e.terms != nil && !e.queued && now >= e.nextRenewal && (2*free <= e.size || free < cost) &&
		e.demand.isHot(now)
}

// renewalSize returns the tokens that a renewal should request when live nodes share leases; 0: none.
func (e *entry) renewalSize(live int64, now limit.Micros) int64 {
	if e.terms == nil || live <= 0 {
		return 0
	}
	e.holdings.expire(now)
	e.size = min(e.demand.perSpan(now), e.terms.maxOut/live)
	n := e.size - e.holdings.outstanding()
	if e.supply.scarce {
		n = min(n, e.supply.fairShare(e.terms, live, now))
	}
	if n < minLease {
		return 0
	}
	return n
}

// splitRequest appends the parts in which a renewal requests n tokens: one part, or ever smaller ones if the bucket may
// have less, so that one call gets what there is.
func (e *entry) splitRequest(parts []policy.Bound, n int64) []policy.Bound {
	b := policy.Bound{Policy: e.terms.leased, Key: e.key, Cost: n}
	if !e.supply.scarce && e.supply.room >= 2*n {
		return append(parts, b)
	}
	for i := 1; n > 0; i++ {
		if b.Cost = (n + 1) / 2; i == maxParts {
			b.Cost = n
		}
		parts, n = append(parts, b), n-b.Cost
	}
	return parts
}

// pause postpones the next renewal.
func (e *entry) pause(now limit.Micros) {
	e.queued, e.nextRenewal, e.supply.scarce = false, now+renewalPause, false
}

// applyRenewal ends a renewal whose parts were requested at an instant of this node's clock. It reports whether another
// must follow, as soon as nextRenewal allows.
func (e *entry) applyRenewal(parts []policy.Bound, answer []decision.Status, calledAt, now, longest limit.Micros) bool {
	e.holdings.endRenewal(grant{})
	e.queued = false
	last := &answer[len(answer)-1]
	if !answered(last) {
		e.pause(now) // the call may have taken longer than the pause
		return false
	}
	var got int64
	whole := true
	var receipt limit.Receipt // of all parts: they are granted at one instant
	for i := range parts {
		if whole = whole && answer[i].Charged; answer[i].Charged {
			got += parts[i].Cost
			receipt = answer[i].Receipt
		}
	}
	e.recordStatus(last, calledAt)
	e.supply.lastShare = calledAt
	if got > 0 {
		e.holdings.endRenewal(e.newGrant(got, receipt, last, calledAt))
	}
	switch {
	case whole && e.supply.scarce && e.supply.isAmple(e.terms, e.size):
		e.supply.scarce, e.denial = false, denial{}
		return false
	case whole:
		return e.supply.scarce && e.markScarce(e.denial.cost, last, calledAt)
	case len(parts) == 1 && e.supply.room >= minLease:
		return true // in parts
	case longest > 0 && e.markScarce(1, last, calledAt):
		return true
	}
	e.supply.scarce = false
	e.nextRenewal = calledAt + max(min(last.Wait, limit.Second), renewalPause)
	if last.Wait > 0 && longest > 0 {
		e.rememberDenial(parts[len(parts)-1].Cost, last, calledAt, longest)
	}
	return false
}

// newGrant returns a grant of tokens that ends before its window ends by the store's clock.
func (e *entry) newGrant(tokens int64, receipt limit.Receipt, answer *decision.Status, calledAt limit.Micros) grant {
	g := grant{tokens: tokens, receipt: receipt, since: calledAt, ends: calledAt + grantLife}
	if e.terms.leased.Limit.Spec().Algorithm == limit.FixedWindow {
		left := answer.Reset - answer.Now
		g.ends = min(g.ends, calledAt+left-left/drift)
	}
	return g
}

// markScarce marks the bucket as scarce if it is hot and something comes back to it within two rounds. For that time
// costs that no lease has room for are denied. It reports whether the bucket is scarce; then a renewal must follow.
func (e *entry) markScarce(cost int64, answer *decision.Status, calledAt limit.Micros) bool {
	if e.terms == nil || cost == 0 || e.terms.refill(2*sharingRound) == 0 || !e.demand.isHot(calledAt) {
		return false
	}
	if !e.supply.scarce {
		e.supply.scarce, e.supply.lastShare = true, calledAt
	}
	e.rememberDenial(cost, answer, calledAt, 0)
	e.denial.until, e.denial.status.Remaining = calledAt+2*sharingRound, min(answer.Remaining, cost-1)
	e.nextRenewal = calledAt + sharingRound
	return true
}
