//go:build !linux

package wire

import "net"

// newQuietListener returns listener: other systems have no accept that makes a connection which does not block.
func newQuietListener(listener net.Listener) (net.Listener, error) { return listener, nil }

// replaceNow returns false: the connection is closed in the usual way.
func replaceNow(_, _ uintptr) bool { return false }

// stopListening returns false: other systems reset the connections that wait in the kernel.
func stopListening(net.Listener, bool) bool { return false }

// acceptQueued accepts nothing.
func acceptQueued(net.Listener, func(net.Conn)) error { return nil }
