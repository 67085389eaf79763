package lease

import (
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/decision"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/limit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/policy"
)

// source is what answers from a lease or from memory say they come from: both are what the shared store has said.
const source = decision.Leased

const (
	// life is how long a grant can be spent. A token bucket's capacity is reduced by what comes back in that time. Traffic
	// at its limit is denied that much more, which must be well below 2 % of a minute, as a minute may offer less than the
	// limit. It is also part of why nodes that come and go never have too much out together: see Options.Live.
	life = 3 * limit.Second / 4
	// old is the age at which a grant is given back: well before it ends, so that a late sweep costs nothing.
	old = 2 * life / 3
	// idle is how long no request may have come for a bucket until its lease is given back.
	idle = 3 * span
	// retrying is how long at most others are refused while one request asks whether a refusal has ended.
	retrying = limit.Second / 200
	// recalling is for how long a refusal whose wait goes on is kept when it must be asked for again: see [entry.recall].
	recalling = limit.Second
	// noLimit is later than any instant.
	noLimit = 1<<63 - 1
)

// entry is what this node knows of one bucket that is hot or has refused. Its shard's lock guards it.
type entry struct {
	key    policy.Key
	policy *policy.Policy // under whose limit all of this is true
	terms  *terms         // nil: not leased
	epoch  uint64         // of the limit: what was drawn before it changed is not put back

	ledger  ledger
	queued  bool         // a renewal is due or under way
	touched limit.Micros // by the last request
	ahead   limit.Micros // of the store's clock to this node's; at least, so that windows end in time
	learnt
}

// learnt is what was learnt of a bucket under one limit. The zero value is nothing.
type learnt struct {
	demand  demand
	supply  supply
	size    int64        // tokens of a full lease, when one was last asked for
	resting limit.Micros // no renewal before this instant
	told    limit.Status // by the shared store, last: what is free here counts as used there
	denial  denial
}

// denial is the last refusal of a bucket. The zero value is none.
type denial struct {
	cost   int64        // this much or more is refused
	told   limit.Micros // this node's clock before the store was asked
	until  limit.Micros // this node's clock from which it is not known to be refused any more
	status decision.Status
}

// under tells whether what is known was learnt under the limit of p, and under terms as p's.
func (e *entry) under(p *policy.Policy, b *book) bool {
	if e.policy == p {
		return true
	}
	if e.policy.Limit != p.Limit {
		return false
	}
	t := b.of(p)
	if (t == nil) != (e.terms == nil) {
		return false
	}
	e.policy, e.terms = p, t // another version, or another config, with the same limit
	return true
}

// turn brings the entry under the limit of p, and answers what is to be given back.
func (e *entry) turn(p *policy.Policy, t *terms, now limit.Micros) (asked *policy.Policy, back [2]grant) {
	if e.terms != nil {
		asked, back = e.terms.leased, e.ledger.withdraw(noLimit, now)
	}
	e.policy, e.terms = p, t
	e.epoch++
	e.ledger.asked = 0
	e.learnt = learnt{}
	return asked, back
}

// idle tells whether the entry can be forgotten.
func (e *entry) idle(now limit.Micros) bool {
	return !e.queued && e.ledger.out() == 0 && e.ledger.leaving == 0 &&
		now >= e.denial.until+e.denial.recalled(now) && now-e.touched >= idle
}

// refuses tells whether a cost is known to be refused: by the shared store, and there is no lease that has room for it.
func (e *entry) refuses(cost int64, now limit.Micros) bool {
	return now < e.denial.until && cost >= e.denial.cost && cost > e.ledger.free()
}

// recalled is how long a refusal is kept after it has ended here: not at all where its wait is over too, else for as
// long as another that is remembered already may last.
func (d *denial) recalled(now limit.Micros) limit.Micros {
	if now-d.told >= d.status.Wait {
		return 0
	}
	return recalling
}

// recall returns how a bound stands of a request that another bound denies, as far as this node knows: it returns false
// unless the shared store last said that there is no room for the cost now. Other nodes may have given tokens back
// since, so it denies nothing by itself. It keeps a client that waits for a burst from asking again and again on a day
// whose quota is used up.
func (e *entry) recall(cost int64, now limit.Micros) (decision.Status, bool) {
	d := &e.denial
	if cost <= 0 || cost <= e.ledger.free() {
		return decision.Status{}, false
	}
	if d.cost > 0 && cost >= d.cost && now-d.told < d.status.Wait {
		return e.refusal(cost, now), true
	}
	wait := e.limit().WaitAfter(&e.told, now+e.ahead, cost)
	if wait <= 0 {
		return decision.Status{}, false
	}
	status := decision.Status{Status: e.told, Now: now + e.ahead, Source: source, Wait: wait}
	status.Reset = max(status.Reset, status.Now)
	if wait == limit.Never && e.terms != nil {
		status.Capacity = e.terms.capacity
	}
	return status, true
}

