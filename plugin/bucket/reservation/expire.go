package reservation

import (
	"container/heap"
	"context"
	"slices"
	"time"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/limit"
)

// Expire gives up the reservations that have timed out. They are kept for as long again, so that a log phase that comes
// late still charges what the request used beyond its reservation.
func (t *Table) Expire() {
	timedOut, forgotten, warn := t.ended(t.options.Elapsed())
	for _, r := range timedOut {
		t.timeOut(r)
	}
	for _, r := range forgotten {
		r.keeper.done()
	}
	if warn > 0 {
		t.options.Log.Warn("no reservation was settled yet: enable the plugin tenant-rate-settling wherever a limit settles; "+
			"until then reservations stay charged", "reservations", warn)
	}
}

// timeOut reports that a reservation has timed out, unless another process has settled it: then it is forgotten.
func (t *Table) timeOut(r *reservation) {
	if r.writing == nil || !t.inBackground(r.keeper, func(ctx context.Context) {
		if !r.isTaken(ctx) {
			t.reportUnsettled(r, TimedOut)
		} else if t.take(r.key) == r {
			t.count(&t.stats.Elsewhere)
			r.keeper.done()
		}
	}) {
		t.reportUnsettled(r, TimedOut)
	}
}

// isTaken reports whether another process has taken the record of a reservation.
func (r *reservation) isTaken(ctx context.Context) bool {
	if r.writing.await(ctx) != recordWritten {
		return false
	}
	text, err := r.keeper.central.Records.Get(ctx, r.key)
	return err == nil && !isRecord(text)
}

// A process that has made warnAfter reservations, the first one warnTimeout ago, should have seen a log phase.
const (
	warnAfter   = 100
	warnTimeout = 60 * limit.Second
)

// ended returns the reservations that time out now, those that did so long ago and are forgotten now, and how many were
// made, if it is to be logged that no log phase has come, which is once; else 0.
func (t *Table) ended(now limit.Micros) (timedOut, forgotten []*reservation, warn uint64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for len(t.waiting) > 0 && t.waiting[0].ends <= now {
		r := heap.Pop(&t.waiting).(*reservation)
		r.late = true
		r.ends += r.Timeout
		heap.Push(&t.late, r)
		timedOut = append(timedOut, r)
	}
	for len(t.late) > 0 && t.late[0].ends <= now {
		r := t.late[0]
		t.remove(r)
		forgotten = append(forgotten, r)
	}
	if !t.reached && !t.warned && t.made >= warnAfter && now-t.firstMade >= warnTimeout {
		t.warned, warn = true, t.made
	}
	return timedOut, forgotten, warn
}

// Run calls Expire every second until ctx ends, and settles what waits for its store, also when a store is opened. It
// waits for the calls in the background.
func (t *Table) Run(ctx context.Context) error {
	defer func() { _ = t.background.Wait() }()
	ticker := time.NewTicker(time.Second)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
			t.Expire()
		case <-t.opened:
		}
		t.retry(ctx)
	}
}

// ends is a heap of reservations, the one that ends first at its top.
type ends []*reservation

func (e ends) Len() int           { return len(e) }
func (e ends) Less(i, j int) bool { return e[i].ends < e[j].ends }
func (e ends) Swap(i, j int) {
	e[i], e[j] = e[j], e[i]
	e[i].place, e[j].place = i, j
}

// Push implements heap.Interface.
func (e *ends) Push(x any) {
	r := x.(*reservation)
	r.place = len(*e)
	*e = append(*e, r)
}

// Pop implements heap.Interface.
func (e *ends) Pop() any {
	last := len(*e) - 1
	r := (*e)[last]
	*e = slices.Delete(*e, last, last+1)
	return r
}
