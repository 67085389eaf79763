package kongplugin

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"runtime/debug"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/admit"
)

// conn is one connection of a Kong worker. Kong sends one call at a time on it and waits for its return.
type conn struct {
	server *Server
	net    *socket
	in     frames
	out    []byte // frames not yet sent
	known  *names

	// owed counts the answers that Kong has still to send. They come before the next call, and are read past when
	// nobody waits for them any more. due are those that it will owe for what is in out.
	owed, due int
	lost      error // the connection broke

	instance *instance // of the event that is being handled
	began    int64     // when that event began, by the server's clock
	exchange admit.Exchange
	asked    []*question

	// busyUntil is when the running event's time budget ends, by the server's clock; 0 between events. wholeUntil is when
	// a frame that has begun to arrive between events must be whole; 0 while none has. The server's watchdog reads both.
	busyUntil, wholeUntil atomic.Int64
}

func newConn(s *Server, c net.Conn) *conn {
	sock := newSocket(c, &s.counters.Writes)
	return &conn{server: s, net: sock, in: newFrames(sock), known: newNames()}
}

// overdue tells whether something takes longer than it may.
func (c *conn) overdue(now int64) bool {
	busy, whole := c.busyUntil.Load(), c.wholeUntil.Load()
	return (busy != 0 && now > busy) || (whole != 0 && now > whole)
}

// serve answers calls until Kong closes the connection, the server drains, or a frame cannot be parsed.
func (c *conn) serve(ctx context.Context) {
	for c.next(ctx) {
		if c.server.draining.Load() {
			break
		}
	}
	if c.server.draining.Load() {
		c.settle()
		c.hangUp()
	}
}

// hangUp ends the connection the way that Kong survives. A full close breaks the call that Kong is about to write on an
// idle connection; if that call starts an instance, Kong never drops its claim on it, and every request for that config
// waits 10 s in vain. So hangUp closes its own direction only, and reads until Kong has noticed.
func (c *conn) hangUp() {
	half, ok := c.net.Conn.(interface{ CloseWrite() error })
	if !ok || half.CloseWrite() != nil { // a closed connection needs no more
		return
	}
	until := time.Now().Add(min(lingerTime, c.server.drain/2))
	for c.net.SetDeadline(until) == nil {
		_, err := io.Copy(io.Discard, c.net.Conn)
		if !isTimeout(err) || !time.Now().Before(until) { // else an interruption of the drain came late
			return
		}
	}
}

// settle says what is still unsaid and reads the answers that are still owed: closed before, the connection would break
// under Kong's hands while it sends them, and it would replay an event that is done.
func (c *conn) settle() {
	if err := c.net.flush(); err != nil || c.owed == 0 {
		return
	}
	for c.owed > 0 {
		_, err := c.in.read(maxFrame)
		switch {
		case isTimeout(err): // it was interrupted, to see that the server drains; what waits for ever is closed in the end
			if err := c.net.SetDeadline(time.Time{}); err != nil {
				return
			}
		case err == nil || errors.Is(err, errAnswerTooLong):
			c.owed--
		default:
			return
		}
	}
}

// next answers one call, and tells whether the connection is good for another.
func (c *conn) next(ctx context.Context) bool {
	frame, err := c.nextFrame()
	if err != nil {
		c.broken("connection closed: cannot read a call", err)
		return false
	}
	message, err := decodeCall(frame)
	if err != nil {
		c.broken("connection closed: cannot parse a call", err)
		return false
	}
	if !c.handle(ctx, &message) {
		return false
	}
	if err := c.flush(); err != nil {
		c.broken("connection closed: cannot write", err)
		return false
	}
	return true
}

// broken logs what has broken the connection, unless Kong has closed it, or we drain.
func (c *conn) broken(what string, err error) {
	if !isGone(err) && !isTimeout(err) {
		c.server.log.Error(what, "error", err)
	}
}

// nextFrame reads the next frame, past the answers that are still owed. A timeout means that the server drains.
func (c *conn) nextFrame() ([]byte, error) {
	for {
		frame, err := c.arrived()
		switch {
		case isTimeout(err):
			if err := c.resume(err); err != nil {
				return nil, err
			}
		case c.owed > 0 && (err == nil || errors.Is(err, errAnswerTooLong)):
			c.owed--
		default:
			return frame, err
		}
	}
}

// arrived reads one frame. It waits for its beginning as long as it takes, and for the rest no longer than frameTime.
func (c *conn) arrived() ([]byte, error) {
	if err := c.in.begin(maxFrame); err != nil {
		return nil, err
	}
	if c.in.missing() && c.wholeUntil.Load() == 0 {
		c.wholeUntil.Store(c.server.elapsed() + int64(frameTime))
	}
	frame, err := c.in.rest()
	if !isTimeout(err) {
		c.wholeUntil.Store(0)
	}
	return frame, err
}

// resume lets reading go on after an interruption, because the watchdog came a moment too late: the event it meant was
// over, and nothing was lost. The error tells why it must not go on.
func (c *conn) resume(interruption error) error {
	if whole := c.wholeUntil.Load(); whole != 0 && c.server.elapsed() > whole {
		return errHalfFrame
	}
	if err := c.net.SetDeadline(time.Time{}); err != nil {
		return err
	}
	// Asked last: a server that drains interrupts once, which may just have been undone.
	if c.server.draining.Load() && !c.arriving() {
		return interruption
	}
	return nil
}

// arriving reports whether a call, or a part of one, has arrived and waits to be read.
func (c *conn) arriving() bool {
	return c.in.begun || c.in.buffered() > 0 || c.net.readable()
}

