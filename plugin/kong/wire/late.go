package wire

import (
	"net"
	"sync"
)

// lateCloser closes the files of connections that have ended, many at once. Each close goes through Go's scheduler, and
// the first one wakes its monitor thread, which takes the processor from the plugin several times before it sleeps.
type lateCloser struct {
	mu     sync.Mutex
	conns  [64]net.Conn
	n      int
	report func(error) // errors of Close
}

// add closes a connection, at the latest with the next flush.
func (l *lateCloser) add(c net.Conn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.conns[l.n] = c
	if l.n++; l.n == len(l.conns) {
		l.closeAll()
	}
}

// flush closes all connections that were added, and returns their number.
func (l *lateCloser) flush() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := l.n
	l.closeAll()
	return n
}

func (l *lateCloser) closeAll() {
	for _, c := range l.conns[:l.n] {
		if err := c.Close(); err != nil {
			l.report(err)
		}
	}
	clear(l.conns[:l.n])
	l.n = 0
}
