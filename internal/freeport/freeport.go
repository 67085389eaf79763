// Package freeport finds loopback ports for the servers that tests start. A port that the kernel picks (port 0) is soon
// picked again, for another server or for the local end of a connection. These ports are below the range of the kernel,
// and none is returned twice, neither in this process nor in others that run at the same time: a server under test may
// close its port and listen on it again. Callers listen on them.
package freeport

import (
	"errors"
	"math/rand/v2"
	"net"
	"strconv"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

// The range of the ports that Find returns. On Linux the kernel picks ports from 32768 on.
const (
	first = 10_000
	count = 22_000
)

// ports are the ports of this process. Processes start at different ports.
var ports = struct {
	sync.Mutex
	next   uint32
	claims []net.PacketConn // UDP sockets of the same numbers, open until the process ends
}{next: rand.Uint32N(count)}

// Find returns a free port that no running process has got from it.
func Find() (int, error) {
	ports.Lock()
	defer ports.Unlock()
	for range count {
		port := first + int(ports.next%count)
		ports.next++
		listener, err := net.Listen("tcp", address(port))
		if err != nil {
			continue
		}
		claim, err := net.ListenPacket("udp", address(port))
		if err != nil { // another process has the port
			_ = listener.Close()
			continue
		}
		ports.claims = append(ports.claims, claim)
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
