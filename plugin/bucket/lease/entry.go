package lease

import (
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/decision"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/limit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
)

// source is the source of answers from a lease or from memory: both repeat what the central store reported.
const source = decision.Leased

const (
	// grantLife is the time for which a grant can be spent. A token bucket's capacity is reduced by what refills in that
	// time. Traffic at its limit is denied that much more, which must be well below 2 % of a minute's offer. It is also
	// part of why nodes that come and go never have too much out together: see [Nodes].
	grantLife = 3 * limit.Second / 4
	// maxGrantAge is the age at which a grant is returned: well before it ends, so that a late sweep loses nothing.
	maxGrantAge = 2 * grantLife / 3
	// idleAfter is the time without requests after which a lease is returned.
	idleAfter = 3 * span
	// maxRetryWait bounds the time for which other requests are denied while one finds out whether a denial has ended.
	maxRetryWait = limit.Second / 200
	// recallTime is the time for which a denial is kept for [entry.recallDenial] after it must be confirmed again.
	recallTime = limit.Second
	// forever is later than any instant.
	forever = 1<<63 - 1
)

// entry is what this node knows of one bucket that is hot or has denied. Its shard's lock guards it.
type entry struct {
	key    policy.Key
	policy *policy.Policy // whose limit the rest was learned under
	terms  *terms         // nil: not leased
	epoch  uint64         // of the limit: a draw from before a change does not return to the lease

	holdings   holdings
	queued     bool         // a renewal is due or under way
	lastUsed   limit.Micros // by the last request
	clockAhead limit.Micros // of the store's clock to this node's, at least, so that windows end in time
	observed
}

// observed is what was learned about a bucket under one limit. The zero value is nothing.
type observed struct {
	demand      demand
	supply      supply
	size        int64        // tokens of a full lease at the last renewal
	nextRenewal limit.Micros // no renewal before this instant
	lastStatus  limit.Status // the store's last answer, in which leased tokens count as used
	denial      denial
}

// denial is the last denial by a bucket. The zero value is none.
type denial struct {
	cost     int64        // this much or more is denied
	calledAt limit.Micros // this node's clock before the call
	until    limit.Micros // this node's clock from which a denial is no longer certain
	status   decision.Status
}

// matchesPolicy reports whether the entry was learned under the limit of p, and under the same terms.
func (e *entry) matchesPolicy(p *policy.Policy, c *termsCache) bool {
	if e.policy == p {
		return true
	}
	if e.policy.Limit != p.Limit {
		return false
	}
	t := c.get(p)
	if (t == nil) != (e.terms == nil) {
		return false
	}
	e.policy, e.terms = p, t // another version, or another config, with the same limit
	return true
}

// rebind moves the entry to the limit of p, and returns the grants that must be returned, with the policy that they
// were taken with.
func (e *entry) rebind(p *policy.Policy, t *terms, now limit.Micros) (taken *policy.Policy, back [2]grant) {
	if e.terms != nil {
		taken, back = e.terms.leased, e.holdings.withdraw(forever, now)
	}
	e.policy, e.terms = p, t
	e.epoch++
	e.holdings.requested = 0
	e.observed = observed{}
	return taken, back
}

// isIdle reports whether the entry can be removed.
func (e *entry) isIdle(now limit.Micros) bool {
	kept := e.denial.until
	if now-e.denial.calledAt < e.denial.status.Wait {
		kept += recallTime // as long as another remembered denial may last
	}
	return !e.queued && e.holdings.outstanding() == 0 && e.holdings.returning == 0 && now >= kept &&
		now-e.lastUsed >= idleAfter
}

// denies reports whether a cost is known to be denied: the central store denied it, and no lease has room for it.
func (e *entry) denies(cost int64, now limit.Micros) bool {
	return now < e.denial.until && cost >= e.denial.cost && cost > e.holdings.available()
}

