package reservation

import (
	"context"
	"slices"
	"time"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/limit"
)

// A process that has made warnAfter reservations, the first one warnTimeout ago, should have seen a log phase.
const (
	warnAfter   = 100
	warnTimeout = 60 * limit.Second
)

// Expire gives up the reservations that have timed out. They are kept for as long again, so that a log phase that comes
// late still charges what the request used beyond its reservation.
func (l *Ledger) Expire() {
	now := l.options.Elapsed()
	var timedOut, forgotten []*reservation
	l.mu.Lock()
	for len(l.ends) > 0 && l.ends[0].ends <= now {
		r := l.ends[0]
		l.remove(r)
		if r.late {
			forgotten = append(forgotten, r)
			continue
		}
		timedOut = append(timedOut, r)
		if !r.named {
			r.late, r.slots = true, 0
			r.ends += r.Timeout
			l.insert(r)
		}
	}
	made, warns := l.made, !l.reached && !l.warned && l.made >= warnAfter && now-l.firstMade >= warnTimeout
	l.warned = l.warned || warns
	l.mu.Unlock()
	for _, r := range timedOut {
		l.timeOut(r)
	}
	for _, r := range forgotten {
		r.keeper.done()
	}
	if warns {
		const missing = "no reservation was settled yet: enable the plugin tenant-rate-settling wherever a limit settles " +
			"or has the algorithm concurrency; until then reservations stay charged, and requests count for max_duration"
		l.options.Log.Warn(missing, "reservations", made)
	}
}

// timeOut reports that a reservation has timed out, unless another process has settled it: then it is forgotten. A
// named one is forgotten at once, and is back in the ledger for the next call if the records are out of reach.
func (l *Ledger) timeOut(r *reservation) {
	switch {
	case r.named:
		if !l.inBackground(r.keeper, func(ctx context.Context) {
			if err := r.keeper.expireNamed(ctx, r.key); err != nil {
				l.options.Log.Debug("reporting a reservation that timed out failed: it is tried again", "error", err)
				l.insertAgain(r)
				return
			}
			r.keeper.done()
		}) {
			l.insertAgain(r)
		}
	case r.writing == nil || !l.inBackground(r.keeper, func(ctx context.Context) {
		if !r.isTaken(ctx) {
			l.reportUnsettled(r, TimedOut)
		} else if l.take(r.key) == r {
			l.count(&l.stats.Elsewhere)
			r.keeper.done()
		}
	}):
		l.reportUnsettled(r, TimedOut)
	}
}

// insertAgain inserts a reservation, unless its name was free meanwhile and has another one.
func (l *Ledger) insertAgain(r *reservation) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.byKey[r.key] == nil {
		l.insert(r)
	} else {
		r.keeper.done()
	}
}

// isTaken reports whether another process has taken the record of a reservation.
func (r *reservation) isTaken(ctx context.Context) bool {
	if written, _ := r.writing.await(ctx); !written {
		return false
	}
	text, err := r.keeper.records.Get(ctx, r.key)
	return err == nil && !isRecord(text)
}

// Run calls Expire every second until ctx ends, frees the names of checks that the store answered too late, and settles
// what waits for its store, also when a store is opened. It waits for the calls in the background.
func (l *Ledger) Run(ctx context.Context) error {
	defer func() { _ = l.background.Wait() }()
	ticker := time.NewTicker(time.Second)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
			l.Expire()
			l.releaseDoubts(ctx)
		case <-l.opened:
		}
		l.retry(ctx)
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
