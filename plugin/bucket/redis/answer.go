package redis

import (
	"bytes"
	"errors"
	"fmt"
	"slices"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/decision"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/limit"
)

// view is the script's report of a sliding log, or of the slots of a concurrency limit, before it spends. The entries
// stay in Redis.
type view struct {
	state   limit.State
	freeAt  limit.Micros // instant from which the cost would fit; 0: it fits, or never will
	foreign bool         // the key of its entries holds a foreign type
}

// A view in the reply has viewSize numbers. The last one is 0, or how its entries were found.
const (
	viewSize       = 6
	entriesLost    = 1
	entriesForeign = 2
)

var errReply = errors.New("parse the script's reply: unexpected form")

// errScriptDiffers reports a fault of this program: the script and package limit are tested to decide alike.
var errScriptDiffers = errors.New("the script denied what the limit admits")

// readReply reads the reply to a take. It returns how many values were not of our form, and how many keys hold a
// foreign type.
func (p *scriptCall) readReply(reply []byte) (foreign, taken int, err error) {
	e := soleReply(reply)
	subjects, size := len(p.subjects), e.array()
	if e.err == nil && size != subjects+1 && size != subjects+3 && size != subjects+4 {
		return 0, 0, fmt.Errorf("%w: %d elements for %d values", errReply, size, subjects)
	}
	foreign, taken = p.readValues(&e)
	p.now = limit.Micros(e.integer())
	foreign += p.readStates()
	p.toSplit = p.toSplit[:0]
	if size > subjects+1 {
		for range e.array() {
			if i := e.between(1, int64(len(p.records))); i > 0 {
				p.records[i-1].denied = true
			}
		}
		lost, alien := p.readLogs(&e)
		foreign, taken = foreign+lost, taken+alien
	}
	if size > subjects+3 {
		for range e.array() {
			p.toSplit = append(p.toSplit, int(e.between(1, int64(subjects))))
		}
	}
	if err := e.end(); err != nil {
		return 0, 0, err
	}
	return foreign, taken, nil
}

// soleReply returns the elements of the reply to the only request of a command.
func soleReply(reply []byte) elements {
	e := elements{left: reply}
	e.sole()
	return e
}

// learnLevels records the levels of the request's subjects, if the reply consists of them. It reports whether it does:
// then the script has done nothing else, and is run again. It returns the error that the reply is, if it is one: then
// the script has written nothing for the request.
func (p *scriptCall) learnLevels(reply []byte) (bool, error) {
	e := soleReply(reply)
	if e.next() == '-' {
		return false, &Error{Kind: Rejected, err: serverError(bytes.TrimSpace(e.left[1:]))}
	}
	if e.array() != 1 || e.next() != '*' {
		return false, nil
	}
	if found := e.array(); e.err == nil && found != len(p.subjects) {
		return false, fmt.Errorf("%w: %d levels for %d values", errReply, found, len(p.subjects))
	}
	for i := range p.subjects {
		level := e.between(-1, maxLevel)
		if s := &p.subjects[i]; e.err == nil && s.chunk == head && p.levels != nil {
			p.levels.learn(s.key, int(level))
		}
	}
	if err := e.end(); err != nil {
		return false, err
	}
	return true, nil
}

// readValues reads the subjects' strings.
func (p *scriptCall) readValues(e *elements) (foreign, taken int) {
	for i := range p.subjects {
		s := &p.subjects[i]
		s.value, s.readable = nil, true
		if e.next() == ':' {
			s.readable = false
			e.integer()
			taken++
		} else if value := e.text(); value != nil {
			if isWellFormed(value) {
				s.value = value
			} else {
				foreign++
			}
		}
	}
	return foreign, taken
}

// readStates reads the states of the buckets as the script found them, and returns how many had impossible numbers.
func (p *scriptCall) readStates() (foreign int) {
	for i := range p.buckets {
		b := &p.buckets[i]
		b.state, b.charged, b.shown, b.refunded = limit.State{}, false, nil, false
		value := p.subjects[b.subject].value
		if value == nil || b.key.Slots {
			continue
		}
		if found := findState(value, b.name[:]); found != nil {
			var ok bool
			if b.state, ok = decode(found, p.now); !ok {
				foreign++
			}
		}
	}
	return foreign
}

// readLogs reads the views of sliding logs and concurrency limits. It returns how many have lost their entries, and how
// many keys of entries hold a foreign type.
func (p *scriptCall) readLogs(e *elements) (lost, taken int) {
	size := e.array()
	if size%viewSize != 0 {
		e.fail()
		return 0, 0
	}
	p.views = slices.Grow(p.views[:0], size/viewSize) // records point into it
	for range size / viewSize {
		record := e.between(1, int64(len(p.records)))
		spent, at := e.integer(), limit.Micros(e.integer())
		last, freeAt, found := limit.Micros(e.integer()), limit.Micros(e.integer()), e.integer()
		if e.err != nil {
			return 0, 0
		}
		r := &p.records[record-1]
		v := view{state: limit.State{Algorithm: limit.SlidingLog, Base: 1, Spent: spent, At: at}, freeAt: freeAt}
		if bound := &p.bounds[r.bound]; bound.Key.Slots {
			v = p.viewSlots(&bound.Policy.Limit, r, spent, at)
		} else if spent > 0 {
			v.state.Log = []limit.Admission{{At: last, Cost: spent}}
		}
		switch found {
		case entriesLost:
			lost++
		case entriesForeign:
			taken++
			v.foreign = true
		}
		p.views = append(p.views, v)
		r.log = &p.views[len(p.views)-1]
	}
	return lost, taken
}