// handle leaves the answer to a call in c.out; false closes the connection instead.
func (c *conn) handle(ctx context.Context, m *call) bool {
	s := c.server
	switch m.command {
	case cmdHandleEvent:
		return c.event(ctx, m)
	case cmdStartInstance:
		in := s.instances.start(m.config)
		c.out = appendStatus(c.out, m.sequence, s.name, in.id, in.startedAt)
	case cmdCloseInstance:
		s.instances.close(m.instance)
		c.out = appendStatus(c.out, m.sequence, s.name, m.instance, 0)
	case cmdGetInstanceStatus:
		in := c.find(m.instance)
		if in == nil {
			return false
		}
		c.out = appendStatus(c.out, m.sequence, s.name, in.id, in.startedAt)
	case cmdGetPluginNames:
		c.out = appendReturnOf(c.out, m.sequence, 31, appendString(nil, 1, s.name))
	case cmdGetPluginInfo:
		c.out = appendReturnOf(c.out, m.sequence, 32, s.info)
	default:
		s.log.Warn("a call of an unknown kind was answered with an empty reply", "sequence", m.sequence)
		c.out = appendReturn(c.out, m.sequence)
	}
	return true
}

// find is the instance with an id. nil: there is none, and the connection must be closed, so that Kong starts it anew.
func (c *conn) find(id int32) *instance {
	in := c.server.instances.get(id)
	if in == nil {
		c.server.counters.UnknownInstances.Add(1)
		c.server.log.Info("connection closed: Kong named an unknown instance and will start it anew", "instance", id)
	}
	return in
}

// event handles one event of an instance.
func (c *conn) event(ctx context.Context, m *call) bool {
	in := c.find(m.instance)
	if in == nil {
		return false
	}
	c.server.counters.Events.Add(1)
	if string(m.event) != "access" {
		c.out = appendReturn(appendFrame(c.out, nil), m.sequence)
		return true
	}
	sequence := m.sequence // m's slices are gone with the next frame
	c.instance = in
	c.began = c.server.elapsed()
	c.busyUntil.Store(c.began + int64(c.server.budget))
	c.server.instances.use(in, c.began)
	c.admit(ctx)
	c.busyUntil.Store(0)
	if in.traces && c.lost == nil {
		c.out = appendTrace(c.out, &c.exchange.Decision)
		c.due++
		c.server.counters.Questions.Add(1)
	}
	switch r := &c.exchange.Response; {
	case c.lost != nil:
		c.broken("connection closed during an event, which Kong will replay", c.lost)
		return false
	case r.Denied:
		c.out = appendExit(c.out, r)
		return c.exit(sequence)
	case len(r.Headers) > 0:
		c.out = appendSetHeaders(c.out, r.Headers)
		c.due++
	}
	c.out = appendReturn(appendFrame(c.out, nil), sequence)
	return true
}

// admit decides the event. Whatever goes wrong, the exchange holds an answer afterwards.
func (c *conn) admit(ctx context.Context) {
	if c.instance.path == nil {
		c.report(admit.Unconfigured(ctx, c, c.instance.refuse, &c.exchange))
		return
	}
	defer func() {
		if cause := recover(); cause != nil {
			c.server.panicked("an event panicked; on_internal_error answers", cause, debug.Stack())
			c.out, c.due = c.out[:0], 0
			c.instance.path.Fault(&c.exchange)
		}
	}()
	c.report(c.instance.path.Admit(ctx, c, &c.exchange))
}

// report counts and logs what went wrong in an event, and lets the connection be read again after an interruption.
func (c *conn) report(err error) {
	if err == nil || c.lost != nil {
		return
	}
	c.server.undecided(err)
	if isTimeout(err) {
		if err := c.net.SetDeadline(time.Time{}); err != nil {
			c.lost = err
		}
	}
}

// exit ends the request in Kong, which abandons the connection without an answer. A peer that answers all the same
// gets the usual end.
func (c *conn) exit(sequence int64) bool {
	err := c.flush()
	if err == nil {
		_, err = c.nextFrame()
	}
	if err != nil {
		c.broken("connection closed after a denial", err)
		return false
	}
	c.out = appendReturn(appendFrame(c.out, nil), sequence)
	return true
}

// answer reads the answer to the eldest question that is still owed one.
func (c *conn) answer() ([]byte, error) {
	frame, err := c.in.read(maxAnswer)
	for isTimeout(err) && c.server.elapsed() < c.busyUntil.Load() {
		// It was meant for the event before, or for a connection that was idle a moment ago.
		if err = c.net.SetDeadline(time.Time{}); err == nil {
			frame, err = c.in.read(maxAnswer)
		}
	}
	switch {
	case err == nil || errors.Is(err, errAnswerTooLong):
		c.owed--
	case isTimeout(err):
		err = fmt.Errorf("no answer from Kong within the time budget of %v: %w", c.server.budget, err)
	default:
		c.lost = err
	}
	return frame, err
}

// flush sends what has been appended to c.out, in one write: before the next read waits, or at once if that would find
// what it wants without waiting.
func (c *conn) flush() error {
	if len(c.out) == 0 {
		return nil
	}
	c.net.send(c.out, c.due > 0)
	c.owed, c.due = c.owed+c.due, 0
	c.out = c.out[:0]
	if cap(c.out) > keepSize {
		c.out = nil
	}
	if c.in.buffered() == 0 {
		return nil
	}
	err := c.net.flush()
	if err != nil {
		c.lost = err // a part may have been written, so there is no going on
	}
	return err
}

// isTimeout tells whether the watchdog interrupted.
func isTimeout(err error) bool { return errors.Is(err, os.ErrDeadlineExceeded) }

// isGone tells whether Kong has closed the connection, which it does after an exit, when it stops, and when a
// connection idles for long.
func isGone(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, net.ErrClosed) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE)
}
