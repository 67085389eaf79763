package supervisor

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
)

// variable is set in the environment of workers.
const variable = "TENANT_RATE_LIMITING_WORKER"

// IsWorker reports whether a supervisor has started this process.
func IsWorker(getenv func(string) string) bool { return getenv(variable) != "" }

// EndOfInstances is the message in a queue after which a worker accepts connections.
var EndOfInstances = []byte{0}

// Socket is what a worker inherits for one socket.
type Socket struct {
	net.Listener
	In, Out *net.UnixConn // the ends of the queue; only the current worker reads In
}

// Join returns a number of sockets of the supervisor.
func Join(n int) ([]Socket, error) {
	const first = 3 // after the standard files
	sockets := make([]Socket, n)
	for i := range sockets {
		s, err, queue := &sockets[i], error(nil), first+n+2*i
		if s.Listener, err = inherit(first+i, net.FileListener); err != nil {
			return nil, err
		}
		for fd, end := range map[int]**net.UnixConn{queue: &s.In, queue + 1: &s.Out} {
			conn, err := inherit(fd, net.FileConn)
			if err != nil {
				return nil, err
			}
			*end = conn.(*net.UnixConn)
		}
	}
	return sockets, nil
}

func inherit[T any](fd int, open func(*os.File) (T, error)) (T, error) {
	file := os.NewFile(uintptr(fd), "inherited")
	opened, err := open(file)
	if err = errors.Join(err, file.Close()); err != nil {
		err = fmt.Errorf("file %d of a worker: %w", fd, err)
	}
	return opened, err
}

// Report sends a report to the supervisor.
func Report(report byte) error {
	if _, err := os.Stdout.Write([]byte{report}); err != nil {
		return fmt.Errorf("report to the supervisor: %w", err)
	}
	return nil
}

// Follow calls setState for each new state. It returns nil when the worker is to hand over, and an error if the
// supervisor has ended.
func Follow(setState func(byte)) error {
	for order := make([]byte, 1); ; {
		if _, err := io.ReadFull(os.Stdin, order); err != nil {
			return fmt.Errorf("orders of the supervisor: %w", err)
		}
		if order[0] == handOver {
			return nil
		}
		setState(order[0])
	}
}
