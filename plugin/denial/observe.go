package denial

import (
	"time"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/decision"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/limit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/policy"
)

// cause is one reason why a request is denied, or would be: a bound that has no room or no answer, or a reason that is
// no bound's.
type cause struct {
	bound  *policy.Bound    // nil: reason says why
	status *decision.Status // of bound
	reason decision.Reason
	mode   policy.Mode
	wait   limit.Micros // how long until the cause is gone; 0: unknown, limit.Never: no wait helps
	answer bool         // the request was refused, and this is what the client was told
}

// Observe implements admit.Observer. A request that nothing denies costs two comparisons.
func (r *Recorder) Observe(d *decision.Decision) {
	if !d.Denied() && !d.ShadowDenied {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	// Under the lock, the clock's order is that of the counts: a second that is over gets no more of them.
	now := time.Now()
	if d.ShadowReason != decision.Counted {
		r.count(now, d, cause{reason: d.ShadowReason, mode: d.Mode})
	}
	if d.Denied() && d.Reason != decision.Counted && d.Reason != decision.StoreAway {
		r.count(now, d, cause{reason: d.Reason, wait: d.RetryAfter, answer: true})
	}
	answered := false
	for i := range d.Resolution.Bounds {
		c, ok := causeOf(d, i)
		if !ok {
			continue
		}
		c.answer = c.answer && !answered
		answered = answered || c.answer
		r.count(now, d, c)
	}
}

// causeOf is what bound i of d has against the request; false if nothing. Where a bound really has no room, those that
// fail closed are not part of the refusal, just as in the metrics.
func causeOf(d *decision.Decision, i int) (cause, bool) {
	bound, status := &d.Resolution.Bounds[i], &d.Statuses[i]
	c := cause{bound: bound, status: status, mode: bound.Policy.Mode, wait: status.Wait}
	if status.Source == decision.Unanswered {
		c.reason, c.wait = decision.StoreAway, max(status.Wait, 1)
		c.answer = c.wait == d.RetryAfter
		return c, d.Reason == decision.StoreAway && decision.Denies(bound, status)
	}
	c.answer = i == d.Binding
	return c, !status.Admits()
}

// count adds one denial to its group. The caller holds the lock.
func (r *Recorder) count(now time.Time, d *decision.Decision, c cause) {
	r.denials++
	if r.ended {
		r.lost[Shutdown].add(0, 1)
		return
	}
	if second := now.Unix(); r.window == nil || r.window.second != second {
		r.closeWindow()
		r.window = &window{second: second, groups: map[key]*group{}}
	}
	w, k := r.window, r.keyOf(d, c)
	w.denials++
	g := w.groups[k]
	if g == nil && w.own < r.options.MaxGroups {
		w.own++
		g = r.open(k, now, d, c)
		w.groups[g.key] = g
	}
	if g == nil {
		r.folded++
		g = w.other(k, now)
	}
	g.add(now, d, c)
}

// closeWindow ends the second that is counted. It takes no longer for a full one than for an empty one: it can happen
// to any request. The caller holds the lock.
func (r *Recorder) closeWindow() {
	switch w := r.window; {
	case w == nil:
	case len(r.finished) < maxFinished:
		r.finished = append(r.finished, w)
	default: // nobody runs the recorder, or the machine is so busy that it does not get to run
		r.lost[Queue].add(uint64(len(w.groups)), w.denials)
	}
	r.window = nil
}
