//go:build !linux

package kongwire

import "net"

// newQuietListener returns listener: other systems have no accept that makes a connection which does not block.
func newQuietListener(listener net.Listener) (net.Listener, error) { return listener, nil }
