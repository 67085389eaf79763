package denial

import (
	"time"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/decision"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/limit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
)

// cause is one reason why a request is denied, or would be: a bound without room or without an answer, or a reason
// without a bound.
type cause struct {
	bound  *policy.Bound    // nil: only reason denies
	status *decision.Status // of bound
	reason decision.Reason
	mode   policy.Mode
	wait   limit.Micros // until the cause is gone; 0: unknown, limit.Never: no wait helps
	answer bool         // the response to the client names this cause
}

// Observe implements admit.Observer. A request without a denial costs two comparisons.
func (r *Recorder) Observe(d *decision.Decision) {
	if !d.Denied() && !d.ShadowDenied {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	// The clock is read under the lock, so that a finished second gets no more counts.
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

// causeOf returns why bound i of d denies the request, and whether it does. If any bound has no room, bounds that fail
// closed are not causes, as in the metrics.
func causeOf(d *decision.Decision, i int) (cause, bool) {
	bound, status := &d.Resolution.Bounds[i], &d.Statuses[i]
	c := cause{bound: bound, status: status, mode: bound.Policy.Mode, wait: status.Wait}
	if status.Source == decision.Unanswered {
		c.reason, c.wait = decision.StoreAway, max(status.Wait, 1)
		c.answer = c.wait == d.RetryAfter
		return c, d.Reason == decision.StoreAway && decision.Denies(bound, status)
	}
	if c.answer = i == d.Binding; status.Source == decision.FairShare {
		c.reason = decision.ShareExceeded
	}
	return c, !status.Admits()
}

// count adds one denial to its group. The caller must hold the lock.
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
	switch {
	case g != nil:
	case len(w.singles) < r.options.MaxSingles && w.single[k] < r.options.Singles:
		g = r.newGroup(k, now, d, c)
		w.addSingle(g)
	case w.named < r.options.MaxGroups:
		w.named++
		g = r.newGroup(k, now, d, c)
		w.groups[g.key] = g
	default:
		r.folded++
		g = w.othersGroup(k, now)
	}
	g.countDenial(now, d, c)
}

// addSingle adds a group that will count one denial.
func (w *window) addSingle(g *group) {
	if w.single == nil {
		w.single = map[key]int{}
	}
	w.single[g.key]++
	w.singles = append(w.singles, g)
}

// closeWindow ends the current second. It takes constant time, because any request may call it. The caller must hold
// the lock.
func (r *Recorder) closeWindow() {
	switch w := r.window; {
	case w == nil:
	case len(r.finished) < maxFinished:
		r.finished = append(r.finished, w)
	default: // Run was not started, or the machine is too busy to run it
		r.lost[Queue].add(uint64(w.lines()), w.denials)
	}
	r.window = nil
}
