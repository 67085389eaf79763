package wire

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// The phases of a request whose events a server handles. Kong sends those that the output of its query command names.
const (
	PhaseAccess = "access" // before the request goes to the upstream
	PhaseLog    = "log"    // after the client has its response
)

// Options configures a Server.
type Options struct {
	Name string // the plugin's name in Kong (required)
	// Start makes an instance of a config (required). It cannot fail: the instance of a config with faults must answer
	// events too. Requests wait while it runs. Connections call it at the same time.
	Start func(Config) Instance

	Budget time.Duration // how long an event may wait for Kong's answers; 0: one second
	Drain  time.Duration // how long running events may take to finish at the end; 0: five seconds
	Log    *slog.Logger  // nil: nothing is logged
}

// Counters count what a server has done since its start.
type Counters struct {
	Events           uint64 `metric:"events_total"`            // HandleEvent calls for known instances
	Questions        uint64 `metric:"questions_total"`         // PDK questions sent
	Writes           uint64 `metric:"writes_total"`            // writes to sockets
	Panics           uint64 `metric:"panics_total"`            // events and other calls that panicked
	Failures         uint64 `metric:"undecided_total"`         // events whose Access or Log returned an error
	UnknownInstances uint64 `metric:"unknown_instances_total"` // events for instances not kept here
}

type counters struct {
	events, questions, writes, panics, failures, unknownInstances atomic.Uint64
}

// Server serves Kong's plugin-server protocol. Make it with New.
type Server struct {
	name   string
	start  func(Config) Instance
	budget time.Duration
	drain  time.Duration
	log    *slog.Logger
	epoch  time.Time // the zero of Elapsed

	handover handover

	instances *instances
	counters  counters
	draining  atomic.Bool
	late      lateCloser
	spare     *os.File // /dev/null, see socket.spare

	mu       sync.Mutex
	conns    map[*conn]struct{}
	idle     []*worker           // the last one became idle last
	complete bool                // no connection will come
	accepted uint64              // connections
	panics   map[string]struct{} // texts that were logged
	failures map[string]struct{} // texts that were logged
}

// New makes a server. Serve starts it.
func New(o Options) *Server {
	s := &Server{
		name:      o.Name,
		start:     o.Start,
		budget:    cmp.Or(o.Budget, time.Second),
		drain:     cmp.Or(o.Drain, 5*time.Second),
		log:       cmp.Or(o.Log, slog.New(slog.DiscardHandler)),
		epoch:     time.Now(),
		instances: &instances{byID: map[int32]*started{}, lastID: firstOwnID},
		conns:     map[*conn]struct{}{},
		panics:    map[string]struct{}{},
		failures:  map[string]struct{}{},
		handover:  handover{serving: make(chan struct{})},
	}
	s.late.report = s.logCloseError
	return s
}

// Counters returns the server's counters.
func (s *Server) Counters() Counters {
	c := &s.counters
	return Counters{
		Events: c.events.Load(), Questions: c.questions.Load(), Writes: c.writes.Load(), Panics: c.panics.Load(),
		Failures: c.failures.Load(), UnknownInstances: c.unknownInstances.Load(),
	}
}

// Instances returns how many instances Kong has started and not closed.
func (s *Server) Instances() int {
	s.instances.mu.RLock()
	defer s.instances.mu.RUnlock()
	return len(s.instances.byID)
}

// Connections returns how many connections are open, and how many there have been.
func (s *Server) Connections() (open int, accepted uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.conns), s.accepted
}

// errListenerClosed is the error of Serve when ctx has not ended.
var errListenerClosed = errors.New("the listener was closed from outside")

// Serve accepts connections until ctx ends. Then it closes listener, answers the calls that have arrived, lets running
// events finish for at most the drain time, and closes all connections, or hands them over. No goroutine that it
// started is left when it returns. It returns nil after ctx has ended. A server serves once.
func (s *Server) Serve(ctx context.Context, listener net.Listener) error {
	listener, err := newQuietListener(listener)
	if err != nil {
		return fmt.Errorf("accept connections: %w", err)
	}
	if spare, err := os.Open(os.DevNull); err == nil { // else connections are closed in the usual way
		s.spare = spare
		defer spare.Close()
	}
	var owned sync.WaitGroup
	stop := make(chan struct{})
	var watchdog sync.WaitGroup // it outlives the connections: events exceed their budget during the drain too
	watchdog.Go(func() { s.watch(listener, stop) })
	defer func() { close(stop); watchdog.Wait(); s.late.flush() }()

	events, cut := context.WithCancel(context.WithoutCancel(ctx)) // events go on for the drain time after ctx has ended
	defer cut()
	serve := func(c net.Conn) { s.dispatch(events, &owned, c) }
	s.handover.serve = serve
	close(s.handover.serving)
	accepting := make(chan struct{})
	owned.Go(func() {
		defer close(accepting)
		s.accept(ctx, listener, serve)
	})
	select {
	case <-ctx.Done():
	case <-accepting:
		if ctx.Err() == nil {
			err = errListenerClosed
		}
	}
	err = errors.Join(err, s.stopReading())
	handsOver := s.handover.state != nil
	if !handsOver { // else the next process accepts the connections in the queue
		s.draining.Store(true)
		if stopListening(listener, s.handover.in != nil) { // a reset of them would be the full close that hangUp avoids
			<-accepting
			err = errors.Join(err, acceptQueued(listener, serve))
		}
	}
	if closed := listener.Close(); closed != nil && !errors.Is(closed, net.ErrClosed) {
		err = errors.Join(err, fmt.Errorf("close listener: %w", closed))
	}
	<-accepting
	if handsOver {
		err = errors.Join(err, s.handover.out.SetWriteDeadline(time.Now().Add(s.drain)))
		s.draining.Store(true)
	}
	s.endWorkers()
	s.finish(&owned, cut, handsOver)
	return err
}

