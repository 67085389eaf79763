package wire

import (
	"context"
	"net"
	"runtime/debug"
	"sync"
)

// maxIdle bounds the workers that wait for a connection, and so the memory that they keep.
const maxIdle = 64

// worker is a goroutine that serves connections, one after another. Kong ends a connection with each request that is
// denied and opens another one for the next request. A worker has buffers, a stack and the plugin's Local ready for it.
type worker struct {
	conn *conn
	wake chan struct{} // the conn was opened; closed: no connection will come
}

// dispatch has a connection served by the worker that became idle last, or by a new one, which running counts.
func (s *Server) dispatch(ctx context.Context, running *sync.WaitGroup, c net.Conn) {
	s.mu.Lock()
	var w *worker
	if last := len(s.idle) - 1; last >= 0 {
		w, s.idle = s.idle[last], s.idle[:last]
	} else {
		w = &worker{conn: newConn(s), wake: make(chan struct{}, 1)}
		running.Go(func() { s.work(ctx, w) })
	}
	w.conn.open(c)
	s.conns[w.conn] = struct{}{}
	s.accepted++
	s.mu.Unlock()
	w.wake <- struct{}{}
}

// work serves the connections that are dispatched to w.
func (s *Server) work(ctx context.Context, w *worker) {
	ctx, cancel := context.WithCancel(ctx) // connections that share a context contend for its lock
	defer cancel()
	for range w.wake {
		if !s.serveConn(ctx, w.conn) || !s.setIdle(w) {
			return
		}
	}
}

// serveConn serves one connection and closes it. A panic outside of events ends this connection only: if the process
// ended, Kong would answer the events of all other connections with a 500. serveConn reports whether the conn may be
// used again, which it must not after a panic.
func (s *Server) serveConn(ctx context.Context, c *conn) (reusable bool) {
	defer func() {
		if cause := recover(); cause != nil {
			s.logPanic("a call panicked; its connection is closed", cause, debug.Stack())
		}
		s.mu.Lock()
		delete(s.conns, c) // the watchdog does not see it from here on
		s.mu.Unlock()
		if (c.net.ended || c.net.replaced) && !c.net.closed.Load() {
			s.late.add(c.net.Conn)
			return
		}
		s.closeConn(c)
	}()
	c.serve(ctx)
	return true
}

// setIdle makes w idle. It reports whether a connection may come.
func (s *Server) setIdle(w *worker) bool {
	w.conn.reset()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.complete || len(s.idle) == maxIdle {
		return false
	}
	s.idle = append(s.idle, w)
	return true
}

// endWorkers ends the idle workers, and each of the others after its connection. No connection may come after it.
func (s *Server) endWorkers() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, w := range s.idle {
		close(w.wake)
	}
	s.idle, s.complete = nil, true
}

// lateCloser closes the files of connections that have ended, many at once. Each close goes through Go's scheduler, and
// the first one wakes its monitor thread, which takes the processor from the plugin several times before it sleeps.
type lateCloser struct {
	mu     sync.Mutex
	conns  [64]net.Conn
	n      int
	report func(error) // errors of Close
}

// add closes a connection, at the latest with the next flush.
func (l *lateCloser) add(c net.Conn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.conns[l.n] = c
	if l.n++; l.n == len(l.conns) {
		l.closeAll()
	}
}

// flush closes all connections that were added, and returns their number.
func (l *lateCloser) flush() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := l.n
	l.closeAll()
	return n
}

func (l *lateCloser) closeAll() {
	for _, c := range l.conns[:l.n] {
		if err := c.Close(); err != nil {
			l.report(err)
		}
	}
	clear(l.conns[:l.n])
	l.n = 0
}
