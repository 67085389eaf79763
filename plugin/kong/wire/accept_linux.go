package wire

import (
	"errors"
	"fmt"
	"net"
	"os"
	"sync/atomic"
	"syscall"
	"time"
)

// quietListener accepts connections without Go's scheduler, as socket reads and writes them. Go's Accept would wake the
// scheduler's monitor thread for each connection, and Kong makes one for each request that is denied.
type quietListener struct {
	*net.UnixListener
	file   *os.File // the same socket: Go lets no program wait for a net.Listener by other means than Accept
	raw    syscall.RawConn
	closed atomic.Bool

	attempt func(fd uintptr) (done bool)
	fd      uintptr // what attempt has accepted
	err     error
}

// newQuietListener returns a listener that accepts the connections of listener. It is listener itself if that is no
// unix socket.
func newQuietListener(listener net.Listener) (net.Listener, error) {
	unix, ok := listener.(*net.UnixListener)
	if !ok {
		return listener, nil
	}
	// A raw accept on a socket that blocks would hold the thread. Handing a socket over leaves it so.
	nonblock := func(fd uintptr) error { return syscall.SetNonblock(int(fd), true) }
	if err := control(unix, nonblock); err != nil && !errors.Is(err, net.ErrClosed) {
		return nil, err
	}
	file, err := unix.File()
	if errors.Is(err, net.ErrClosed) {
		return listener, nil // Accept reports it
	}
	if err != nil {
		return nil, err
	}
	raw, err := file.SyscallConn()
	if err != nil {
		return nil, errors.Join(err, file.Close())
	}
	l := &quietListener{UnixListener: unix, file: file, raw: raw}
	l.attempt = l.accept
	return l, nil
}

// control calls a function with the descriptor of an open socket. It returns its error, or that of a closed socket.
func control(socket syscall.Conn, call func(fd uintptr) error) error {
	raw, err := socket.SyscallConn()
	if err != nil {
		return err
	}
	var failed error
	if err := raw.Control(func(fd uintptr) { failed = call(fd) }); err != nil {
		return err
	}
	return failed
}

// checkOpen ends an Accept that waits if the listener was closed from outside. The other file of the socket is still
// open then.
func (l *quietListener) checkOpen() {
	if err := control(l, func(uintptr) error { return nil }); errors.Is(err, net.ErrClosed) {
		_ = l.Close() // it has no other error than the listener's
	}
}

// Accept waits for a connection. One goroutine may call it at a time.
func (l *quietListener) Accept() (net.Conn, error) {
	err := l.raw.Read(l.attempt)
	switch {
	case err == nil: // also if Close was called meanwhile: what was accepted must be closed
		err = l.err
	case l.closed.Load():
		err = net.ErrClosed
	}
	if err != nil {
		return nil, err
	}
	return quietConn{os.NewFile(l.fd, "connection"), l}, nil
}

// accept accepts without waiting. It returns false if there is no connection yet.
func (l *quietListener) accept(fd uintptr) (done bool) {
	accepted, err := acceptNow(fd)
	switch err {
	case 0:
		l.fd, l.err = accepted, nil
	case syscall.EAGAIN:
		return false
	default:
		l.err = os.NewSyscallError("accept", err)
	}
	return true
}

// SetDeadline ends an Accept that waits.
func (l *quietListener) SetDeadline(t time.Time) error { return l.file.SetDeadline(t) }

// Close ends an Accept that waits.
func (l *quietListener) Close() error {
	if l.closed.Swap(true) {
		return net.ErrClosed
	}
	return errors.Join(l.file.Close(), l.UnixListener.Close())
}

// quietConn is a connection that a quietListener has accepted.
type quietConn struct {
	*os.File
	listener net.Listener
}

// LocalAddr implements net.Conn.
func (c quietConn) LocalAddr() net.Addr { return c.listener.Addr() }

// RemoteAddr implements net.Conn. Clients have no name.
func (c quietConn) RemoteAddr() net.Addr { return &net.UnixAddr{Net: "unix"} }

// CloseWrite ends the direction to the client.
func (c quietConn) CloseWrite() error {
	return control(c, func(fd uintptr) error { return syscall.Shutdown(int(fd), syscall.SHUT_WR) })
}

// stopListening denies new connections and ends an Accept that waits. Connections that wait in the kernel stay there
// for acceptQueued. An inherited socket goes on to take connections. stopListening reports false if the listener is
// closed, or is no socket.
func stopListening(listener net.Listener, inherited bool) bool {
	socket, ok := listener.(interface {
		syscall.Conn
		SetDeadline(time.Time) error
	})
	if !ok {
		return false
	}
	err := control(socket, func(fd uintptr) error {
		if inherited {
			return nil
		}
		return syscall.Shutdown(int(fd), syscall.SHUT_RD)
	})
	return err == nil && socket.SetDeadline(time.Now()) == nil
}

// acceptQueued passes the connections of a stopped listener that wait in the kernel to serve. If the socket is shut
// down, no new ones come, so it ends, however slow the machine is.
func acceptQueued(listener net.Listener, serve func(net.Conn)) error {
	raw, err := listener.(syscall.Conn).SyscallConn()
	if err != nil {
		return fmt.Errorf("accept queued connections: %w", err)
	}
	for {
		var accepted uintptr
		var failed syscall.Errno
		if err := raw.Control(func(fd uintptr) { accepted, failed = acceptNow(fd) }); err != nil {
			return fmt.Errorf("accept queued connections: %w", err)
		}
		switch failed {
		case 0:
			serve(quietConn{os.NewFile(accepted, "connection"), listener})
		case syscall.ECONNABORTED:
		case syscall.EAGAIN, syscall.EINVAL: // the queue is empty
			return nil
		default:
			return fmt.Errorf("accept queued connections: %w", os.NewSyscallError("accept", failed))
		}
	}
}
