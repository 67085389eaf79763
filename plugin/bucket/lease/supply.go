package lease

import (
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/decision"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/limit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/policy"
)

const (
	// minLease is the smallest lease, in tokens and in requests: one is taken as cheaply by the request itself.
	minLease = 2
	// renewalPause is how long no renewal is tried after one that was unanswered or not worth it.
	renewalPause = limit.Second / 20
	// sharingRound is how often what comes back to a scarce bucket is shared out. A refusal of it holds for two rounds, in the
	// second of which the renewal's answer comes.
	sharingRound = limit.Second / 50
	// maxParts is into how many parts a renewal is divided: 1 + 1 + 2 + 4 + … + 32 tokens can be had to the last one.
	maxParts = 7
	// maxRenewalTime is the longest that renewals are taken to last, so that no lease is renewed while it is still half full.
	maxRenewalTime = span / 2
)

// supply is how much a bucket has, as far as this node knows. The zero value is not scarce, but may be empty.
//
// A bucket is scarce when it has refused what this node would spend. If every node took what it can get of that, the one
// that comes first would have all that has come back, and many would ask in vain. So they ask once a round, for no more
// than their part of it and for what nobody else has taken in the round before.
type supply struct {
	scarce    bool
	room      int64        // tokens that the bucket had left when it was asked last
	lastShare limit.Micros // this node's clock when its part was asked for last
}

// fairShare is what one of so many live nodes should ask a scarce bucket for.
func (s *supply) fairShare(t *terms, live int64, now limit.Micros) int64 {
	others := t.refill(sharingRound) * (live - 1) / live
	return (t.refill(now-s.lastShare)+live-1)/live + max(s.room-others, 0)
}

// isAmple tells whether a lease of size could be had again, though all others take their parts.
func (s *supply) isAmple(t *terms, size int64) bool { return s.room >= size+t.refill(sharingRound) }

// renewalDue tells whether a renewal is due: there is just enough for so long as one lasts.
func (e *entry) renewalDue(lasts, now limit.Micros) bool {
	free := e.ledger.available()
	return 2*free <= e.size && e.renewalUseful(0, now) &&
		(free <= minLease || free <= e.demand.perSpan(now)*int64(min(lasts, maxRenewalTime))/int64(span))
}

// renewalUseful tells whether a renewal is worth it when others are due anyway, or cost had to be asked for.
func (e *entry) renewalUseful(cost int64, now limit.Micros) bool {
	free := e.ledger.available()
	return e.terms != nil && !e.queued && now >= e.nextRenewal && (2*free <= e.size || free < cost) &&
		e.demand.isHot(now)
}

// renewalSize is how many tokens a renewal should ask for when so many nodes live; 0: none.
func (e *entry) renewalSize(live int64, now limit.Micros) int64 {
	if e.terms == nil || live <= 0 {
		return 0
	}
	e.ledger.expire(now)
	e.size = min(e.demand.perSpan(now), e.terms.maxOut/live)
	n := e.size - e.ledger.outstanding()
	if e.supply.scarce {
		n = min(n, e.supply.fairShare(e.terms, live, now))
	}
	if n < minLease {
		return 0
	}
	return n
}

// splitRequest appends the parts in which a renewal asks for n tokens: all of them, or, where the bucket may have less, ever
// smaller ones, so that one call brings what there is.
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

// pause puts the next renewal off.
func (e *entry) pause(now limit.Micros) {
	e.queued, e.nextRenewal, e.supply.scarce = false, now+renewalPause, false
}

// applyRenewal ends a renewal whose parts were asked for at an instant of this node's clock. It tells whether another must
// follow: at once, or when the entry no longer rests.
func (e *entry) applyRenewal(parts []policy.Bound, told []decision.Status, asked, now, longest limit.Micros) bool {
	e.ledger.endRenewal(grant{})
	e.queued = false
	last := &told[len(told)-1]
	if !answered(last) {
		e.pause(now) // it may have taken longer than the rest to learn that
		return false
	}
	var got int64
	whole := true
	var receipt limit.Receipt // of all parts together: they are granted at one instant
	for i := range parts {
		if whole = whole && told[i].Charged; told[i].Charged {
			got += parts[i].Cost
			receipt = told[i].Receipt
		}
	}
	e.recordStatus(last, asked)
	e.supply.lastShare = asked
	if got > 0 {
		e.ledger.endRenewal(e.newGrant(got, receipt, last, asked))
	}
	switch {
	case whole && e.supply.scarce && e.supply.isAmple(e.terms, e.size):
		e.supply.scarce, e.denial = false, denial{}
		return false
	case whole:
		return e.supply.scarce && e.markScarce(e.denial.cost, last, asked)
	case len(parts) == 1 && e.supply.room >= minLease:
		return true // in parts
	case longest > 0 && e.markScarce(1, last, asked):
		return true
	}
	e.supply.scarce = false
	e.nextRenewal = asked + max(min(last.Wait, limit.Second), renewalPause)
	if last.Wait > 0 && longest > 0 {
		e.rememberDenial(parts[len(parts)-1].Cost, last, asked, longest)
	}
	return false
}

// newGrant is the grant of so many tokens. On no clock can it be spent when its window is over for the store.
func (e *entry) newGrant(tokens int64, receipt limit.Receipt, told *decision.Status, asked limit.Micros) grant {
	g := grant{tokens: tokens, receipt: receipt, since: asked, ends: asked + grantLife}
	if e.terms.leased.Limit.Spec().Algorithm == limit.FixedWindow {
		left := told.Reset - told.Now
		g.ends = min(g.ends, asked+left-left/drift)
	}
	return g
}

// markScarce makes the bucket scarce, or lets it stay so, if it is hot and something comes back to it within two rounds. For so
// long a cost, or more, is refused that no lease has room for. It tells whether it does; then a renewal must follow.
func (e *entry) markScarce(cost int64, told *decision.Status, asked limit.Micros) bool {
	if e.terms == nil || cost == 0 || e.terms.refill(2*sharingRound) == 0 || !e.demand.isHot(asked) {
		return false
	}
	if !e.supply.scarce {
		e.supply.scarce, e.supply.lastShare = true, asked
	}
	e.rememberDenial(cost, told, asked, 0)
	e.denial.until, e.denial.status.Remaining = asked+2*sharingRound, min(told.Remaining, cost-1)
	e.nextRenewal = asked + sharingRound
	return true
}
