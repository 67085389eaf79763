package redisstore

import (
	"errors"
	"fmt"
	"slices"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/decision"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/limit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/policy"
)

// view is what the script says of a sliding log before it spends: its entries stay in Redis.
type view struct {
	state limit.State
	free  limit.Micros // instant from which the ask would fit; 0: it fits, or never will
}

const viewSize = 6

var errReply = errors.New("the script's reply is not of the form that it promises")

// errDiffers cannot happen: the script and package limit are tested to decide alike.
var errDiffers = errors.New("the script refused what the limit admits")

// read takes the script's reply in. foreign is how many of our values were not of our form, taken how many keys hold
// something that is not ours at all.
func (p *plan) read(reply []any) (foreign, taken int, err error) {
	if len(reply) != 4 {
		return 0, 0, fmt.Errorf("%w: %d elements", errReply, len(reply))
	}
	now, ok := reply[0].(int64)
	refused, ok1 := list(reply[1])
	logs, ok2 := list(reply[2])
	values, ok3 := list(reply[3])
	if !ok || !ok1 || !ok2 || !ok3 || len(values) != p.places || len(logs)%viewSize != 0 {
		return 0, 0, fmt.Errorf("%w: %T, %T, %T, %d values for %d", errReply, reply[0], reply[1], reply[2], len(values), p.places)
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
	lost, err := p.readLogs(logs)
	return foreign + lost, taken, err
}

// list is an array of the reply; none is an empty one.
func list(element any) ([]any, bool) {
	if element == nil {
		return nil, true
	}
	array, ok := element.([]any)
	return array, ok
}

func (p *plan) readValues(values []any) (foreign, taken int, err error) {
	for i := range p.buckets {
		b := &p.buckets[i]
		switch value := values[b.place-1].(type) {
		case nil:
			b.state, b.ours = limit.State{}, true
		case string:
			if b.state, b.ours = decode(value, inHash(b.key), p.now); !b.ours {
				foreign++
				b.ours = true
			}
		case int64:
			b.ours = false
			taken++
		default:
			return 0, 0, fmt.Errorf("%w: a value is a %T", errReply, value)
		}
	}
	return foreign, taken, nil
}

func (p *plan) readLogs(logs []any) (lost int, err error) {
	p.views = slices.Grow(p.views[:0], len(logs)/viewSize) // records point into it
	for ; len(logs) > 0; logs = logs[viewSize:] {
		var n [viewSize]int64
		for i := range n {
			var ok bool
			if n[i], ok = logs[i].(int64); !ok {
				return 0, fmt.Errorf("%w: a number of a log is a %T", errReply, logs[i])
			}
		}
		if n[0] < 1 || int(n[0]) > len(p.records) {
			return 0, fmt.Errorf("%w: record %d is a log", errReply, n[0])
		}
		v := view{state: limit.State{Algorithm: limit.SlidingLog, Base: 1, Spent: n[1], At: limit.Micros(n[2])}, free: limit.Micros(n[4])}
		if v.state.Spent > 0 {
			v.state.Log = []limit.Admission{{At: limit.Micros(n[3]), Cost: v.state.Spent}}
		}
		lost += int(n[5])
		p.views = append(p.views, v)
		p.records[n[0]-1].log = &p.views[len(p.views)-1]
	}
	return lost, nil
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
	charged = charged && !p.denied()
	p.seen = append(p.seen[:0], make([]*record, len(p.bounds))...)
	for i := range p.records {
		r := &p.records[i]
		b, bound := &p.buckets[r.bucket], &p.bounds[r.bound]
		state := b.state
		if r.log != nil {
			state = r.log.state
			if p.seen[r.bound] == nil || (charged && r.looks()) {
				p.seen[r.bound] = r
			}
		}
		if r.asks {
			wait, err := p.wait(r, state, charged)
			if err != nil {
				return err
			}
			statuses[r.bound].Wait = wait
		}
		if charged && r.spends && !r.refused && b.ours && bound.Cost > 0 {
			b.state, b.charged = p.spend(state, bound), true
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
	if !r.refused || !p.buckets[r.bucket].ours {
		return 0, nil
	}
	var wait limit.Micros
	switch {
	case r.asked > l.Capacity():
		wait = limit.Never
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

// spend is the state after the bound was spent from it.
func (p *plan) spend(state limit.State, bound *policy.Bound) limit.State {
	state.Log = slices.Clone(state.Log) // a view's
	bound.Policy.Limit.Advance(&state, p.now)
	bound.Policy.Limit.Spend(&state, p.now, bound.Cost)
	return state
}

// report says how the bound's bucket stands after the request.
func (p *plan) report(i int, status *decision.Status) {
	status.Now, status.Source = p.now, decision.Redis
	b := &p.buckets[p.of[i]]
	if !b.ours {
		status.Source = decision.Unanswered
		return
	}
	l, state := &p.bounds[i].Policy.Limit, b.state
	if r := p.seen[i]; r != nil && (r.looks() || !b.charged) {
		state = r.log.state
	}
	l.Advance(&state, p.now)
	status.Status = l.Status(&state, p.now)
}