// viewSlots returns the view of so many slots, by the first of their deadlines.
func (p *scriptCall) viewSlots(l *limit.Limit, r *record, count int64, first limit.Micros) view {
	v := view{state: limit.State{Algorithm: limit.Concurrency, Base: 1, Spent: count}}
	if count > 0 {
		v.state.Slots = []limit.Slot{{Deadline: first}}
	}
	v.freeAt = p.now + l.Wait(&v.state, p.now, r.demand)
	return v
}

// denied reports whether an enforced bound denies.
func (p *scriptCall) denied() bool {
	for i := range p.records[:p.enforced] {
		if p.records[i].denied {
			return true
		}
	}
	return false
}

// fillStatuses fills in the statuses of a take. Charged reports whether what the script has spent stays spent; it is
// false where another call of the same request denies.
func (p *scriptCall) fillStatuses(statuses []decision.Status, charged bool) error {
	denied := p.denied()
	refunds := !charged && !denied // what the script has spent is refunded, because another call denies
	charged = charged && !denied
	p.shown = slices.Grow(p.shown[:0], len(p.bounds))[:len(p.bounds)]
	clear(p.shown)
	for i := range p.records {
		r := &p.records[i]
		b := &p.buckets[r.bucket]
		state := b.state
		if r.log != nil {
			if b.shown == nil || !b.refunded {
				b.shown = r
			}
			state = b.shown.log.state
			if p.shown[r.bound] == nil || (charged && r.viewsOnly()) {
				p.shown[r.bound] = b.shown
			}
		}
		b.refunded = b.refunded || refunds && p.wasSpent(r)
		if r.checks {
			wait, err := p.wait(r, state, charged)
			if err != nil {
				return err
			}
			statuses[r.bound].Wait = wait
		}
		if charged && p.wasSpent(r) {
			b.state, statuses[r.bound].Receipt = p.spend(r, b.state)
			b.charged, statuses[r.bound].Charged = true, true
		}
	}
	for i := range p.bounds {
		p.report(i, &statuses[i])
	}
	return nil
}

// fill fills in the statuses of a decision. A peek shows the waits of a take, and how the buckets stand without it.
// Admitted reports whether all calls of the request admit.
func (p *scriptCall) fill(statuses []decision.Status, admitted bool) error {
	if err := p.fillStatuses(statuses, admitted); err != nil || p.mode != modePeek {
		return err
	}
	waits := make([]limit.Micros, len(statuses))
	for i := range statuses {
		waits[i] = statuses[i].Wait
	}
	clear(statuses)
	p.readStates()
	err := p.fillStatuses(statuses, false)
	for i := range statuses {
		statuses[i].Wait = waits[i]
	}
	return err
}

// wait returns how long the record's bound has to wait. The script's decision stands, but for a bound in shadow that
// was checked after spending which was then refunded: it is checked again without that.
func (p *scriptCall) wait(r *record, state limit.State, charged bool) (limit.Micros, error) {
	bound := &p.bounds[r.bound]
	l := &bound.Policy.Limit
	if !r.denied {
		return 0, nil
	}
	var wait limit.Micros
	switch {
	case r.demand > l.Capacity():
		wait = limit.Never
	case r.log != nil && p.buckets[r.bucket].refunded && l.Wait(&state, p.now, r.demand) == 0:
		wait = 0
	case r.log != nil:
		wait = r.log.freeAt - p.now
	default:
		l.Advance(&state, p.now)
		wait = l.Wait(&state, p.now, r.demand)
	}
	if wait <= 0 && (charged || bound.Enforced()) {
		return 0, fmt.Errorf("%w: %d of %s", errScriptDiffers, r.demand, bound.Policy.Describe())
	}
	return max(wait, 0), nil
}

// wasSpent reports whether the script has spent the record, if no enforced record denied.
func (p *scriptCall) wasSpent(r *record) bool {
	couldBeRead := p.subjects[p.buckets[r.bucket].subject].readable && (r.log == nil || !r.log.foreign)
	return r.spends && !r.denied && p.bounds[r.bound].Cost > 0 && couldBeRead
}

// spend returns the state after the record was spent from it, and the receipt. Of a sliding log and of a concurrency
// limit it spends from the view, with the mark of the state.
func (p *scriptCall) spend(r *record, state limit.State) (limit.State, limit.Receipt) {
	bound := &p.bounds[r.bound]
	l := &bound.Policy.Limit
	if r.log != nil {
		l.Advance(&state, p.now)
		tag, mark := state.Tag, state.Mark
		state = r.log.state
		state.Tag, state.Mark, state.Log, state.Slots = tag, mark, slices.Clone(state.Log), slices.Clone(state.Slots)
	}
	l.Advance(&state, p.now)
	receipt := l.Acquire(&state, p.now, bound.Cost, r.slot)
	return state, receipt
}

// report fills in how the bound's bucket stands after the request.
func (p *scriptCall) report(i int, status *decision.Status) {
	status.Now, status.Source = p.now, decision.Redis
	b, r := &p.buckets[p.bucketOf[i]], p.shown[i]
	if !p.subjects[b.subject].readable || (r != nil && r.log.foreign) {
		status.Source, status.Failure = decision.Unanswered, decision.WrongType
		return
	}
	l, state := &p.bounds[i].Policy.Limit, b.state
	if r != nil && (r.viewsOnly() || !b.charged) {
		state = r.log.state
	}
	l.Advance(&state, p.now)
	status.Status = l.Status(&state, p.now)
}
