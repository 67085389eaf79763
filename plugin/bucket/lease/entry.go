package lease

import (
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/decision"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/limit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/policy"
)

// source is what answers from a lease or from memory say they come from: both are what the shared store has said.
const source = decision.Leased

const (
	// grantLife is how long a grant can be spent. A token bucket's capacity is reduced by what comes back in that time. Traffic
	// at its limit is denied that much more, which must be well below 2 % of a minute, as a minute may offer less than the
	// limit. It is also part of why nodes that come and go never have too much out together: see Options.Live.
	grantLife = 3 * limit.Second / 4
	// maxGrantAge is the age at which a grant is given back: well before it ends, so that a late sweep costs nothing.
	maxGrantAge = 2 * grantLife / 3
	// idleAfter is how long no request may have come for a bucket until its lease is given back.
	idleAfter = 3 * span
	// maxRetryWait is how long at most others are refused while one request asks whether a refusal has ended.
	maxRetryWait = limit.Second / 200
	// recallTime is for how long a refusal whose wait goes on is kept when it must be asked for again: see [entry.recall].
	recallTime = limit.Second
	// forever is later than any instant.
	forever = 1<<63 - 1
)

// entry is what this node knows of one bucket that is hot or has refused. Its shard's lock guards it.
type entry struct {
	key    policy.Key
	policy *policy.Policy // under whose limit all of this is true
	terms  *terms         // nil: not leased
	epoch  uint64         // of the limit: what was drawn before it changed is not put back

	ledger     ledger
	queued     bool         // a renewal is due or under way
	lastUsed   limit.Micros // by the last request
	clockAhead limit.Micros // of the store's clock to this node's; at least, so that windows end in time
	observed
}

// observed is what was observed of a bucket under one limit. The zero value is nothing.
type observed struct {
	demand      demand
	supply      supply
	size        int64        // tokens of a full lease, when one was last asked for
	nextRenewal limit.Micros // no renewal before this instant
	lastStatus  limit.Status // by the shared store, last: what is free here counts as used there
	denial      denial
}

// denial is the last refusal of a bucket. The zero value is none.
type denial struct {
	cost    int64        // this much or more is refused
	askedAt limit.Micros // this node's clock before the store was asked
	until   limit.Micros // this node's clock from which it is not known to be refused any more
	status  decision.Status
}

// matchesPolicy tells whether what is known was learnt matchesPolicy the limit of p, and matchesPolicy terms as p's.
func (e *entry) matchesPolicy(p *policy.Policy, b *termsCache) bool {
	if e.policy == p {
		return true
	}
	if e.policy.Limit != p.Limit {
		return false
	}
	t := b.get(p)
	if (t == nil) != (e.terms == nil) {
		return false
	}
	e.policy, e.terms = p, t // another version, or another config, with the same limit
	return true
}

// rebind brings the entry under the limit of p, and answers what is to be given back.
func (e *entry) rebind(p *policy.Policy, t *terms, now limit.Micros) (asked *policy.Policy, back [2]grant) {
	if e.terms != nil {
		asked, back = e.terms.leased, e.ledger.withdraw(forever, now)
	}
	e.policy, e.terms = p, t
	e.epoch++
	e.ledger.requested = 0
	e.observed = observed{}
	return asked, back
}

// isIdle tells whether the entry can be forgotten.
func (e *entry) isIdle(now limit.Micros) bool {
	return !e.queued && e.ledger.outstanding() == 0 && e.ledger.returning == 0 &&
		now >= e.denial.until+e.denial.recalled(now) && now-e.lastUsed >= idleAfter
}

// denies tells whether a cost is known to be refused: by the shared store, and there is no lease that has room for it.
func (e *entry) denies(cost int64, now limit.Micros) bool {
	return now < e.denial.until && cost >= e.denial.cost && cost > e.ledger.available()
}

// recalled is how long a refusal is kept after it has ended here: not at all where its wait is over too, else for as
// long as another that is remembered already may last.
func (d *denial) recalled(now limit.Micros) limit.Micros {
	if now-d.askedAt >= d.status.Wait {
		return 0
	}
	return recallTime
}

// recallDenial returns how a bound stands of a request that another bound denies, as far as this node knows: it returns false
// unless the shared store last said that there is no room for the cost now. Other nodes may have given tokens back
// since, so it denies nothing by itself. It keeps a client that waits for a burst from asking again and again on a day
// whose quota is used up.
func (e *entry) recallDenial(cost int64, now limit.Micros) (decision.Status, bool) {
	d := &e.denial
	if cost <= 0 || cost <= e.ledger.available() {
		return decision.Status{}, false
	}
	if d.cost > 0 && cost >= d.cost && now-d.askedAt < d.status.Wait {
		return e.deniedStatus(cost, now), true
	}
	wait := e.storeLimit().WaitAfter(&e.lastStatus, now+e.clockAhead, cost)
	if wait <= 0 {
		return decision.Status{}, false
	}
	status := decision.Status{Status: e.lastStatus, Now: now + e.clockAhead, Source: source, Wait: wait}
	status.Reset = max(status.Reset, status.Now)
	if wait == limit.Never && e.terms != nil {
		status.Capacity = e.terms.capacity
	}
	return status, true
}