// recallDenial returns the status of a bound of a request that another bound denies, as far as this node knows it. It
// returns false unless the central store last reported that there is no room for the cost now. Other nodes may have
// returned tokens since, so this status alone denies nothing. It keeps a client that waits for a burst limit from
// retrying on a day whose quota is used up.
func (e *entry) recallDenial(cost int64, now limit.Micros) (decision.Status, bool) {
	d := &e.denial
	if cost <= 0 || cost <= e.holdings.available() {
		return decision.Status{}, false
	}
	if d.cost > 0 && cost >= d.cost && now-d.calledAt < d.status.Wait {
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

// rememberDenial records that the central store denied cost, when it was called at the instant calledAt of this node's
// clock. The store's clock was answer.Now then, or up to a round trip earlier, so no denial is remembered for longer
// than it holds.
func (e *entry) rememberDenial(cost int64, answer *decision.Status, calledAt, longest limit.Micros) {
	until := calledAt + min(answer.Wait, longest)
	if calledAt < e.denial.until && cost > e.denial.cost && until <= e.denial.until {
		return // the remembered denial covers more
	}
	e.denial = denial{cost: cost, calledAt: calledAt, until: until, status: *answer}
	e.denial.status.Source, e.denial.status.Charged = source, false
}

// predictDenial remembers that the next request of a cost will be denied, when one has just taken the last token. So a
// flood calls the store once for each token that comes back. A denial of a larger cost is updated to what holds now.
func (e *entry) predictDenial(cost int64, answer *decision.Status, calledAt, longest limit.Micros) {
	for _, next := range [...]int64{cost, e.denial.cost} {
		if next != cost && calledAt >= e.denial.until {
			return
		}
		denied := *answer
		if denied.Wait = e.policy.Limit.WaitAfter(&answer.Status, answer.Now, next); denied.Wait > 0 && longest > 0 {
			e.rememberDenial(next, &denied, calledAt, longest)
			return
		}
	}
}

// extendDenial prolongs a denial of a cost that has ended, when a request of that cost calls the store. At most that
// cost has come back to a token bucket by then, and this request or an earlier one gets it. So other requests of the
// cost would be denied until another whole token has come back. They are denied here for half of that time, and for
// [maxRetryWait] at most, in case the call gets no answer. A leased bucket is shared out differently.
func (e *entry) extendDenial(cost int64, now limit.Micros) {
	d := &e.denial
	if e.terms != nil || d.until == 0 || cost != d.cost {
		return
	}
	next, passed := extraWait(&e.policy.Limit, 1), max(now-d.calledAt-d.status.Wait, 0)
	d.until = now + min(maxRetryWait, next/2, next-passed)
}

// forgetDenial drops a denial of a cost that had ended when a request of that cost called the store at calledAt, if the
// answer shows room for another one, or if there was no answer and fail modes decide. Without it, [entry.extendDenial]
// would let one request through in each [maxRetryWait] until the end of the wait that the store reported.
func (e *entry) forgetDenial(cost int64, answer *decision.Status, calledAt limit.Micros) {
	d := &e.denial
	if e.terms == nil && cost == d.cost && calledAt > d.calledAt &&
		(!answered(answer) || cost <= e.storeLimit().Capacity()-answer.Used) {
		*d = denial{}
	}
}

// deniedStatus returns the remembered status as it reads now for a cost, which must be no less than the denied one.
func (e *entry) deniedStatus(cost int64, now limit.Micros) decision.Status {
	status := e.denial.status
	status.Now += now - e.denial.calledAt
	status.Reset = max(status.Reset, status.Now)
	l := e.storeLimit()
	if cost > l.Capacity() {
		status.Wait = limit.Never
		if e.terms != nil {
			status.Capacity = e.terms.capacity
		}
		return status
	}
	status.Wait = max(status.Wait-(now-e.denial.calledAt), e.denial.until-now) + extraWait(l, cost-e.denial.cost)
	return status
}

// storeLimit returns the limit that the central store is called with.
func (e *entry) storeLimit() *limit.Limit {
	if e.terms != nil {
		return &e.terms.policy.Limit
	}
	return &e.policy.Limit
}

// extraWait returns a lower bound of the additional wait for more tokens. A window's tokens come back all at once, and
// tokens of other algorithms at unknown times: then it is 0.
func extraWait(l *limit.Limit, tokens int64) limit.Micros {
	u := l.Units()
	if u.Kind != limit.TokenBucket {
		return 0
	}
	return limit.Micros(tokens*u.Base/u.Rate) * u.Tick
}

// recordStatus records what the central store answered to a call at the instant calledAt of this node's clock.
func (e *entry) recordStatus(answer *decision.Status, calledAt limit.Micros) {
	e.lastStatus, e.clockAhead = answer.Status, answer.Now-calledAt
	if e.terms != nil {
		e.supply.room = e.terms.capacity - answer.Used // what remains for a client is less, in the soft zone
	}
}

// draw takes a request's cost from the lease. It reports whether the lease has enough.
func (e *entry) draw(d *draw, cost int64, now limit.Micros) bool {
	if e.terms == nil || e.holdings.available() == 0 {
		return false
	}
	d.epoch = e.epoch
	return e.holdings.draw(&d.grant, max(cost, 0), now)
}

// settle ends a draw. Tokens that another limit granted, or that no request can draw any more, do not return to the
// lease.
func (e *entry) settle(d *draw, admitted, closed bool, now limit.Micros) {
	if !admitted && (closed || e.epoch != d.epoch) {
		d.ends = 0
	}
	e.holdings.settle(&d.grant, admitted, now)
	if admitted {
		e.demand.observe(d.tokens, now)
	}
}

// fillStatus fills in the status of a bound that was answered from the lease: the store's last status, less what is
// available here and, unless the store has lost its state since, counts as used there.
func (e *entry) fillStatus(status *decision.Status, charged bool, now limit.Micros) {
	status.Status, status.Now, status.Source, status.Charged = e.lastStatus, now+e.clockAhead, source, charged
	free := min(e.holdings.available(), status.Used)
	status.Used -= free
	if !status.Soft {
		status.Remaining += free
	}
	status.Reset = max(status.Reset, status.Now)
}

// answered reports whether a status is an answer of the central store.
func answered(s *decision.Status) bool {
	return s.Source != decision.Unanswered && s.Source != decision.Local
}
