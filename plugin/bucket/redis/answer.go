package redis

import (
	"errors"
	"fmt"
	"slices"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/decision"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/limit"
)

// view is what the script says of a sliding log before it spends: its entries stay in Redis.
type view struct {
	state limit.State
	free  limit.Micros // instant from which the ask would fit; 0: it fits, or never will
	taken bool         // the key of its entries holds something that is not ours
}

// A view in the reply is so many numbers; the last says what became of the entries.
const (
	viewSize     = 6
	entriesLost  = 1
	entriesTaken = 2
)

var errReply = errors.New("the script's reply is not of the form that it promises")

// errDiffers cannot happen: the script and package limit are tested to decide alike.
var errDiffers = errors.New("the script refused what the limit admits")

// read takes the script's reply in. foreign is how many of our values were not of our form, taken how many keys hold
// something that is not ours at all.
func (p *plan) read(reply []any) (foreign, taken int, err error) {
	n := len(p.subjects)
	if len(reply) != n+1 && len(reply) != n+3 && len(reply) != n+4 {
		return 0, 0, fmt.Errorf("%w: %d elements for %d values", errReply, len(reply), n)
	}
	now, ok := reply[n].(int64)
	if !ok {
		return 0, 0, fmt.Errorf("%w: its clock is a %T", errReply, reply[n])
	}
	values := reply[:n]
	var refused, logs []any
	if len(reply) > n+1 {
		refused, ok = list(reply[n+1])
		var okLogs bool
		if logs, okLogs = list(reply[n+2]); !ok || !okLogs || len(logs)%viewSize != 0 {
			return 0, 0, fmt.Errorf("%w: %T and %T with %d numbers", errReply, reply[n+1], reply[n+2], len(logs))
		}
	}
	if p.crowded = p.crowded[:0]; len(reply) > n+3 {
		if p.crowded, ok = list(reply[n+3]); !ok {
			return 0, 0, fmt.Errorf("%w: crowded strings are a %T", errReply, reply[n+3])
		}
	}
	p.now = limit.Micros(now)
	for _, number := range refused {
		i, ok := number.(int64)
		if !ok || i < 1 || int(i) > len(p.records) {
			return 0, 0, fmt.Errorf("%w: record %v refuses", errReply, number)
		}
		p.records[i-1].refused = true
	}
	if foreign, taken, err = p.readValues(values); err != nil {
		return 0, 0, err
	}
	lost, alien, err := p.readLogs(logs)
	return foreign + lost, taken + alien, err
}

// list is an array of the reply; none is an empty one.
func list(element any) ([]any, bool) {
	if element == nil {
		return nil, true
	}
	array, ok := element.([]any)
	return array, ok
}

// relevel learns the levels of the request's subjects, if the reply consists of them. Then the script has done nothing
// else, and is to be asked again.
func (p *plan) relevel(reply []any) (bool, error) {
	if len(reply) != 1 {
		return false, nil
	}
	found, ok := reply[0].([]any)
	if !ok {
		return false, nil
	}
	if len(found) != len(p.subjects) {
		return false, fmt.Errorf("%w: %d levels for %d values", errReply, len(found), len(p.subjects))
	}
	for i := range p.subjects {
		level, ok := found[i].(int64)
		if !ok || level < -1 || level > maxLevel {
			return false, fmt.Errorf("%w: a level is %v", errReply, found[i])
		}
		if s := &p.subjects[i]; s.chunk == head && p.levels != nil {
			p.levels.learn(s.key, int(level))
		}
	}
	return true, nil
}

func (p *plan) readValues(values []any) (foreign, taken int, err error) {
	for i := range p.subjects {
		s := &p.subjects[i]
		s.value, s.ours = "", true
		switch value := values[i].(type) {
		case nil:
		case string:
			if sound(value) {
				s.value = value
			} else {
				foreign++
			}
		case int64:
			s.ours = false
			taken++
		default:
			return 0, 0, fmt.Errorf("%w: a value is a %T", errReply, value)
		}
	}
	for i := range p.buckets {
		b := &p.buckets[i]
		b.state, b.charged, b.shown, b.refunded = limit.State{}, false, nil, false
		value := p.subjects[b.subject].value
		if value == "" {
			continue
		}
		if found := find(value, b.name[:]); found != "" {
			var ok bool
			if b.state, ok = decode(found, p.now); !ok {
				foreign++
			}
		}
	}
	return foreign, taken, nil
}

