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
	if warn {
		t.options.Log.Warn("no reservation was settled yet: enable the plugin tenant-rate-settling wherever a limit settles; "+
			"until then reservations stay charged", "reservations", t.reservations())
	}
}

// timeOut reports that a reservation has timed out, unless another process has settled it: then it is forgotten.
func (t *Table) timeOut(r *reservation) {
	if r.writing == nil || !t.inBackground(r.keeper, func(ctx context.Context) {
		if !r.isTaken(ctx) {
			t.giveUp(r, TimedOut)
			return
		}
		t.forget(r)
	}) {
		t.giveUp(r, TimedOut)
	}
}

// isTaken reports whether another process has taken the record of a reservation.
func (r *reservation) isTaken(ctx context.Context) bool {
	if r.writing.await(ctx) != recordWritten {
		return false
	}
	text, err := r.keeper.central.Records.Get(ctx, r.id.key())
	return err == nil && text == nil
}

// forget removes a reservation that another process has settled, if it is still there.
func (t *Table) forget(r *reservation) {
	t.mu.Lock()
	there := t.byID[r.id] == r
	if there {
		t.remove(r)
	}
	t.mu.Unlock()
	if there {
		t.elsewhere.Add(1)
		r.keeper.done()
	}
}

// A process that has made warnAfter reservations, the first one warnTimeout ago, should have seen a log phase.
const (
	warnAfter   = 100
	warnTimeout = 60 * limit.Second
)

// reservations returns how many reservations were made.
func (t *Table) reservations() uint64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.made
}

// ended returns the reservations that time out now, those that did so long ago and are forgotten now, and whether to
// log that no log phase has come. It does the latter once.
func (t *Table) ended(now limit.Micros) (timedOut, forgotten []*reservation, warn bool) {
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
	warn = t.reached == 0 && !t.warned && t.made >= warnAfter && now-t.firstMade >= warnTimeout && t.options.Log != nil
	t.warned = t.warned || warn
	return timedOut, forgotten, warn
}

// expireEvery is the time between two calls of Expire.
const expireEvery = time.Second

// Run calls Expire every second until ctx ends, and settles what waits for its store. It waits for the calls in the
// background.
func (t *Table) Run(ctx context.Context) error {
	t.background.Go(func() { t.runRetries(ctx) })
	defer t.background.Wait()
	ticker := time.NewTicker(expireEvery)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
			t.Expire()
		}
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
