package wire

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync/atomic"
	"syscall"
	"time"
)

const (
	// frameTime bounds the time from the length of a frame to its last byte, between events. Kong writes a frame at
	// once, and gives up after 60 s itself.
	frameTime = 60 * time.Second
	// lingerTime is how long a connection that the server ends stays readable, so that a busy worker of Kong can notice.
	lingerTime = 300 * time.Millisecond
)

var errHalfFrame = fmt.Errorf("a frame began and did not end within %v", frameTime)

// conn is one connection of a Kong worker. Kong sends one call at a time and waits for its return. A conn can be opened
// for another connection when one has ended.
type conn struct {
	server *Server
	net    *socket
	in     frameReader
	out    []byte // frames not yet sent
	event  Event

	// unanswered counts the answers that Kong has still to send for what was sent. They come before the next call, and
	// those that no event waits for are skipped. queued counts the answers that Kong will owe for what is in out.
	unanswered, queued int
	lost               error // why the connection is unusable
	between            bool  // no call is under way, so another process may serve the next one

	// busyUntil is when the running event's time budget ends, on the server's clock; 0 between events. wholeUntil is
	// when a frame that has begun to arrive between events must be whole; 0 if none has. The server's watchdog reads
	// both.
	busyUntil, wholeUntil atomic.Int64
}

// newConn returns a conn that is not open.
func newConn(s *Server) *conn {
	sock := newSocket(&s.counters.writes, s.spare)
	c := &conn{server: s, net: sock, in: newFrameReader(sock)}
	c.event.conn = c
	return c
}

// open makes c, which must be new or reset, the conn of a connection.
func (c *conn) open(netConn net.Conn) { c.net.open(netConn) }

// reset removes the connection and all of its state. It keeps memory for the next one: small buffers and the plugin's
// Local.
func (c *conn) reset() {
	c.net.reset()
	c.in.reset()
	out := c.out[:0]
	if cap(out) > bufferSize {
		out = nil
	}
	*c = conn{server: c.server, net: c.net, in: c.in, out: out, event: Event{Local: c.event.Local, conn: c}}
}

// isOverdue reports whether an event or a frame takes longer than it may.
func (c *conn) isOverdue(now time.Duration) bool {
	busy, whole := c.busyUntil.Load(), c.wholeUntil.Load()
	return (busy != 0 && int64(now) > busy) || (whole != 0 && int64(now) > whole)
}

// serve answers calls until Kong closes the connection, the server drains, or a frame cannot be parsed.
func (c *conn) serve(ctx context.Context) {
	for c.serveCall(ctx) && !c.server.draining.Load() {
	}
	if !c.server.draining.Load() {
		return
	}
	for c.drain(); c.between && c.in.buffered() > 0; c.drain() { // the next call has arrived with the answers
		c.serveCall(ctx)
	}
	if !c.between || c.unanswered > 0 || !c.server.handOver(c.net) {
		c.hangUp()
	}
}

// hangUp ends an idle connection so that Kong does not lose a call. A full close breaks the call that Kong is about to
// write. If that call starts an instance, Kong keeps waiting for it, and every request of that config waits for 10 s.
// So hangUp closes the server's direction only, and reads until Kong has noticed.
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

// drain sends unsent frames and reads the answers that are still to come. If the connection closed while Kong sends
// them, Kong would replay an event that has ended.
func (c *conn) drain() {
	if err := c.net.flush(); err != nil || c.unanswered == 0 {
		return
	}
	for c.unanswered > 0 {
		_, err := c.in.readFrame(maxFrame)
		switch {
		case isTimeout(err): // the drain interrupts; finish closes what waits for longer than the drain time
			if err := c.net.SetDeadline(time.Time{}); err != nil {
				return
			}
		case err == nil || errors.Is(err, errAnswerTooLong):
			c.unanswered--
		default:
			return
		}
	}
}

// serveCall answers one call, and reports whether the connection is usable for another.
func (c *conn) serveCall(ctx context.Context) bool {
	c.between = false
	frame, err := c.nextFrame()
	if err != nil {
		c.between = isTimeout(err) && !c.in.begun
		c.logClose("connection closed: cannot read a call", err)
		return false
	}
	message, err := decodeCall(frame)
	if err != nil {
		c.logClose("connection closed: cannot parse a call", err)
		return false
	}
	if !c.handleCall(ctx, &message) {
		return false
	}
	if err := c.flush(); err != nil {
		c.logClose("connection closed: cannot write", err)
		return false
	}
	c.between = true
	return true
}

