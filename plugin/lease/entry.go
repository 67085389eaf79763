package lease

import (
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/decision"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/limit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/policy"
)

// source is what answers from a lease or from memory say they come from: both are what the shared store has said.
const source = decision.Leased

const (
	// leastLease is the smallest lease: one token is taken as cheaply by the request itself.
	leastLease = 2
	// rest is how long no renewal is tried after one that was refused, unanswered or not worth it.
	rest = limit.Second / 20
	// life is how long a grant can be spent. It is part of why nodes that come and go never have too much out together:
	// see Options.Live.
	life = 2 * limit.Second
	// old is the age at which a grant is given back: well before it ends, so that a late sweep costs nothing.
	old = 3 * life / 4
	// idle is how long no request may have come for a bucket until its lease is given back.
	idle = 3 * span
	// round is how long a hot bucket that has refused is left alone, so that what comes back to it can be leased at once
	// and not token by token. A refusal of it holds for two rounds, in the second of which the renewal's answer comes.
	round = limit.Second / 50
	// noLimit is how much a bucket has that has refused nothing lately.
	noLimit = 1<<63 - 1
)

// entry is what this node knows of one bucket that is hot or has refused. Its shard's lock guards it.
type entry struct {
	key    policy.Key
	policy *policy.Policy // under whose limit all of this is true
	terms  *terms         // nil: not leased
	epoch  uint64         // of the limit: what was drawn before it changed is not put back

	ledger  ledger
	demand  demand
	scarce  int64        // the most that is worth asking for; noLimit unless the last renewal was refused
	size    int64        // tokens of a full lease, when one was last asked for
	resting limit.Micros // no renewal before this instant
	queued  bool         // a renewal is due or under way
	touched limit.Micros // by the last request

	told   limit.Status // by the shared store, last: what is free here counts as used there
	ahead  limit.Micros // of the store's clock to this node's; at least, so that windows end in time
	denial denial
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
	e.demand, e.denial, e.scarce, e.size, e.resting, e.told = demand{}, denial{}, noLimit, 0, 0, limit.Status{}
	return asked, back
}

// idle tells whether the entry can be forgotten.
func (e *entry) idle(now limit.Micros) bool {
	return !e.queued && e.ledger.out() == 0 && now >= e.denial.until && now-e.touched >= idle
}

// refuses tells whether a cost is known to be refused: by the shared store, and there is no lease that has room for it.
func (e *entry) refuses(cost int64, now limit.Micros) bool {
	return now < e.denial.until && cost >= e.denial.cost && cost > e.ledger.free()
}

// remember notes that the shared store has refused cost, when it was asked at an instant of this node's clock. Its own
// clock was told.Now then, or up to a round trip earlier, so no refusal is remembered for longer than it holds.
func (e *entry) remember(cost int64, told decision.Status, asked, longest limit.Micros) {
	until := asked + min(told.Wait, longest)
	if asked < e.denial.until && cost > e.denial.cost && until <= e.denial.until {
		return // what is known says more
	}
	told.Source, told.Charged = source, false
	e.denial = denial{cost: cost, told: asked, until: until, status: told}
}

// refusal is the answer that is remembered, as it reads now.
func (e *entry) refusal(now limit.Micros) decision.Status {
	status := e.denial.status
	status.Now += now - e.denial.told
	status.Reset = max(status.Reset, status.Now)
	if status.Wait != limit.Never {
		status.Wait = max(status.Wait-(now-e.denial.told), e.denial.until-now)
	}
	return status
}

// hold lets a refusal of a hot bucket stand for as long as it takes to lease what comes back. It tells whether there is
// anything to hold. A renewal must then be under way, or follow.
func (e *entry) hold(now limit.Micros) bool {
	if e.denial.cost == 0 || e.terms == nil || e.demand.tokens(now) < leastLease {
		return false
	}
	e.denial.until = max(e.denial.until, now+2*round)
	return true
}

// learn notes what the shared store said when it was asked at an instant of this node's clock.
func (e *entry) learn(told *decision.Status, asked limit.Micros) {
	e.told, e.ahead = told.Status, told.Now-asked
}

// draw takes a request's cost from the lease.
func (e *entry) draw(cost int64, now limit.Micros) (draw, bool) {
	if e.terms == nil || e.ledger.free() == 0 {
		return draw{}, false
	}
	d, ok := e.ledger.draw(max(cost, 0), now)
	d.epoch = e.epoch
	return d, ok
}

// settle ends a draw.
func (e *entry) settle(d draw, admitted bool, now limit.Micros) {
	if e.epoch != d.epoch && !admitted {
		d.ends = 0 // nothing is put back that another limit has granted
	}
	e.ledger.settle(d, admitted, now)
	if admitted && e.epoch == d.epoch {
		e.demand.observe(d.tokens, now)
	}
}

// status is how a bound stands that was answered from the lease: as the store has said last, less what is free here.
func (e *entry) status(charged bool, now limit.Micros) decision.Status {
	free := e.ledger.free()
	status := decision.Status{Status: e.told, Now: now + e.ahead, Source: source, Charged: charged}
	status.Used = max(status.Used-free, 0)
	if !status.Soft {
		status.Remaining += free
	}
	status.Reset = max(status.Reset, status.Now)
	return status
}

// dry tells whether a renewal is due.
func (e *entry) dry(now limit.Micros) bool {
	return e.terms != nil && !e.queued && now >= e.resting && 2*e.ledger.free() <= e.size &&
		e.demand.tokens(now) >= leastLease
}

// wants is how many tokens a renewal should ask for when so many nodes live; 0: none.
func (e *entry) wants(live int64, now limit.Micros) int64 {
	if e.terms == nil || live <= 0 {
		return 0
	}
	e.ledger.expire(now)
	e.size = min(e.demand.tokens(now), e.terms.most/live)
	n := min(e.size-e.ledger.out(), e.scarce)
	if n < leastLease {
		return 0
	}
	return n
}

// pause puts the next renewal off.
func (e *entry) pause(now limit.Micros) {
	e.queued, e.scarce, e.resting = false, noLimit, now+rest
}

// renewed ends a renewal that asked for tokens at an instant of this node's clock.
func (e *entry) renewed(tokens int64, told *decision.Status, asked limit.Micros) {
	e.ledger.answer(grant{})
	e.queued = false
	if !answered(told) {
		e.pause(asked)
		return
	}
	e.learn(told, asked)
	e.scarce = noLimit
	room := e.terms.asked.Limit.Capacity() - told.Used // what remains for a client is less, in the soft zone
	switch {
	case told.Charged:
		e.ledger.answer(e.granted(tokens, told, asked))
	case room < tokens && room >= leastLease:
		e.scarce, e.queued = room, true // at once
		return
	default:
		e.resting = asked + min(told.Wait, rest)
	}
	if room < leastLease && e.hold(asked) {
		e.queued, e.resting = true, asked+round
	}
}

// granted is the grant of so many tokens. A window is over for the store no earlier than when it could be.
func (e *entry) granted(tokens int64, told *decision.Status, asked limit.Micros) grant {
	g := grant{tokens: tokens, at: told.Now, since: asked, ends: asked + life}
	if e.policy.Limit.Spec().Algorithm == limit.FixedWindow {
		g.ends = min(g.ends, asked+told.Reset-told.Now)
	}
	return g
}

// answered tells whether a status is an answer of the shared store.
func answered(s *decision.Status) bool {
	return s.Source != decision.Unanswered && s.Source != decision.Local
}