func (p *plan) readLogs(logs []any) (lost, taken int, err error) {
	p.views = slices.Grow(p.views[:0], len(logs)/viewSize) // records point into it
	for ; len(logs) > 0; logs = logs[viewSize:] {
		var n [viewSize]int64
		for i := range n {
			var ok bool
			if n[i], ok = logs[i].(int64); !ok {
				return 0, 0, fmt.Errorf("%w: a number of a log is a %T", errReply, logs[i])
			}
		}
		if n[0] < 1 || int(n[0]) > len(p.records) {
			return 0, 0, fmt.Errorf("%w: record %d is a log", errReply, n[0])
		}
		v := view{state: limit.State{Algorithm: limit.SlidingLog, Base: 1, Spent: n[1], At: limit.Micros(n[2])}, free: limit.Micros(n[4])}
		if v.state.Spent > 0 {
			v.state.Log = []limit.Admission{{At: limit.Micros(n[3]), Cost: v.state.Spent}}
		}
		switch n[5] {
		case entriesLost:
			lost++
		case entriesTaken:
			taken++
			v.taken = true
		}
		p.views = append(p.views, v)
		p.records[n[0]-1].log = &p.views[len(p.views)-1]
	}
	return lost, taken, nil
}

// denied tells whether an enforced bound refuses.
func (p *plan) denied() bool {
	for i := range p.records[:p.enforced] {
		if p.records[i].refused {
			return true
		}
	}
	return false
}

// settle fills the statuses in. charged says whether what the script has spent stays spent; it is false where another
// call of the same request was refused.
func (p *plan) settle(statuses []decision.Status, charged bool) error {
	denied := p.denied()
	refunds := !charged && !denied // what the script has spent is refunded, because another call denies
	charged = charged && !denied
	p.seen = slices.Grow(p.seen[:0], len(p.bounds))[:len(p.bounds)]
	clear(p.seen)
	for i := range p.records {
		r := &p.records[i]
		b := &p.buckets[r.bucket]
		state := b.state
		if r.log != nil {
			if b.shown == nil || !b.refunded {
				b.shown = r
			}
			state = b.shown.log.state
			if p.seen[r.bound] == nil || (charged && r.looks()) {
				p.seen[r.bound] = b.shown
			}
		}
		b.refunded = b.refunded || refunds && p.spent(r)
		if r.asks {
			wait, err := p.wait(r, state, charged)
			if err != nil {
				return err
			}
			statuses[r.bound].Wait = wait
		}
		if charged && p.spent(r) {
			b.state, b.charged = p.spend(r, b.state), true
			statuses[r.bound].Charged, statuses[r.bound].Receipt = true, b.state.Receipt()
		}
	}
	for i := range p.bounds {
		p.report(i, &statuses[i])
	}
	return nil
}

// wait says how long the record's bound has to wait. What the script has decided stands; only a bound in shadow, whose
// turn came after spending that did not last, is asked again.
func (p *plan) wait(r *record, state limit.State, charged bool) (limit.Micros, error) {
	bound := &p.bounds[r.bound]
	l := &bound.Policy.Limit
	if !r.refused {
		return 0, nil
	}
	var wait limit.Micros
	switch {
	case r.asked > l.Capacity():
		wait = limit.Never
	case r.log != nil && p.buckets[r.bucket].refunded && l.Wait(&state, p.now, r.asked) == 0:
		wait = 0
	case r.log != nil:
		wait = r.log.free - p.now
	default:
		l.Advance(&state, p.now)
		wait = l.Wait(&state, p.now, r.asked)
	}
	if wait <= 0 && (charged || bound.Enforced()) {
		return 0, fmt.Errorf("%w: %d of %s", errDiffers, r.asked, bound.Policy.Describe())
	}
	return max(wait, 0), nil
}

// spent tells whether the script has spent the record, if nothing enforced refused.
func (p *plan) spent(r *record) bool {
	return r.spends && !r.refused && p.bounds[r.bound].Cost > 0 && p.answered(r)
}

// answered tells whether the record's bucket could be read.
func (p *plan) answered(r *record) bool {
	return p.subjects[p.buckets[r.bucket].subject].ours && (r.log == nil || !r.log.taken)
}

// spend returns the state after the record was spent from it. Of a sliding log its view is spent from, which knows no
// mark.
func (p *plan) spend(r *record, state limit.State) limit.State {
	bound := &p.bounds[r.bound]
	l := &bound.Policy.Limit
	if r.log != nil {
		l.Advance(&state, p.now)
		tag, mark := state.Tag, state.Mark
		state = r.log.state
		state.Tag, state.Mark, state.Log = tag, mark, slices.Clone(state.Log)
	}
	l.Advance(&state, p.now)
	l.Spend(&state, p.now, bound.Cost)
	return state
}

// report says how the bound's bucket stands after the request.
func (p *plan) report(i int, status *decision.Status) {
	status.Now, status.Source = p.now, decision.Redis
	b, r := &p.buckets[p.of[i]], p.seen[i]
	if !p.subjects[b.subject].ours || (r != nil && r.log.taken) {
		status.Source, status.Failure = decision.Unanswered, decision.WrongType
		return
	}
	l, state := &p.bounds[i].Policy.Limit, b.state
	if r != nil && (r.looks() || !b.charged) {
		state = r.log.state
	}
	l.Advance(&state, p.now)
	status.Status = l.Status(&state, p.now)
}