// rememberDenial notes that the shared store has refused cost, when it was asked at an instant of this node's clock. Its own
// clock was told.Now then, or up to a round trip earlier, so no refusal is remembered for longer than it holds.
func (e *entry) rememberDenial(cost int64, told *decision.Status, asked, longest limit.Micros) {
	until := asked + min(told.Wait, longest)
	if asked < e.denial.until && cost > e.denial.cost && until <= e.denial.until {
		return // what is known says more
	}
	e.denial = denial{cost: cost, askedAt: asked, until: until, status: *told}
	e.denial.status.Source, e.denial.status.Charged = source, false
}

// predictDenial remembers that the next request of a cost will be refused, when one has just taken the last that there was. So
// a flood of a bucket asks once for each token that comes back, not once more to learn that there is no other. What is
// remembered of a larger cost is told as it stands now.
func (e *entry) predictDenial(cost int64, told *decision.Status, asked, longest limit.Micros) {
	for _, next := range [...]int64{cost, e.denial.cost} {
		if next != cost && asked >= e.denial.until {
			return
		}
		refused := *told
		if refused.Wait = e.policy.Limit.WaitAfter(&told.Status, told.Now, next); refused.Wait > 0 && longest > 0 {
			e.rememberDenial(next, &refused, asked, longest)
			return
		}
	}
}

// extendDenial prolongs a refusal of a cost when it has ended and a request of that cost asks. Nothing above the cost has come
// back by then to a token bucket, and some of it goes to that request, or has gone to others if there is too little. So
// until a whole token more has come back, other requests of the cost would ask in vain. For half of that time they do not,
// and for [retrying] at most, in case that the request gets no answer. A bucket that is leased is shared out otherwise.
func (e *entry) extendDenial(cost int64, now limit.Micros) {
	d := &e.denial
	if e.terms != nil || d.until == 0 || cost != d.cost {
		return
	}
	next, passed := extraWait(&e.policy.Limit, 1), max(now-d.askedAt-d.status.Wait, 0)
	d.until = now + min(maxRetryWait, next/2, next-passed)
}

// forgetDenial forgets a refusal of a cost that had ended when a request of that cost asked, at an instant: there was room for
// another one, because the bucket was emptied, or nobody answered, and fail modes decide. Without it, [entry.retry] would
// let one request through in [retrying] until the wait is over that the shared store has told.
func (e *entry) forgetDenial(cost int64, told *decision.Status, asked limit.Micros) {
	d := &e.denial
	if e.terms == nil && cost == d.cost && asked > d.askedAt && (!answered(told) || cost <= e.storeLimit().Capacity()-told.Used) {
		*d = denial{}
	}
}

// deniedStatus is the answer that is remembered, as it reads now for a cost, which is no less than the one that was refused.
func (e *entry) deniedStatus(cost int64, now limit.Micros) decision.Status {
	status := e.denial.status
	status.Now += now - e.denial.askedAt
	status.Reset = max(status.Reset, status.Now)
	l := e.storeLimit()
	if cost > l.Capacity() {
		status.Wait = limit.Never
		if e.terms != nil {
			status.Capacity = e.terms.capacity
		}
		return status
	}
	status.Wait = max(status.Wait-(now-e.denial.askedAt), e.denial.until-now) + extraWait(l, cost-e.denial.cost)
	return status
}

// storeLimit is what the shared store is asked with.
func (e *entry) storeLimit() *limit.Limit {
	if e.terms != nil {
		return &e.terms.policy.Limit
	}
	return &e.policy.Limit
}

// extraWait is how much extraWait a request must wait at least for so many tokens more. A window's come back all at once, or
// nobody knows when.
func extraWait(l *limit.Limit, tokens int64) limit.Micros {
	u := l.Units()
	if u.Kind != limit.TokenBucket {
		return 0
	}
	return limit.Micros(tokens*u.Base/u.Rate) * u.Tick
}

// recordStatus notes what the shared store said when it was asked at an instant of this node's clock.
func (e *entry) recordStatus(told *decision.Status, asked limit.Micros) {
	e.lastStatus, e.clockAhead = told.Status, told.Now-asked
	if e.terms != nil {
		e.supply.room = e.terms.capacity - told.Used // what remains for a client is less, in the soft zone
	}
}

// draw takes a request's cost from the lease.
func (e *entry) draw(d *draw, cost int64, now limit.Micros) bool {
	if e.terms == nil || e.ledger.available() == 0 {
		return false
	}
	d.epoch = e.epoch
	return e.ledger.draw(&d.grant, max(cost, 0), now)
}

// settle ends a draw. What another limit has granted is not put back, nor what nobody would draw or give back again.
func (e *entry) settle(d *draw, admitted, closed bool, now limit.Micros) {
	if !admitted && (closed || e.epoch != d.epoch) {
		d.ends = 0
	}
	e.ledger.settle(&d.grant, admitted, now)
	if admitted {
		e.demand.observe(d.tokens, now)
	}
}

// fillStatus fills in how a bound stands that was answered from the lease: as the store has said last, less what is free here.
func (e *entry) fillStatus(status *decision.Status, charged bool, now limit.Micros) {
	free := e.ledger.available()
	status.Status, status.Now, status.Source, status.Charged = e.lastStatus, now+e.clockAhead, source, charged
	status.Used = max(status.Used-free, 0)
	if !status.Soft {
		status.Remaining += free
	}
	status.Reset = max(status.Reset, status.Now)
}

// answered tells whether a status is an answer of the shared store.
func answered(s *decision.Status) bool {
	return s.Source != decision.Unanswered && s.Source != decision.Local
}
