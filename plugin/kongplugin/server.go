package kongplugin

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"time"
)

// Options are what a Server needs. Name and Build must be set.
type Options struct {
	Name   string        // the plugin's name in Kong
	Info   []byte        // the encoded PluginInfo message, for Kongs that ask for it
	Budget time.Duration // how long an event may take; 0: one second
	Drain  time.Duration // how long running events may take to finish at the end; 0: five seconds
	Build  Build         // makes the path of a config
	Log    *slog.Logger
}

// Counters are the server's own numbers, all since its start.
type Counters struct {
	Events           atomic.Uint64 // HandleEvent calls for known instances
	Questions        atomic.Uint64 // PDK questions asked
	Writes           atomic.Uint64 // writes to the socket
	Panics           atomic.Uint64 // events that panicked
	Undecided        atomic.Uint64 // events without a decision (answer too long, budget exceeded): on_internal_error answered
	UnknownInstances atomic.Uint64 // events for instances that are not known here
	ConfigFaults     atomic.Uint64 // StartInstance calls with a faulty config
}

// Server serves Kong's plugin-server protocol. Make it with New.
type Server struct {
	name   string
	info   []byte
	budget time.Duration
	drain  time.Duration
	log    *slog.Logger

	instances *instances
	counters  Counters
	draining  atomic.Bool

	mu     sync.Mutex
	conns  map[*conn]struct{}
	panics map[string]struct{} // those logged already
	errors map[string]struct{}
}

// New makes a server. It starts nothing: see Serve.
func New(o Options) *Server {
	s := &Server{
		name:   o.Name,
		info:   o.Info,
		budget: o.Budget,
		drain:  o.Drain,
		log:    o.Log,
		conns:  map[*conn]struct{}{},
		panics: map[string]struct{}{},
		errors: map[string]struct{}{},
	}
	if s.budget <= 0 {
		s.budget = time.Second
	}
	if s.drain <= 0 {
		s.drain = 5 * time.Second
	}
	if s.log == nil {
		s.log = slog.New(slog.DiscardHandler)
	}
	s.instances = newInstances(o.Build, s.log, &s.counters)
	return s
}

// Counters are the server's numbers.
func (s *Server) Counters() *Counters { return &s.counters }

// Instances is how many instances Kong has started and not closed.
func (s *Server) Instances() int { return s.instances.count() }

// Serve accepts connections until ctx ends, then lets running events finish (for at most the drain time) and closes
// all connections. It owns every goroutine it starts: none is left when it returns. The error is nil after ctx ended.
func (s *Server) Serve(ctx context.Context, listener net.Listener) error {
	var owned sync.WaitGroup
	stop := make(chan struct{})
	var watchdog sync.WaitGroup // it outlives the connections: events that exceed their budget end while we drain, too
	watchdog.Go(func() { s.watch(stop) })
	defer func() { close(stop); watchdog.Wait() }()

	accepted := make(chan error, 1)
	owned.Go(func() { accepted <- s.accept(listener, &owned) })
	var err error
	select {
	case <-ctx.Done():
		s.draining.Store(true)
		err = errors.Join(closeListener(listener), <-accepted)
	case err = <-accepted:
		s.draining.Store(true)
	}

	done := make(chan struct{})
	go func() { owned.Wait(); close(done) }()
	s.interruptIdle()
	timer := time.NewTimer(s.drain)
	defer timer.Stop()
	select {
	case <-done:
	case <-timer.C:
		s.log.Warn("events were still running when the drain time was over; their connections are closed", "drain", s.drain)
		s.closeAll()
		<-done
	}
	return err
}

func closeListener(listener net.Listener) error {
	if err := listener.Close(); err != nil && !errors.Is(err, net.ErrClosed) {
		return fmt.Errorf("close listener: %w", err)
	}
	return nil
}

// accept serves each connection in a goroutine of its own until the listener is closed.
func (s *Server) accept(listener net.Listener, owned *sync.WaitGroup) error {
	for pause := time.Duration(0); ; {
		netConn, err := listener.Accept()
		switch {
		case errors.Is(err, net.ErrClosed):
			return nil
		case err != nil:
			// Usually too many open files: it passes when connections close.
			pause = min(max(2*pause, 5*time.Millisecond), time.Second)
			s.log.Error("cannot accept a connection; trying again", "error", err, "pause", pause)
			time.Sleep(pause)
			continue
		}
		pause = 0
		c := newConn(s, netConn)
		s.mu.Lock()
		s.conns[c] = struct{}{}
		s.mu.Unlock()
		owned.Go(func() {
			// Connections live as long as the process: their events are bounded by the watchdog, not by a context.
			c.serve(context.Background())
			s.mu.Lock()
			delete(s.conns, c)
			s.mu.Unlock()
			if err := netConn.Close(); err != nil && !isGone(err) {
				s.log.Warn("cannot close a connection", "error", err)
			}
		})
	}
}

// watch interrupts events that exceed the time budget. One ticker for all connections costs an event one store.
func (s *Server) watch(stop <-chan struct{}) {
	ticker := time.NewTicker(max(s.budget/8, time.Millisecond))
	defer ticker.Stop()
	for {
		select {
		case <-stop:
			return
		case now := <-ticker.C:
			s.each(func(c *conn) {
				if until := c.busyUntil.Load(); until != 0 && now.UnixNano() > until {
					s.interrupt(c)
				}
			})
		}
	}
}

// interruptIdle wakes the connections that wait for a call, so that they see that the server drains.
func (s *Server) interruptIdle() {
	s.each(func(c *conn) {
		if c.busyUntil.Load() == 0 {
			s.interrupt(c)
		}
	})
}

func (s *Server) closeAll() {
	s.each(func(c *conn) {
		if err := c.net.Close(); err != nil && !isGone(err) {
			s.log.Warn("cannot close a connection", "error", err)
		}
	})
}

// interrupt makes a connection's pending read or write end with a timeout.
func (s *Server) interrupt(c *conn) {
	if err := c.net.SetDeadline(time.Unix(1, 0)); err != nil && !isGone(err) {
		s.log.Warn("cannot interrupt a connection", "error", err)
	}
}

func (s *Server) each(do func(*conn)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for c := range s.conns {
		do(c)
	}
}

// panicked counts a panic, and logs its stack the first time that it is seen.
func (s *Server) panicked(cause any, stack []byte) {
	s.counters.Panics.Add(1)
	text := fmt.Sprint(cause)
	if s.first(s.panics, text) {
		s.log.Error("an event panicked; on_internal_error answers (logged once for this cause)", "panic", text, "stack", string(stack))
	}
}

// undecided counts an event without a decision, and logs its cause the first time that it is seen.
func (s *Server) undecided(err error) {
	s.counters.Undecided.Add(1)
	if s.first(s.errors, err.Error()) {
		s.log.Error("an event could not be decided; on_internal_error answers (logged once for this cause)", "error", err)
	}
}

// first tells whether text is seen for the first time. The set is bounded: beyond that nothing is new.
func (s *Server) first(seen map[string]struct{}, text string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, ok := seen[text]; ok || len(seen) >= 100 {
		return false
	}
	seen[text] = struct{}{}
	return true
}
