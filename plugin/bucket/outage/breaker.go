package outage

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"
)

// Breaker stops calls to a server that fails or is slow, and lets single calls through to find out whether it is back.
// The central store calls Enter before each call; a call that Enter lets through ends with exactly one Leave or
// Abandon. It is safe for concurrent use; make it with [Breakers.New].
type Breaker struct {
	store string
	set   *Breakers
	log   *slog.Logger

	mu       sync.Mutex
	circuit  circuit
	since    time.Time     // of the last change between closed and not closed
	degraded time.Duration // the total of earlier times that it was not closed
	removed  bool

	successesInARow int // successes since the last failure
	errors, late    int // failures since the last ten successes in a row: by cause
}

// Enter reports whether a call may be sent. If not, wait is the least time after which the next try is worthwhile.
func (b *Breaker) Enter() (wait time.Duration, ok bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	var now time.Time
	if b.circuit.state != Closed { // else without a look at the clock
		now = b.set.now()
	}
	return b.circuit.enter(now)
}

// Leave ends a call that the server answered, or that failed: its duration since Enter, and whether it failed. A call
// that took longer than the slow threshold counts as failed, without the time in which this process could not run: see
// [stalls].
func (b *Breaker) Leave(took time.Duration, failed bool) {
	how := callAnswered
	if failed {
		how = callFailed
	}
	b.end(took, how)
}

// Abandon ends a call whose caller ran out of time. It is neither a success nor, by itself, a failure. Once calls have
// waited for longer than the slow threshold without any answer between, each counts as failed.
func (b *Breaker) Abandon(took time.Duration) { b.end(took, callAbandoned) }

// end counts a call that has ended.
func (b *Breaker) end(took time.Duration, how callEnd) {
	b.mu.Lock()
	defer b.mu.Unlock()
	c := &b.circuit
	c.inFlight--
	if b.removed || c.state == Open {
		return
	}
	if how == callAnswered && took <= c.slow && c.early == 0 { // the usual case
		b.succeed()
		return
	}
	now := b.set.now()
	switch v := c.judge(now, took, took-b.set.stalls.within(now.Add(-took), now), how); v {
	case success:
		b.succeed()
	case failure, slowness:
		b.fail(v, now)
	default:
	}
}

// succeed counts a success.
func (b *Breaker) succeed() {
	b.successesInARow++
	if b.circuit.succeed() {
		b.set.recoveries.Add(1)
		b.log.Info("Redis answers again", "after", roundedText(b.endOutage(b.set.now())))
	}
}

// roundedText returns a duration as people read it: in JSON it would be a number of nanoseconds.
func roundedText(d time.Duration) string { return d.Round(time.Millisecond).String() }

// endOutage records the end of an outage and returns its duration.
func (b *Breaker) endOutage(now time.Time) time.Duration {
	lasted := now.Sub(b.since)
	b.degraded += lasted
	b.since = now
	b.errors, b.late = 0, 0
	return lasted
}

// fail counts a failure, or a call that was too slow.
func (b *Breaker) fail(v verdict, now time.Time) {
	if b.successesInARow >= recentCalls {
		b.errors, b.late = 0, 0
	}
	b.successesInARow = 0
	if v == failure {
		b.errors++
	} else {
		b.late++
	}
	if b.circuit.fail(now, 2*b.set.jitter()-1) {
		b.since = now
		b.log.Warn("Redis does not answer: its limits use their fail modes",
			"errors", b.errors, "slow", b.late, "slow_means", roundedText(b.circuit.slow))
	}
}

// Close ends the breaker: its server does not belong to the store any more.
func (b *Breaker) Close() {
	b.set.mu.Lock()
	defer b.set.mu.Unlock()
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.removed {
		return
	}
	b.removed = true
	if b.circuit.state != Closed {
		b.circuit.state = Closed
		b.log.Info("a Redis server that did not answer was removed from the cluster",
			"after", roundedText(b.endOutage(b.set.now())))
	}
	delete(b.set.breakers, b)
	b.set.past[b.store] += b.degraded
	b.set.recoveries.Add(1)
}

// outage reports whether the breaker is not closed at an instant, for how long, and the total time until then for which
// it was not.
func (b *Breaker) outage(now time.Time) (isDegraded bool, lasting, total time.Duration) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.circuit.state == Closed {
		return false, 0, b.degraded
	}
	lasting = now.Sub(b.since)
	return true, lasting, b.degraded + lasting
}

// Breakers is the set of breakers of all servers of all central stores. It is safe for concurrent use; make it with
// [NewBreakers].
type Breakers struct {
	log    *slog.Logger
	now    func() time.Time
	jitter func() float64 // in [0, 1), by which pauses vary: between probes, and before charging
	stalls stalls

	// recoveries counts servers that answered again, or were removed.
	recoveries atomic.Uint64

	mu       sync.Mutex
	breakers map[*Breaker]struct{}
	past     map[string]time.Duration // by store: the total of servers that were removed
}

// NewBreakers returns an empty set, whose breakers log each of their changes. now is the clock of the breakers and of
// the stores that use them: time.Now, or a virtual one.
func NewBreakers(log *slog.Logger, now func() time.Time) *Breakers {
	return &Breakers{
		log:      log,
		now:      now,
		jitter:   rand.Float64,
		breakers: map[*Breaker]struct{}{},
		past:     map[string]time.Duration{},
	}
}

// Vary sets the source of the numbers from 0 to 1 by which pauses vary, for simulations that repeat. Call it before
// New. It must be safe for concurrent use if the breakers are used concurrently.
func (r *Breakers) Vary(jitter func() float64) { r.jitter = jitter }

// Run measures when this process cannot run, until ctx ends, so that no server counts as slow because of it. The end of
// ctx is not an error.
func (r *Breakers) Run(ctx context.Context) error {
	r.stalls.measure(ctx)
	return nil
}

// New returns the breaker of one server of a store, whose calls have a timeout. A call that takes more than 4/5 of it
// counts as failed, so a timeout always does. The breaker is listed until its Close.
func (r *Breakers) New(store, server string, timeout time.Duration) *Breaker {
	b := &Breaker{
		store: store, set: r, log: r.log.With("store", store, "server", server),
		circuit: circuit{slow: timeout * 4 / 5}, since: r.now(),
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.breakers[b] = struct{}{}
	return b
}

// Degraded reports whether any breaker of the store is not closed, for how long the first of them has not been, and the
// total time that its servers have been unavailable: two servers for one second count as two.
func (r *Breakers) Degraded(store string) (now bool, lasting, total time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	total = r.past[store]
	at := r.now()
	for b := range r.breakers {
		if b.store == store {
			isDegraded, present, lasted := b.outage(at)
			now, lasting, total = now || isDegraded, max(lasting, present), total+lasted
		}
	}
	return now, lasting, total
}
