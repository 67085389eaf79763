package kongplugin

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"runtime"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// Options are what a Server needs. Name and Build must be set.
type Options struct {
	Name   string        // the plugin's name in Kong
	Info   []byte        // the encoded PluginInfo message, for Kongs that ask for it; see [PluginInfo]
	Budget time.Duration // how long an event may wait for Kong; its buckets have a budget of their own. 0: one second
	Drain  time.Duration // how long running events may take to finish at the end; 0: five seconds
	Build  Build         // makes the path of a config; one call at a time
	Log    *slog.Logger  // nil: nothing is logged
}

// Counters are the server's own numbers, all since its start.
type Counters struct {
	Events           atomic.Uint64 // HandleEvent calls for known instances
	Questions        atomic.Uint64 // PDK questions asked
	Writes           atomic.Uint64 // writes to the socket
	Panics           atomic.Uint64 // events, compilations of configs and other calls that panicked
	Undecided        atomic.Uint64 // events without a decision (answer too long, budget exceeded): on_internal_error answered
	UnknownInstances atomic.Uint64 // events of instances that are not known here, and questions for their status
	ConfigFaults     atomic.Uint64 // StartInstance calls with a faulty config
}

// Server serves Kong's plugin-server protocol. Make it with New.
type Server struct {
	name   string
	info   []byte
	budget time.Duration
	drain  time.Duration
	log    *slog.Logger
	began  time.Time // what elapsed counts from

	instances *instances
	counters  Counters
	draining  atomic.Bool

	mu       sync.Mutex
	conns    map[*conn]struct{}
	accepted uint64              // connections
	panics   map[string]struct{} // those logged already
	errors   map[string]struct{} // of events without a decision, likewise
}

// New makes a server. It starts nothing: see Serve.
func New(o Options) *Server {
	s := &Server{
		name:   o.Name,
		info:   o.Info,
		budget: o.Budget,
		drain:  o.Drain,
		log:    o.Log,
		began:  time.Now(),
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
	s.instances = newInstances(o.Build, s.log, &s.counters, s.elapsed)
	return s
}

// Counters are the server's numbers.
func (s *Server) Counters() *Counters { return &s.counters }

// Instances is how many instances Kong has started and not closed.
func (s *Server) Instances() int { return s.instances.count() }

// Connections returns how many connections are open, and how many there have been.
func (s *Server) Connections() (open int, accepted uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.conns), s.accepted
}

// errListenerClosed is the end of a server that nobody has told to end.
var errListenerClosed = errors.New("the listener was closed from outside")

// Serve accepts connections until ctx ends, then closes listener, answers the calls that have arrived and lets running
// events finish (for at most the drain time), and closes all connections. It owns every goroutine it starts: none is
// left when it returns. The error is nil after ctx ended. A server serves once.
func (s *Server) Serve(ctx context.Context, listener net.Listener) error {
	var owned sync.WaitGroup
	stop := make(chan struct{})
	var watchdog sync.WaitGroup // it outlives the connections: events that exceed their budget end while we drain, too
	watchdog.Go(func() { s.watch(stop) })
	defer func() { close(stop); watchdog.Wait() }()

	events, cut := context.WithCancel(context.WithoutCancel(ctx)) // they may go on for a while when ctx ends
	defer cut()
	accepting := make(chan struct{})
	owned.Go(func() {
		defer close(accepting)
		s.accept(ctx, listener, func(c *conn) { owned.Go(func() { s.serve(events, c) }) })
	})
	var err error
	select {
	case <-ctx.Done():
	case <-accepting:
		if ctx.Err() == nil {
			err = errListenerClosed
		}
	}
	s.draining.Store(true)
	if stopListening(listener) {
		<-accepting // those who have connected are served: a reset would be the full close that hangUp avoids
	}
	err = errors.Join(err, closeListener(listener))
	<-accepting
	s.finish(&owned, cut)
	return err
}

