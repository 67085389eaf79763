package outage

import (
	"context"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// beat is how often a node tells that it lives, and lifetime how long it is believed.
	beat, lifetime = time.Second, 5 * time.Second
	// patience is how many beats pass between two tries to charge while a server is away: what is owed to the
	// others need not wait for it.
	patience = 15
	// farewell bounds how long the end of Run waits for the shared store.
	farewell = time.Second
)

// namespace is a set of nodes that share limits out.
type namespace struct {
	name  string
	live  atomic.Int64 // nodes, as last known; 0: not known yet
	views int          // guarded by the store, as what follows

	// From the first of these instants to the other, this node was counted without a gap: no two of the beats between
	// were further apart than fresh. Both are from before a beat was sent.
	since, last time.Time
	heard       [lifetime/beat + 1]heard // by the beats of the last seconds
}

// heard is the most nodes that the beats of one second have found.
type heard struct {
	at   time.Time // of the last of them
	live int
}

const (
	// fresh is how old a beat may be that vouches for leases.
	fresh = 2 * time.Second
	// known is how long a node must have been counted until it may lease. Then every other one counts it: it has beaten
	// since, or does not vouch for leases any more, and what it took before has ended.
	known = 5 * time.Second
)

// counted notes a beat that was sent at an instant, and how many nodes it found.
func (s *Store) counted(ns *namespace, live int, sent time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if sent.Sub(ns.last) > fresh {
		ns.since = sent
	}
	ns.last = sent
	ns.live.Store(int64(live))
	h := &ns.heard[sent.Sub(ns.since)/beat%time.Duration(len(ns.heard))]
	if sent.Sub(h.at) >= beat {
		h.live = 0
	}
	h.at, h.live = sent, max(h.live, live)
}

// most is the most nodes that were found within the last lifetime. One that is no longer heard of counts for so long, also
// where it is the shared store that has forgotten the nodes: they tell it again one by one, and meanwhile each would find
// fewer than there are, and take a larger part of what all may lease.
func (ns *namespace) most(now time.Time) (most int) {
	for _, h := range ns.heard {
		if now.Sub(h.at) <= lifetime {
			most = max(most, h.live)
		}
	}
	return most
}

// Counted answers among how many nodes of a namespace leases can be shared out: those that live or did five seconds ago,
// if this one was counted just now and has been for long enough that all others know; else 0.
func (s *Store) Counted(namespace string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	ns := s.namespaces[namespace]
	if ns == nil || time.Since(ns.last) >= fresh || ns.last.Sub(ns.since) < known {
		return 0
	}
	return ns.most(time.Now())
}

// join counts a view into its namespace.
func (s *Store) join(name string) *namespace {
	s.mu.Lock()
	defer s.mu.Unlock()
	ns := s.namespaces[name]
	if ns == nil {
		ns = &namespace{name: name}
		s.namespaces[name] = ns
		signal(s.arrived)
	}
	ns.views++
	return ns
}

// part counts a view out. The next beat takes leave of a namespace without views.
func (s *Store) part(ns *namespace) {
	s.mu.Lock()
	defer s.mu.Unlock()
	ns.views--
}

// signal wakes the receiver of a channel with room for one signal, unless it will be woken anyway.
func signal(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// Run tells the other nodes that this one lives, probes servers that are away and charges what is due when they are
// back, until ctx ends. It is called once, and it is not an error that ctx ends. What cannot be charged then is written
// off and logged.
func (s *Store) Run(ctx context.Context) error {
	for _, name := range s.names {
		end := s.breakers.watch(name, func() {
			s.recovered.Store(true)
			signal(s.chargeNow)
		})
		defer end()
	}
	var loops sync.WaitGroup
	loops.Go(func() { s.beatUntil(ctx) })
	loops.Go(func() { s.reconcileUntil(ctx) })
	loops.Wait()
	s.abandon()
	last, cancel := context.WithTimeout(context.WithoutCancel(ctx), farewell)
	defer cancel()
	for _, ns := range s.namespacesNow() {
		s.leave(last, ns)
	}
	return nil
}

func (s *Store) beatUntil(ctx context.Context) {
	ticker := time.NewTicker(beat)
	defer ticker.Stop()
	for n := 0; ; n++ {
		s.beatOnce(ctx)
		if s.ledger.owes() && (n%patience == 0 || !s.Degraded()) {
			signal(s.chargeNow)
		}
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		case <-s.arrived:
		}
	}
}

func (s *Store) beatOnce(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, beat)
	defer cancel()
	if s.Degraded() {
		s.shared.Probe(ctx)
	}
	for _, ns := range s.namespacesNow() {
		sent := time.Now()
		if s.forgotten(ns) {
			s.leave(ctx, ns)
		} else if s.away != nil && s.away() {
			continue // the others forget this node; what it has leased ends meanwhile
		} else if live, err := s.shared.Beat(ctx, ns.name, s.node, lifetime); err != nil {
			s.log.Debug("counting the live nodes failed", "namespace", ns.name, "error", err)
		} else {
			s.counted(ns, live, sent)
		}
	}
}

func (s *Store) namespacesNow() []*namespace {
	s.mu.Lock()
	defer s.mu.Unlock()
	list := make([]*namespace, 0, len(s.namespaces))
	for _, ns := range s.namespaces {
		list = append(list, ns)
	}
	return list
}

// forgotten drops a namespace that has no views any more.
func (s *Store) forgotten(ns *namespace) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if ns.views > 0 {
		return false
	}
	delete(s.namespaces, ns.name)
	return true
}

func (s *Store) leave(ctx context.Context, ns *namespace) {
	if err := s.shared.Leave(ctx, ns.name, s.node); err != nil {
		s.log.Debug("leaving the list of live nodes failed: other nodes count this one until its entry expires", "namespace", ns.name, "error", err)
	}
}
