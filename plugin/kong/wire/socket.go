package wire

import (
	"errors"
	"io"
	"net"
	"os"
	"sync/atomic"
	"syscall"
	"time"
)

// socket is a connection that writes and waits for the answer in one step. Calls into the kernel are most of the cost
// of an event. This saves the read that finds nothing before each wait, and the work of Go's scheduler around calls
// that could block. Go's poller waits.
type socket struct {
	net.Conn
	raw    syscall.RawConn // nil: not a unix socket, so Conn is read and written in the usual way
	writes *atomic.Uint64
	spare  *os.File // takes the place of a connection that sendLast closes; nil: Close closes it

	unsent   []byte // the next Read writes it first
	answered bool   // unsent will be answered: Read waits before it looks for input
	last     bool   // nothing is read after unsent
	attempt  func(fd uintptr) (done bool)
	into     []byte // the buffer of the current Read
	n        int
	err      error

	ended  bool        // the peer has closed
	closed atomic.Bool // Close was called

	replaced bool // sendLast has closed the connection; Close closes the copy of spare in its place
}

var errNotRead = errors.New("write: the peer does not read")

// newSocket returns a socket that is not open.
func newSocket(writes *atomic.Uint64, spare *os.File) *socket {
	s := &socket{writes: writes, spare: spare}
	s.attempt = s.writeAndRead
	return s
}

// open makes s, which must be new or reset, the socket of a connection.
func (s *socket) open(c net.Conn) {
	s.Conn = c
	if system, ok := c.(syscall.Conn); ok {
		if raw, err := system.SyscallConn(); err == nil { // else it is closed, and the first Read fails
			s.raw = raw
		}
	}
}

// reset removes the connection and all of its state.
func (s *socket) reset() { *s = socket{writes: s.writes, spare: s.spare, attempt: s.attempt} }

// Close closes the connection. A Read that waits returns net.ErrClosed.
func (s *socket) Close() error {
	s.closed.Store(true)
	return s.Conn.Close()
}

// SetDeadline ends a Read or a Write that waits, if t has passed.
func (s *socket) SetDeadline(t time.Time) error {
	err := s.Conn.SetDeadline(t)
	if err != nil && s.closed.Load() {
		return net.ErrClosed
	}
	return err
}

// send leaves out to the next Read, which writes it. Until then out must not be changed. answered says that the peer
// will answer: only then may Read wait before it has looked for input.
func (s *socket) send(out []byte, answered bool) { s.unsent, s.answered = out, answered }

// flush writes what is unsent. It survives one interruption, which may be meant for the event that has just ended. A
// second interruption means that the peer does not read. The error is final: a part may have been written, and the peer
// would take the next bytes for the missing part.
func (s *socket) flush() error {
	out := s.unsent
	if s.unsent = nil; len(out) == 0 {
		return nil
	}
	s.writes.Add(1)
	n, err := s.Write(out)
	if !isTimeout(err) {
		return err
	}
	if err := s.SetDeadline(time.Time{}); err != nil {
		return err
	}
	if _, err = s.Write(out[n:]); isTimeout(err) {
		return errNotRead
	}
	return err
}

// sendLast writes what is unsent, and closes the connection if that needs no work of Go's scheduler. Close must be
// called in any case.
func (s *socket) sendLast() error {
	s.last = true
	_, err := s.Read(nil)
	return err
}

// Read writes what is unsent, even if it is interrupted, and waits for input.
func (s *socket) Read(p []byte) (int, error) {
	if s.raw == nil {
		if err := s.flush(); err != nil || s.last {
			return 0, err
		}
		return s.Conn.Read(p)
	}
	for {
		s.into, s.n, s.err = p, 0, nil
		err := s.raw.Read(s.attempt)
		switch {
		case err == nil:
			err = s.err
		case s.closed.Load():
			err = net.ErrClosed
		}
		if len(s.unsent) == 0 || (err != nil && !isTimeout(err)) {
			return s.n, err
		}
		if failed := s.flush(); failed != nil {
			err = failed
		}
		if err != nil {
			return 0, err
		}
	}
}

// writeAndRead writes what is unsent and reads, without waiting. It returns false if it must be called again when there
// is input.
//
// The poller reports input that arrives after the first attempt has begun, so it cannot miss the answer to a write. It
// does not report input that had arrived before. If no answer is due, writeAndRead looks for that.
func (s *socket) writeAndRead(fd uintptr) (done bool) {
	if len(s.unsent) > 0 {
		if !s.writeUnsent(fd) {
			return true
		}
		if s.answered {
			return false
		}
	}
	if s.last {
		s.replaced = s.spare != nil && replaceNow(fd, s.spare.Fd())
		return true
	}
	n, err := readNow(fd, s.into)
	switch {
	case err == syscall.EAGAIN:
		return false
	case err != 0:
		s.err = os.NewSyscallError("read", err)
	case n == 0:
		s.ended, s.err = true, io.EOF
	}
	s.n = n
	return true
}

// writeUnsent reports whether it has written all that is unsent. If not, it failed, or flush must wait for the peer.
func (s *socket) writeUnsent(fd uintptr) bool {
	s.writes.Add(1)
	n, err := writeNow(fd, s.unsent)
	if err != 0 && err != syscall.EAGAIN {
		s.unsent, s.err = nil, os.NewSyscallError("write", err)
		return false
	}
	s.unsent = s.unsent[n:]
	return len(s.unsent) == 0
}

// readable reports whether a read would find bytes now.
func (s *socket) readable() bool {
	if s.raw == nil {
		return false
	}
	found := false
	err := s.raw.Control(func(fd uintptr) {
		var one [1]byte
		n, _, err := syscall.Recvfrom(int(fd), one[:], syscall.MSG_PEEK|syscall.MSG_DONTWAIT)
		found = err == nil && n > 0
	})
	return err == nil && found
}
