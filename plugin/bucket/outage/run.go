package outage

import (
	"context"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// beat is the interval of heartbeats, and lifetime the time for which one counts.
	beat, lifetime = time.Second, 5 * time.Second
	// chargeEvery is the number of beats between two tries to charge while a server is unavailable: debts of other servers
	// need not wait for it.
	chargeEvery = 15
	// leaveTimeout bounds the time that the end of Run waits for the central store.
	leaveTimeout = time.Second
)

// members counts the nodes of a namespace, which share limits.
type members struct {
	name  string
	live  atomic.Int64 // the last number of live nodes; 0: not known yet
	views int          // guarded by Guard.mu, like the fields below

	// From since to last this node was counted without a gap: no two beats between them were further apart than
	// maxBeatAge. Both instants are from before a beat was sent.
	since, last  time.Time
	recentCounts [lifetime/beat + 1]liveCount // of the last seconds
}

// liveCount is the largest number of nodes that the beats of one second found.
type liveCount struct {
	at   time.Time // of the last of them
	live int
}

const (
	// maxBeatAge is the age up to which a beat allows leases.
	maxBeatAge = 2 * time.Second
	// minCounted is the time for which a node must have been counted before it may lease. By then every other node counts
	// it: it has beaten since, or may not lease any more, and what it took before has ended.
	minCounted = 5 * time.Second
)

// recordBeat records a beat that was sent at an instant, and the number of nodes it found.
func (s *Guard) recordBeat(ns *members, live int, sent time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if sent.Sub(ns.last) > maxBeatAge {
		ns.since = sent
	}
	ns.last = sent
	ns.live.Store(int64(live))
	h := &ns.recentCounts[sent.Sub(ns.since)/beat%time.Duration(len(ns.recentCounts))]
	if sent.Sub(h.at) >= beat {
		h.live = 0
	}
	h.at, h.live = sent, max(h.live, live)
}

// maxLive returns the largest number of nodes that was found within the last lifetime. A node counts for lifetime after
// its last beat, even if the central store has lost its list. Otherwise the nodes that report first would find too few
// nodes and take too large shares.
func (ns *members) maxLive(now time.Time) (most int) {
	for _, h := range ns.recentCounts {
		if now.Sub(h.at) <= lifetime {
			most = max(most, h.live)
		}
	}
	return most
}

// LeaseNodes returns the number of nodes of a namespace that share leases: those that are alive, or were five seconds
// ago. It is 0 unless the last beat is younger than maxBeatAge and the count has lasted minCounted.
func (s *Guard) LeaseNodes(namespace string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	ns := s.namespaces[namespace]
	if ns == nil || s.clock().Sub(ns.last) >= maxBeatAge || ns.last.Sub(ns.since) < minCounted {
		return 0
	}
	return ns.maxLive(s.clock())
}

// openNamespace counts a store into its namespace.
func (s *Guard) openNamespace(name string) *members {
	s.mu.Lock()
	defer s.mu.Unlock()
	ns := s.namespaces[name]
	if ns == nil {
		ns = &members{name: name}
		s.namespaces[name] = ns
		s.unreported.Store(true)
		signal(s.beatNow)
	}
	ns.views++
	return ns
}

// signal wakes the receiver of a channel with room for one signal, unless a signal is pending already.
func signal(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// Run reports to other nodes that this one is alive, probes servers that are unavailable and charges debts when they
// are back, until ctx ends, which is not an error. It is called once. What cannot be charged then is written off and
// logged.
//
// It runs the loops of [Guard.Loops] in real time, side by side, so that a slow charge delays no heartbeat.
func (s *Guard) Run(ctx context.Context) error {
	var running sync.WaitGroup
	for _, loop := range s.Loops() {
		running.Go(func() { s.repeat(ctx, loop) })
	}
	running.Wait()
	s.writeOff()
	last, cancel := context.WithTimeout(context.WithoutCancel(ctx), leaveTimeout)
	defer cancel()
	for _, ns := range s.listNamespaces() {
		s.leave(last, ns)
	}
	return nil
}

// Loop is a part of what Run does.
type Loop struct {
	Wake <-chan struct{} // receives when a step is due earlier than the last one returned
	// Step does what is due at now by the clock of the breakers, and returns the instant of the next step; zero: none is
	// due before a wake. It is not called concurrently with itself.
	Step func(ctx context.Context, now time.Time) (next time.Time)
}

// Loops returns what Run does all the time, for a program that runs it by a clock of its own in place of Run: each loop
// by itself.
func (s *Guard) Loops() [2]Loop {
	return [2]Loop{{s.beatNow, s.stepBeat}, {s.chargeNow, s.stepCharge}}
}

// repeat runs a loop until ctx ends.
func (s *Guard) repeat(ctx context.Context, loop Loop) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-loop.Wake:
		case <-timer.C:
		}
		if next := loop.Step(ctx, s.clock()); next.IsZero() {
			timer.Stop()
		} else {
			timer.Reset(next.Sub(s.clock()))
		}
	}
}

// stepBeat sends a heartbeat if one is due, or a namespace is new, and returns the instant of the next.
func (s *Guard) stepBeat(ctx context.Context, now time.Time) (next time.Time) {
	if !s.unreported.Swap(false) && now.Before(s.nextBeat) {
		return s.nextBeat
	}
	s.beatOnce(ctx)
	if n := s.breakers.recoveries.Load(); n != s.recoveries {
		s.recoveries = n
		s.recovered.Store(true)
		s.wantCharge()
	}
	if s.debts.hasDebts() && (s.beats%chargeEvery == 0 || !s.Degraded()) {
		s.wantCharge()
	}
	s.beats++
	s.nextBeat = now.Add(beat)
	return s.nextBeat
}

func (s *Guard) beatOnce(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, beat)
	defer cancel()
	if s.Degraded() {
		s.central.Probe(ctx)
	}
	for _, ns := range s.listNamespaces() {
		sent := s.clock()
		if s.dropUnused(ns) {
			s.leave(ctx, ns)
		} else if s.superseded != nil && s.superseded() {
			continue // other nodes drop this one; its leases end before that
		} else if live, err := s.central.Beat(ctx, ns.name, s.node, lifetime); err != nil {
			s.log.Debug("counting the live nodes failed", "namespace", ns.name, "error", err)
		} else {
			s.recordBeat(ns, live, sent)
		}
	}
}

func (s *Guard) listNamespaces() []*members {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Collect(maps.Values(s.namespaces))
}

// dropUnused drops a namespace without stores. It reports whether it had none.
func (s *Guard) dropUnused(ns *members) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if ns.views > 0 {
		return false
	}
	delete(s.namespaces, ns.name)
	return true
}

func (s *Guard) leave(ctx context.Context, ns *members) {
	if err := s.central.Leave(ctx, ns.name, s.node); err != nil {
		s.log.Debug("leaving the list of live nodes failed: other nodes count this one until its entry expires",
			"namespace", ns.name, "error", err)
	}
}