// finish lets running events finish. Those that take longer than the drain time are cut off.
func (s *Server) finish(owned *sync.WaitGroup, cut context.CancelFunc) {
	done := make(chan struct{})
	go func() { owned.Wait(); close(done) }()
	s.interruptIdle()
	timer := time.NewTimer(s.drain)
	defer timer.Stop()
	select {
	case <-done:
	case <-timer.C:
		s.log.Warn("events were still running at the end of the drain time; their connections are closed", "drain", s.drain)
		s.closeAll()
		cut()
		<-done
	}
}

// stopListening denies new connections and leaves those that wait in the kernel to be accepted, for which acceptLast is
// plenty. It reports whether the system can do that: Linux can for unix sockets.
func stopListening(listener net.Listener) bool {
	unix, ok := listener.(interface {
		syscall.Conn
		SetDeadline(time.Time) error
	})
	if !ok || runtime.GOOS != "linux" {
		return false
	}
	raw, err := unix.SyscallConn()
	if err != nil {
		return false // closed
	}
	var stopped error
	err = raw.Control(func(fd uintptr) { stopped = syscall.Shutdown(int(fd), syscall.SHUT_RD) })
	return err == nil && stopped == nil && unix.SetDeadline(time.Now().Add(acceptLast)) == nil
}

func closeListener(listener net.Listener) error {
	if err := listener.Close(); err != nil && !errors.Is(err, net.ErrClosed) {
		return fmt.Errorf("close listener: %w", err)
	}
	return nil
}

// accept has each connection served until the listener is closed or ctx ends.
func (s *Server) accept(ctx context.Context, listener net.Listener, serve func(*conn)) {
	for pause := time.Duration(0); ; {
		netConn, err := listener.Accept()
		switch {
		case errors.Is(err, net.ErrClosed), err != nil && s.draining.Load():
			return
		case err != nil:
			// Usually too many open files: it passes when connections close.
			pause = min(max(2*pause, 5*time.Millisecond), time.Second)
			s.log.Error("cannot accept a connection; trying again", "error", err, "pause", pause)
			select {
			case <-ctx.Done():
				return
			case <-time.After(pause):
			}
			continue
		}
		pause = 0
		c := newConn(s, netConn)
		s.mu.Lock()
		s.conns[c] = struct{}{}
		s.accepted++
		s.mu.Unlock()
		serve(c)
	}
}

// serve serves one connection, and closes it. A panic that no event has caught ends the connection alone: others are in
// the middle of theirs, and a process that dies answers all of them with a 500.
func (s *Server) serve(ctx context.Context, c *conn) {
	ctx, cancel := context.WithCancel(ctx) // of its own: those who wait for one context wait for its lock, too
	defer cancel()
	defer func() {
		if cause := recover(); cause != nil {
			s.panicked("a call panicked; its connection is closed", cause, debug.Stack())
		}
		s.mu.Lock()
		delete(s.conns, c)
		s.mu.Unlock()
		s.closeConn(c)
	}()
	c.serve(ctx)
}

// elapsed is the server's clock, in nanoseconds. It never steps: the time of day that is set must not interrupt events,
// or leave them without a budget.
func (s *Server) elapsed() int64 { return int64(time.Since(s.began)) }

// watch interrupts what exceeds its time: events, and frames that do not arrive in whole. One ticker for all connections
// costs an event one store.
func (s *Server) watch(stop <-chan struct{}) {
	ticker := time.NewTicker(max(s.budget/8, time.Millisecond))
	defer ticker.Stop()
	for {
		select {
		case <-stop:
			return
		case <-ticker.C:
			now := s.elapsed()
			s.each(func(c *conn) {
				if c.overdue(now) {
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

func (s *Server) closeAll() { s.each(s.closeConn) }

// closeConn closes a connection, which may be closed already.
func (s *Server) closeConn(c *conn) {
	if err := c.net.Close(); err != nil && !isGone(err) {
		s.log.Warn("cannot close a connection", "error", err)
	}
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
func (s *Server) panicked(what string, cause any, stack []byte) {
	s.counters.Panics.Add(1)
	text := fmt.Sprint(cause)
	if s.first(s.panics, text) {
		s.log.Error(what+" (logged once for this cause)", "panic", text, "stack", string(stack))
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
