package outage

import (
	"cmp"
	"context"
	"log/slog"
	"slices"
	"sync"
	"time"
)

// Breakers are the breakers of all servers of all shared stores. They are safe for concurrent use; make them with
// [NewBreakers].
type Breakers struct {
	log    *slog.Logger
	stalls stalls

	mu       sync.Mutex
	of       map[*Breaker]struct{}
	past     map[string]time.Duration // by store: how long servers that are gone were away
	watchers map[string][]*func()
}

// ServerStatus is what a breaker tells about its server.
type ServerStatus struct {
	Store, Server string
	State         State
	Since         time.Time     // since when it is closed, or is not
	Degraded      time.Duration // how long it was not closed, in total
}

// NewBreakers makes an empty set, whose breakers log each change of theirs.
func NewBreakers(log *slog.Logger) *Breakers {
	return &Breakers{
		log: log, of: map[*Breaker]struct{}{}, past: map[string]time.Duration{}, watchers: map[string][]*func(){},
	}
}

// Run measures when this process cannot run, until ctx ends, so that no server counts as slow for it. It is not an
// error that ctx ends.
func (r *Breakers) Run(ctx context.Context) error {
	r.stalls.measure(ctx)
	return nil
}

// New makes the breaker of one server of the store of that name, whose calls take no longer than timeout (0: 50 ms). One
// that takes more than 4/5 of it counts as failed. The breaker is listed until its Close.
func (r *Breakers) New(store, server string, timeout time.Duration) *Breaker {
	b := newBreaker(r, store, server, timeout)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.of[b] = struct{}{}
	return b
}

// Servers lists all servers, by store and name.
func (r *Breakers) Servers() []ServerStatus {
	list := r.statuses()
	slices.SortFunc(list, func(a, b ServerStatus) int {
		return cmp.Or(cmp.Compare(a.Store, b.Store), cmp.Compare(a.Server, b.Server))
	})
	return list
}

func (r *Breakers) statuses() []ServerStatus {
	r.mu.Lock()
	defer r.mu.Unlock()
	list := make([]ServerStatus, 0, len(r.of))
	now := time.Now()
	for b := range r.of {
		list = append(list, b.status(now))
	}
	return list
}

// Degraded tells whether any breaker of the store is not closed, and how long its servers have been away in total: two
// servers away for one second count as two.
func (r *Breakers) Degraded(store string) (now bool, total time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	total = r.past[store]
	at := time.Now()
	for b := range r.of {
		if b.store == store {
			s := b.status(at)
			now = now || s.State != Closed
			total += s.Degraded
		}
	}
	return now, total
}

// watch calls f each time that a server of the store is back, or is not part of it any more, until the function that it
// answers is called. f must not block.
func (r *Breakers) watch(store string, f func()) (end func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.watchers[store] = append(r.watchers[store], &f)
	return func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.watchers[store] = slices.DeleteFunc(r.watchers[store], func(other *func()) bool { return other == &f })
	}
}

func (r *Breakers) changed(store string) {
	for _, f := range r.watching(store) {
		(*f)()
	}
}

func (r *Breakers) watching(store string) []*func() {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.watchers[store])
}

func (r *Breakers) forget(b *Breaker, degraded time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.of, b)
	r.past[b.store] += degraded
}
