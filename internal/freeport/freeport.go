// Package freeport finds loopback ports for the servers that tests start. A port that the kernel picks (port 0) is soon
// picked again, for another server or for the local end of a connection. These ports are below the range of the kernel,
// and no process gets one twice. Callers listen on them.
package freeport

import (
	"errors"
	"math/rand/v2"
	"net"
	"strconv"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
)

// The range of the ports that Find returns. On Linux the kernel picks ports from 32768 on.
const (
	first = 10_000
	count = 22_000
)

// tried counts the ports that this process has tried. Processes start at different ports.
var tried, start = new(atomic.Uint32), rand.Uint32N(count)

// Find returns a free port that it has not returned in this process before.
func Find() (int, error) {
	for range count {
		port := first + int((start+tried.Add(1))%count)
		listener, err := net.Listen("tcp", address(port))
		if err != nil {
			continue
		}
		return port, listener.Close()
	}
	return 0, errors.New("find a free port: all are in use")
}

// Port returns a port as Find does, or fails the test.
func Port(t testing.TB) int {
	t.Helper()
	port, err := Find()
	require.NoError(t, err)
	return port
}

// Address returns a free host:port of the loopback, or fails the test.
func Address(t testing.TB) string {
	t.Helper()
	return address(Port(t))
}

func address(port int) string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(port)) }