// logClose logs the error that broke the connection, unless Kong has closed it or the server drains.
func (c *conn) logClose(message string, err error) {
	if !isGone(err) && !isTimeout(err) {
		c.server.log.Error(message, "error", err)
	}
}

// nextFrame reads the next frame and skips the answers that are still to come. A timeout means that the server drains.
func (c *conn) nextFrame() ([]byte, error) {
	for {
		frame, err := c.readWhole()
		switch {
		case isTimeout(err):
			if err := c.resume(err); err != nil {
				return nil, err
			}
		case c.unanswered > 0 && (err == nil || errors.Is(err, errAnswerTooLong)):
			c.unanswered--
		default:
			return frame, err
		}
	}
}

// readWhole reads one frame. It waits for the beginning as long as it takes, and for the other bytes frameTime at most.
func (c *conn) readWhole() ([]byte, error) {
	if err := c.in.readLength(maxFrame); err != nil {
		return nil, err
	}
	if c.in.isIncomplete() && c.wholeUntil.Load() == 0 {
		c.wholeUntil.Store(int64(c.server.Elapsed() + frameTime))
	}
	frame, err := c.in.readPayload()
	if !isTimeout(err) {
		c.wholeUntil.Store(0)
	}
	return frame, err
}

// resume undoes an interruption that came after the event it was meant for. It returns an error if reading must not go
// on.
func (c *conn) resume(interruption error) error {
	if whole := c.wholeUntil.Load(); whole != 0 && int64(c.server.Elapsed()) > whole {
		return errHalfFrame
	}
	if err := c.net.SetDeadline(time.Time{}); err != nil {
		return err
	}
	// This check comes last: a server that drains interrupts once, which SetDeadline may just have undone.
	if c.server.draining.Load() && !c.hasInput() {
		return interruption
	}
	return nil
}

// hasInput reports whether a call, or a part of one, has arrived and was not read.
func (c *conn) hasInput() bool {
	return c.in.begun || c.in.buffered() > 0 || c.net.readable()
}

// readAnswers reads the answers to the last n questions and skips those to earlier ones.
func (c *conn) readAnswers(n int, read func(i int, answer []byte) error) (failed error) {
	for i := n - c.unanswered; i < n; i++ {
		answer, err := c.readAnswer()
		if err == nil && i >= 0 {
			err = read(i, answer)
		}
		switch {
		case c.lost != nil:
			return c.lost
		case isTimeout(err):
			return err // the other answers are skipped before the next call
		case err != nil && failed == nil && i >= 0:
			failed = err
		}
	}
	return failed
}

// readAnswer reads the answer to the earliest question that has none.
func (c *conn) readAnswer() ([]byte, error) {
	frame, err := c.in.readFrame(maxAnswer)
	for isTimeout(err) && int64(c.server.Elapsed()) < c.busyUntil.Load() {
		// The interruption was meant for the event before, or for a connection that was idle.
		if err = c.net.SetDeadline(time.Time{}); err == nil {
			frame, err = c.in.readFrame(maxAnswer)
		}
	}
	switch {
	case err == nil || errors.Is(err, errAnswerTooLong):
		c.unanswered--
	case isTimeout(err):
		err = fmt.Errorf("no answer from Kong within the time budget of %v: %w", c.server.budget, err)
	default:
		c.lost = err
	}
	return frame, err
}

// flush hands c.out to the socket, which writes it before the next read waits. It writes at once if that read would
// not wait.
func (c *conn) flush() error {
	if len(c.out) == 0 {
		return nil
	}
	c.net.send(c.out, c.queued > 0)
	c.unanswered, c.queued = c.unanswered+c.queued, 0
	c.out = c.out[:0]
	if cap(c.out) > keepSize {
		c.out = nil
	}
	if c.in.buffered() == 0 {
		return nil
	}
	err := c.net.flush()
	if err != nil {
		c.lost = err // a part may have been written, so nothing may follow
	}
	return err
}

// isTimeout reports whether the watchdog or the drain has interrupted.
func isTimeout(err error) bool { return errors.Is(err, os.ErrDeadlineExceeded) }

// isGone reports whether Kong has closed the connection: after an exit, when it stops, or after a long idle time.
func isGone(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, net.ErrClosed) || errors.Is(err, os.ErrClosed) ||
		errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE)
}