// finish waits for running events, hands over, and ends those that take longer than the drain time.
func (s *Server) finish(owned *sync.WaitGroup, cut context.CancelFunc, handsOver bool) {
	done := make(chan struct{})
	go func() { owned.Wait(); close(done) }()
	s.interruptIdle()
	timer := time.NewTimer(s.drain)
	defer timer.Stop()
	if handsOver {
		select {
		case <-done:
		case <-time.After(min(quietTime, s.drain/2)):
		}
		s.sendAll()
	}
	select {
	case <-done:
	case <-timer.C:
		s.log.Warn("events were still running at the end of the drain time; their connections are closed", "drain", s.drain)
		s.each(s.closeConn)
		cut()
		<-done
	}
}

// accept passes each connection to serve, until the listener is closed or ctx ends.
func (s *Server) accept(ctx context.Context, listener net.Listener, serve func(net.Conn)) {
	for pause := time.Duration(0); ; {
		netConn, err := listener.Accept()
		switch {
		case errors.Is(err, net.ErrClosed), err != nil && s.draining.Load():
			return
		case errors.Is(err, syscall.EINVAL) && s.handover.in != nil:
			<-ctx.Done() // the process that has shut the socket down ends it next
			return
		case err != nil && s.late.flush() > 0: // usually too many files were open
			continue
		case err != nil:
			// Usually too many files are open, until connections close.
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
		serve(netConn)
	}
}

// Elapsed returns the time since New, on a clock that never steps: a change of the time of day does not interrupt
// events.
func (s *Server) Elapsed() time.Duration { return time.Since(s.epoch) }

// watch interrupts events and frames that exceed their time, and notices that the listener was closed from outside. One
// ticker for all connections costs an event one atomic store.
func (s *Server) watch(listener net.Listener, stop <-chan struct{}) {
	checked, _ := listener.(interface{ checkOpen() })
	ticker := time.NewTicker(max(s.budget/8, time.Millisecond))
	defer ticker.Stop()
	for {
		select {
		case <-stop:
			return
		case <-ticker.C:
			s.late.flush()
			if checked != nil {
				checked.checkOpen()
			}
			now := s.Elapsed()
			s.each(func(c *conn) {
				if c.isOverdue(now) {
					s.interrupt(c)
				}
			})
		}
	}
}

// interruptIdle wakes the connections that wait for a call, so that they notice the drain.
func (s *Server) interruptIdle() {
	s.each(func(c *conn) {
		if c.busyUntil.Load() == 0 {
			s.interrupt(c)
		}
	})
}

// closeConn closes a connection, which may be closed already.
func (s *Server) closeConn(c *conn) {
	if err := c.net.Close(); err != nil && !isGone(err) {
		s.logCloseError(err)
	}
}

func (s *Server) logCloseError(err error) { s.log.Warn("cannot close a connection", "error", err) }

// interrupt ends a connection's pending read or write with a timeout.
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

// logPanic counts a panic, and logs its stack if its text is new.
func (s *Server) logPanic(message string, cause any, stack []byte) {
	s.counters.panics.Add(1)
	text := fmt.Sprint(cause)
	if s.isNew(s.panics, text) {
		s.log.Error(message+" (logged once for this cause)", "panic", text, "stack", string(stack))
	}
}

// logFailure counts an event that failed, and logs its error if the text is new.
func (s *Server) logFailure(err error) {
	s.counters.failures.Add(1)
	if s.isNew(s.failures, err.Error()) {
		s.log.Error("an event failed (logged once for this cause)", "error", err)
	}
}

// isNew reports whether text is not in logged yet, and adds it. A full set takes no more: then nothing is new.
func (s *Server) isNew(logged map[string]struct{}, text string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, ok := logged[text]; ok || len(logged) >= 100 {
		return false
	}
	logged[text] = struct{}{}
	return true
}
