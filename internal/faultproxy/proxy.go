// Package faultproxy injects faults of networks and servers between a client and a Redis. A [Proxy] delays replies,
// drops bytes, stops listening, resets connections, breaks a reply off in the middle, or answers a command with an
// error. Any goroutine may change the faults at any time. A new Proxy has none.
//
// It parses RESP, versions 2 and 3, to find the ends of commands and replies and the names of commands. So half a reply
// is exact, and answers of the proxy come in the order of the commands. A command has one reply: messages that no
// command requests (publish and subscribe, MONITOR) do not pass.
//
// Package redistest starts, stops and kills the servers.
package faultproxy

import (
	"context"
	"errors"
	"net"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/freeport"
)

// dialTimeout bounds opening a connection to the target, which is on the same machine. That may be busy.
const dialTimeout = time.Minute

// End selects what happens to a connection after half a reply.
type End uint8

// The ends.
const (
	Hang  End = iota // it stays open, and nothing passes
	Reset            // it is reset (RST)
)

// faults are the faults of a proxy. The zero value has none.
type faults struct {
	delay     time.Duration     // of replies
	partition bool              // drop everything
	cuts      int               // replies still to break off; negative: all
	cutEnd    End               // what happens to the connection then
	answers   map[string]string // command, in lower case → reply
}

// Proxy forwards connections to a target and injects faults. Any goroutine may call any method at any time.
type Proxy struct {
	target string // host:port
	port   int    // it never changes

	mu       sync.Mutex
	faults   faults
	listener net.Listener // nil: the proxy does not listen
	conns    map[*conn]struct{}
	downs    int // the number of calls of Down
	closed   bool
	running  sync.WaitGroup
}

// New starts a proxy on a free port of the loopback that forwards to host:port, until the end of the test.
func New(t testing.TB, target string) *Proxy {
	t.Helper()
	p := &Proxy{target: target, port: freeport.Port(t), conns: map[*conn]struct{}{}}
	require.NoError(t, p.Heal())
	t.Cleanup(p.close)
	return p
}

// Address returns host:port of the proxy.
func (p *Proxy) Address() string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(p.port)) }

// Port returns the port on which the proxy listens.
func (p *Proxy) Port() int { return p.port }

// Delay delays every reply by d. Replies on their way keep their earlier delay. Their order does not change.
func (p *Proxy) Delay(d time.Duration) { p.change(func(f *faults) { f.delay = d }) }

// Partition drops all commands and replies. Connections stay open, and new ones are accepted. Heal ends the partition
// and resets the connections that lost bytes.
func (p *Proxy) Partition() { p.change(func(f *faults) { f.partition = true }) }

// CutReplies breaks off the next n replies of all connections after half their bytes, and ends their connections in the
// given way. A negative n breaks off every reply until Heal.
func (p *Proxy) CutReplies(n int, end End) { p.change(func(f *faults) { f.cuts, f.cutEnd = n, end }) }

// Answer answers a command with a RESP value of one line, such as "-LOADING Redis is loading". The target does not get
// the command.
func (p *Proxy) Answer(command, reply string) {
	p.change(func(f *faults) {
		answers := map[string]string{strings.ToLower(command): reply + "\r\n"}
		for name, other := range f.answers { // connections may be reading the old map
			if _, replaced := answers[name]; !replaced {
				answers[name] = other
			}
		}
		f.answers = answers
	})
}

// Down stops listening and resets open connections, as if the process of a server had ended.
func (p *Proxy) Down() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.downs++
	for c := range p.conns {
		c.end(true)
	}
	if p.listener == nil {
		return nil
	}
	err := p.listener.Close()
	p.listener = nil
	return err
}

// Heal ends all faults and listens again. It resets connections that have lost bytes, because they are unusable.
func (p *Proxy) Heal() (err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.faults = faults{}
	for c := range p.conns {
		if c.lossy.Load() {
			c.end(true)
		}
	}
	if p.listener != nil || p.closed {
		return nil
	}
	if p.listener, err = net.Listen("tcp", p.Address()); err == nil {
		listener := p.listener
		p.running.Go(func() { p.accept(listener) })
	}
	return err
}

// Flap calls Down and Heal that many times. down and up are the durations between them. If ctx ends, Flap heals and
// returns the error of ctx.
func (p *Proxy) Flap(ctx context.Context, times int, down, up time.Duration) error {
	for range times {
		if err := p.Down(); err != nil {
			return errors.Join(err, p.Heal())
		}
		wait(ctx.Done(), down)
		if err := p.Heal(); err != nil {
			return err
		}
		wait(ctx.Done(), up)
	}
	return ctx.Err()
}

// wait waits for d, or until done. It reports whether d has passed.
func wait(done <-chan struct{}, d time.Duration) bool {
	select {
	case <-time.After(d):
		return true
	case <-done:
		return false
	}
}

// change changes the faults.
func (p *Proxy) change(by func(*faults)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	by(&p.faults)
}

// currentFaults returns the present faults.
func (p *Proxy) currentFaults() faults {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.faults
}

// takeCut reports whether to break off a reply, and returns what happens to its connection. It counts the reply.
func (p *Proxy) takeCut() (End, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.faults.cuts == 0 {
		return 0, false
	}
	p.faults.cuts = max(p.faults.cuts-1, -1)
	return p.faults.cutEnd, true
}

// accept serves a listener until it is closed.
func (p *Proxy) accept(listener net.Listener) {
	for {
		client, err := listener.Accept()
		if err != nil {
			return // it is closed, or the process has no free file descriptor
		}
		p.mu.Lock()
		downs := p.downs
		p.mu.Unlock()
		p.running.Go(func() { p.serve(client, downs) })
	}
}

// serve forwards one connection until it ends. It resets the connection if the target cannot be reached, or if the
// proxy has been down since downs was counted.
func (p *Proxy) serve(client net.Conn, downs int) {
	target, err := net.DialTimeout("tcp", p.target, dialTimeout)
	if err != nil {
		reset(client)
		return
	}
	c := newConn(p, client, target)
	p.mu.Lock()
	served := p.downs == downs && !p.closed
	if served {
		p.conns[c] = struct{}{}
	}
	p.mu.Unlock()
	if !served {
		c.end(true)
		return
	}
	c.run()
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.conns, c)
}

// close resets all connections and waits for the goroutines of the proxy.
func (p *Proxy) close() {
	p.change(func(*faults) { p.closed = true })
	_ = p.Down() // the listener is closed in any case
	p.running.Wait()
}
