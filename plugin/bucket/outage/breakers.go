package outage

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"
)

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

// Vary sets the source of the numbers from 0 to 1 by which pauses vary, for simulations that repeat. Call it before New. It must be safe for concurrent use if the breakers are used concurrently.
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