// remember notes that the shared store has refused cost, when it was asked at an instant of this node's clock. Its own
// clock was told.Now then, or up to a round trip earlier, so no refusal is remembered for longer than it holds.
func (e *entry) remember(cost int64, told *decision.Status, asked, longest limit.Micros) {
	until := asked + min(told.Wait, longest)
	if asked < e.denial.until && cost > e.denial.cost && until <= e.denial.until {
		return // what is known says more
	}
	e.denial = denial{cost: cost, told: asked, until: until, status: *told}
	e.denial.status.Source, e.denial.status.Charged = source, false
}

// foresee remembers that the next request of a cost will be refused, when one has just taken the last that there was. So
// a flood of a bucket asks once for each token that comes back, not once more to learn that there is no other. What is
// remembered of a larger cost is told as it stands now.
func (e *entry) foresee(cost int64, told *decision.Status, asked, longest limit.Micros) {
	for _, next := range [...]int64{cost, e.denial.cost} {
		if next != cost && asked >= e.denial.until {
			return
		}
		refused := *told
		if refused.Wait = e.policy.Limit.WaitAfter(&told.Status, told.Now, next); refused.Wait > 0 && longest > 0 {
			e.remember(next, &refused, asked, longest)
			return
		}
	}
}

// retry prolongs a refusal of a cost when it has ended and a request of that cost asks. Nothing above the cost has come
// back by then to a token bucket, and some of it goes to that request, or has gone to others if there is too little. So
// until a whole token more has come back, other requests of the cost would ask in vain. For half of that time they do not,
// and for [retrying] at most, in case that the request gets no answer. A bucket that is leased is shared out otherwise.
func (e *entry) retry(cost int64, now limit.Micros) {
	d := &e.denial
	if e.terms != nil || d.until == 0 || cost != d.cost {
		return
	}
	next, passed := longer(&e.policy.Limit, 1), max(now-d.told-d.status.Wait, 0)
	d.until = now + min(retrying, next/2, next-passed)
}

// relent forgets a refusal of a cost that had ended when a request of that cost asked, at an instant: there was room for
// another one, because the bucket was emptied, or nobody answered, and fail modes decide. Without it, [entry.retry] would
// let one request through in [retrying] until the wait is over that the shared store has told.
func (e *entry) relent(cost int64, told *decision.Status, asked limit.Micros) {
	d := &e.denial
	if e.terms == nil && cost == d.cost && asked > d.told && (!answered(told) || cost <= e.limit().Capacity()-told.Used) {
		*d = denial{}
	}
}

// refusal is the answer that is remembered, as it reads now for a cost, which is no less than the one that was refused.
func (e *entry) refusal(cost int64, now limit.Micros) decision.Status {
	status := e.denial.status
	status.Now += now - e.denial.told
	status.Reset = max(status.Reset, status.Now)
	l := e.limit()
	if cost > l.Capacity() {
		status.Wait = limit.Never
		if e.terms != nil {
			status.Capacity = e.terms.capacity
		}
		return status
	}
	status.Wait = max(status.Wait-(now-e.denial.told), e.denial.until-now) + longer(l, cost-e.denial.cost)
	return status
}

// limit is what the shared store is asked with.
func (e *entry) limit() *limit.Limit {
	if e.terms != nil {
		return &e.terms.asked.Limit
	}
	return &e.policy.Limit
}

// longer is how much longer a request must wait at least for so many tokens more. A window's come back all at once, or
// nobody knows when.
func longer(l *limit.Limit, tokens int64) limit.Micros {
	u := l.Units()
	if u.Kind != limit.TokenBucket {
		return 0
	}
	return limit.Micros(tokens*u.Base/u.Rate) * u.Tick
}

// learn notes what the shared store said when it was asked at an instant of this node's clock.
func (e *entry) learn(told *decision.Status, asked limit.Micros) {
	e.told, e.ahead = told.Status, told.Now-asked
	if e.terms != nil {
		e.supply.room = e.terms.capacity - told.Used // what remains for a client is less, in the soft zone
	}
}

// draw takes a request's cost from the lease.
func (e *entry) draw(d *draw, cost int64, now limit.Micros) bool {
	if e.terms == nil || e.ledger.free() == 0 {
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

// tell fills in how a bound stands that was answered from the lease: as the store has said last, less what is free here.
func (e *entry) tell(status *decision.Status, charged bool, now limit.Micros) {
	free := e.ledger.free()
	status.Status, status.Now, status.Source, status.Charged = e.told, now+e.ahead, source, charged
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
