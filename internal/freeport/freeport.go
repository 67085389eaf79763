// Package freeport finds ports of the loopback for the servers that tests start. A port that the kernel picks (port 0) is
// soon picked again: for another server that is about to start, or for the near end of a connection. These lie below those
// that the kernel picks, and no process is told one twice. Who listens, and for how long, is the business of the callers.
package freeport

import (
	"errors"
	"math/rand/v2"
	"net"
	"strconv"
	"sync/atomic"
	"testing"
)

// The ports that are told; on Linux the kernel picks from 32768 on.
const (
	first = 10_000
	count = 22_000
)

// told is how many were looked at by this process, from where it began. Processes begin apart.
var told, start = new(atomic.Uint32), rand.Uint32N(count)

// Find is a port that nobody listens on, and that this process was not told before.
func Find() (int, error) {
	for range count {
		port := first + int((start+told.Add(1))%count)
		listener, err := net.Listen("tcp", address(port))
		if err != nil {
			continue
		}
		return port, listener.Close()
	}
	return 0, errors.New("find a free port: somebody listens on all of them")
}

// Port is what Find finds, for a test.
func Port(t testing.TB) int {
	t.Helper()
	port, err := Find()
	if err != nil {
		t.Fatal(err)
	}
	return port
}

// Address is a host and port of the loopback, for a test.
func Address(t testing.TB) string {
	t.Helper()
	return address(Port(t))
}

func address(port int) string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(port)) }
