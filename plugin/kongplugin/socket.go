package kongplugin

import (
	"errors"
	"io"
	"net"
	"os"
	"sync/atomic"
	"syscall"
	"time"
)

// socket is a connection of which each write is followed by the wait for what it brings about. Here the two are one
// step, because calls into the kernel are most of what an event costs: a read that finds nothing before each wait is
// saved, and so is what Go does around calls that could block (these cannot). Waiting is left to Go's poller.
type socket struct {
	net.Conn
	raw    syscall.RawConn // nil: Conn is read and written in the usual way
	writes *atomic.Uint64

	unsent  []byte // what the next Read writes first
	waits   bool   // for an answer to unsent: there is no need to look whether it is there already
	attempt func(fd uintptr) (done bool)
	into    []byte // of the current Read
	n       int
	err     error
}

var errNotRead = errors.New("write: the peer does not read")

func newSocket(c net.Conn, writes *atomic.Uint64) *socket {
	s := &socket{Conn: c, writes: writes}
	if unix, ok := c.(*net.UnixConn); ok {
		if raw, err := unix.SyscallConn(); err == nil { // else it is closed, which the first Read tells
			s.raw, s.attempt = raw, s.exchange
		}
	}
	return s
}

// send has out written by the next Read. Until then out must not be changed. answered tells whether the peer, once it
// has read out, will send something for it: only then may Read wait without having looked.
func (s *socket) send(out []byte, answered bool) { s.unsent, s.waits = out, answered }

// flush writes what was sent and not written yet. It survives one interruption: the watchdog may mean the event that
// has just been decided. One that is interrupted again waits for a peer that does not read, and fails for good: a part
// may have been written, and what came after it would be taken for the rest.
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

// Read writes what was sent, also when it is interrupted before, and waits for what comes.
func (s *socket) Read(p []byte) (int, error) {
	if s.raw == nil {
		if err := s.flush(); err != nil {
			return 0, err
		}
		return s.Conn.Read(p)
	}
	for {
		s.into, s.n, s.err = p, 0, nil
		err := s.raw.Read(s.attempt)
		if err == nil {
			err = s.err
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

// exchange is one attempt to get on without waiting; false: wait until something comes, and call it again.
//
// The poller begins to look out for what is new before the first attempt. What answers a write comes later, and so is
// not missed. What had come before without having been read would be, so where no answer is due it is looked for.
func (s *socket) exchange(fd uintptr) (done bool) {
	if len(s.unsent) > 0 {
		if !s.writeUnsent(fd) {
			return true
		}
		if s.waits {
			return false
		}
	}
	n, err := readNow(fd, s.into)
	switch {
	case err == syscall.EAGAIN:
		return false
	case err != 0:
		s.err = os.NewSyscallError("read", err)
	case n == 0:
		s.err = io.EOF
	}
	s.n = n
	return true
}

// writeUnsent writes all that is unsent; false: there was an error, or the peer does not read and flush has to wait for it.
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

// readable reports whether a read would find bytes now. It waits for nothing.
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
