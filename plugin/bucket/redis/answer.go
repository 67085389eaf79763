package redis

import (
	"errors"
	"fmt"
	"slices"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/decision"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/limit"
)

// view is the script's report of a sliding log before it spends. The entries stay in Redis.
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

var errReply = errors.New("the script's reply has not the form of its contract")

// errScriptDiffers reports a fault of this program: the script and package limit are tested to decide alike.
var errScriptDiffers = errors.New("the script denied what the limit admits")

// readReply reads the reply to a take. It returns how many values were not of our form, and how many keys hold a
// foreign type.
func (p *plan) readReply(reply []any) (foreign, taken int, err error) {
	n := len(p.subjects)
	if len(reply) != n+1 && len(reply) != n+3 && len(reply) != n+4 {
		return 0, 0, fmt.Errorf("%w: %d elements for %d values", errReply, len(reply), n)
	}
	now, ok := reply[n].(int64)
	if !ok {
		return 0, 0, fmt.Errorf("%w: its clock is a %T", errReply, reply[n])
	}
	values := reply[:n]
	var denials, logs []any
	if len(reply) > n+1 {
		denials, ok = asArray(reply[n+1])
		var okLogs bool
		if logs, okLogs = asArray(reply[n+2]); !ok || !okLogs || len(logs)%viewSize != 0 {
			return 0, 0, fmt.Errorf("%w: %T and %T with %d numbers", errReply, reply[n+1], reply[n+2], len(logs))
		}
	}
	if p.toSplit = p.toSplit[:0]; len(reply) > n+3 {
		if p.toSplit, ok = asArray(reply[n+3]); !ok {
			return 0, 0, fmt.Errorf("%w: crowded strings are a %T", errReply, reply[n+3])
		}
	}
	p.now = limit.Micros(now)
	for _, number := range denials {
		i, ok := number.(int64)
		if !ok || i < 1 || int(i) > len(p.records) {
			return 0, 0, fmt.Errorf("%w: record %v denies", errReply, number)
		}
		p.records[i-1].denied = true
	}
	if foreign, taken, err = p.readValues(values); err != nil {
		return 0, 0, err
	}
	lost, alien, err := p.readLogs(logs)
	return foreign + lost, taken + alien, err
}

// asArray returns an array of the reply, nil where the reply has none, and whether it could be read.
func asArray(element any) ([]any, bool) {
	if element == nil {
		return nil, true
	}
	array, ok := element.([]any)
	return array, ok
}

// learnLevels records the levels of the request's subjects, if the reply consists of them. It reports whether it does:
// then the script has done nothing else, and is run again.
func (p *plan) learnLevels(reply []any) (bool, error) {
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
		s.value, s.readable = "", true
		switch value := values[i].(type) {
		case nil:
		case string:
			if isWellFormed(value) {
				s.value = value
			} else {
				foreign++
			}
		case int64:
			s.readable = false
			taken++
		default:
			return 0, 0, fmt.Errorf("%w: a value is a %T", errReply, value)
		}
	}
	return foreign + p.readStates(), taken, nil
}

// readStates reads the states of the buckets as the script found them, and returns how many had impossible numbers.
func (p *plan) readStates() (foreign int) {
	for i := range p.buckets {
		b := &p.buckets[i]
		b.state, b.charged, b.shown, b.refunded = limit.State{}, false, nil, false
		value := p.subjects[b.subject].value
		if value == "" {
			continue
		}
		if found := findState(value, b.name[:]); found != "" {
			var ok bool
			if b.state, ok = decode(found, p.now); !ok {
				foreign++
			}
		}
	}
	return foreign
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
		v := view{
			state:  limit.State{Algorithm: limit.SlidingLog, Base: 1, Spent: n[1], At: limit.Micros(n[2])},
			freeAt: limit.Micros(n[4]),
		}
		if v.state.Spent > 0 {
			v.state.Log = []limit.Admission{{At: limit.Micros(n[3]), Cost: v.state.Spent}}
		}
		switch n[5] {
		case entriesLost:
			lost++
		case entriesForeign:
			taken++
			v.foreign = true
		}
		p.views = append(p.views, v)
		p.records[n[0]-1].log = &p.views[len(p.views)-1]
	}
	return lost, taken, nil
}

// denied reports whether an enforced bound denies.
func (p *plan) denied() bool {
	for i := range p.records[:p.enforced] {
		if p.records[i].denied {
			return true
		}
	}
	return false
}

// fill fills in the statuses of a decision. Admitted reports whether all calls of the request admit.
func (p *plan) fill(statuses []decision.Status, admitted bool) error {
	if p.mode == modePeek {
		return p.fillPeeked(statuses, admitted)
	}
	return p.fillStatuses(statuses, admitted)
}

// fillStatuses fills in the statuses of a take. Charged reports whether what the script has spent stays spent; it is false where
// another call of the same request denies.
func (p *plan) fillStatuses(statuses []decision.Status, charged bool) error {
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
			b.state, b.charged = p.spend(r, b.state), true
			statuses[r.bound].Charged, statuses[r.bound].Receipt = true, b.state.Receipt()
		}
	}
	for i := range p.bounds {
		p.report(i, &statuses[i])
	}
	return nil
}

// fillPeeked fills in the statuses of a peek: the waits of a take, and how the buckets stand without it. Admitted reports
// whether all calls of the request admit.
func (p *plan) fillPeeked(statuses []decision.Status, admitted bool) error {
	if err := p.fillStatuses(statuses, admitted); err != nil {
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
func (p *plan) wait(r *record, state limit.State, charged bool) (limit.Micros, error) {
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
func (p *plan) wasSpent(r *record) bool {
	return r.spends && !r.denied && p.bounds[r.bound].Cost > 0 && p.isAnswered(r)
}

// isAnswered reports whether the record's bucket could be read.
func (p *plan) isAnswered(r *record) bool {
	return p.subjects[p.buckets[r.bucket].subject].readable && (r.log == nil || !r.log.foreign)
}

// spend returns the state after the record was spent from it. Of a sliding log it spends from the view, with the mark
// of the state.
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

// report fills in how the bound's bucket stands after the request.
func (p *plan) report(i int, status *decision.Status) {
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
