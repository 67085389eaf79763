package faultproxy

import (
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"
)

// dialTimeout bounds opening a connection to the target, which is on the same machine.
const dialTimeout = 2 * time.Second

// Address locates a server.
type Address struct {
	Network string // tcp or unix
	Name    string // host:port, or a path
}

// TCP returns an address on a network.
func TCP(hostPort string) Address { return Address{"tcp", hostPort} }

// Unix returns the address of a unix socket.
func Unix(path string) Address { return Address{"unix", path} }

// Proxy forwards connections to a target, with the faults that it is told. All methods may be called at any time, by
// any goroutine; after Close they do nothing.
type Proxy struct {
	target Address
	listen Address
	port   *port // nil: it listens on a unix socket
	counts counts

	mu       sync.Mutex
	faults   faults
	listener net.Listener // nil: connections are refused
	conns    map[*conn]struct{}
	resets   int // how often all connections were reset
	closed   bool
	running  sync.WaitGroup
}

// New starts a proxy on a free port of the loopback that forwards to a target. Close ends it.
func New(target Address) (*Proxy, error) {
	held, err := holdPort()
	if err != nil {
		return nil, fmt.Errorf("start a proxy: %w", err)
	}
	p := &Proxy{target: target, listen: TCP(held.address()), port: held, conns: map[*conn]struct{}{}}
	if err := p.Accept(); err != nil {
		return nil, errors.Join(fmt.Errorf("start a proxy: %w", err), held.close())
	}
	return p, nil
}

// NewUnix starts a proxy on a unix socket at path, where nothing may lie, that forwards to a target. Close ends it and
// removes the socket. A unix socket knows no reset: what New's proxy resets, this one closes.
func NewUnix(path string, target Address) (*Proxy, error) {
	p := &Proxy{target: target, listen: Unix(path), conns: map[*conn]struct{}{}}
	if err := p.Accept(); err != nil {
		return nil, fmt.Errorf("start a proxy: %w", err)
	}
	return p, nil
}

// Address returns where the proxy listens. It stays the same while connections are refused.
func (p *Proxy) Address() Address { return p.listen }

// Port returns the port on which the proxy listens, or 0 for a unix socket.
func (p *Proxy) Port() int {
	if p.port == nil {
		return 0
	}
	return p.port.number
}

// Accept ends Refuse: the proxy listens.
func (p *Proxy) Accept() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.listener != nil || p.closed {
		return nil
	}
	listener, err := net.Listen(p.listen.Network, p.listen.Name)
	if err != nil {
		return fmt.Errorf("listen again: %w", err)
	}
	p.listener = listener
	p.running.Go(func() { p.accept(listener) })
	return nil
}

// Refuse resets new connections. Open ones stay open.
func (p *Proxy) Refuse() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.refuse()
}

func (p *Proxy) refuse() error {
	listener := p.listener
	if listener == nil {
		return nil
	}
	p.listener = nil
	if err := listener.Close(); err != nil {
		return fmt.Errorf("stop listening: %w", err)
	}
	return nil
}

// accept serves a listener until it is closed.
func (p *Proxy) accept(listener net.Listener) {
	for {
		client, err := listener.Accept()
		if err != nil {
			return // it is closed; an accept on the loopback fails otherwise only for lack of file descriptors
		}
		p.counts.connections.Add(1)
		resets := p.resetsUntilNow()
		p.running.Go(func() { p.serve(client, resets) })
	}
}

func (p *Proxy) resetsUntilNow() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.resets
}

// serve forwards one connection until it ends. A target that cannot be reached looks to the client like a reset. resets
// is how often all connections had been reset when this one was accepted.
func (p *Proxy) serve(client net.Conn, resets int) {
	target, err := net.DialTimeout(p.target.Network, p.target.Name, dialTimeout)
	if err != nil {
		reset(client)
		return
	}
	c := newConn(p, client, target)
	if !p.enter(c, resets) {
		c.end(true)
		return
	}
	c.run()
	p.leave(c)
}

// enter is false when the connection was to be reset while the target was being reached.
func (p *Proxy) enter(c *conn, resets int) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed || p.resets != resets {
		return false
	}
	p.conns[c] = struct{}{}
	return true
}

func (p *Proxy) leave(c *conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.conns, c)
}

// Close resets all connections and returns when nothing of the proxy runs any more. It may be called again.
func (p *Proxy) Close() error {
	p.mu.Lock()
	if p.closed {
		p.mu.Unlock()
		return nil
	}
	p.closed = true
	err := p.refuse()
	p.resetAll(func(*conn) bool { return true })
	p.mu.Unlock()
	p.running.Wait()
	if p.port != nil {
		return errors.Join(err, p.port.close())
	}
	if removed := os.Remove(p.listen.Name); removed != nil && !errors.Is(removed, os.ErrNotExist) {
		err = errors.Join(err, removed)
	}
	return err
}

// Counts holds what has passed a proxy since its start.
type Counts struct {
	Connections int64 // accepted
	Open        int   // connections now
	Commands    int64 // forwarded to the target
	Replies     int64 // passed to clients as a whole, the proxy's own included
	Answered    int64 // commands that the proxy answered itself
	Swallowed   int64 // commands and replies that were dropped
	Cut         int64 // replies that were broken off
	BytesIn     int64 // forwarded to the target
	BytesOut    int64 // passed to clients
}

type counts struct {
	connections, commands, replies, answered, swallowed, cut, bytesIn, bytesOut atomic.Int64
}

// Counts returns what has passed so far.
func (p *Proxy) Counts() Counts {
	p.mu.Lock()
	open := len(p.conns)
	p.mu.Unlock()
	n := &p.counts
	return Counts{
		Connections: n.connections.Load(), Open: open, Commands: n.commands.Load(), Replies: n.replies.Load(),
		Answered: n.answered.Load(), Swallowed: n.swallowed.Load(), Cut: n.cut.Load(),
		BytesIn: n.bytesIn.Load(), BytesOut: n.bytesOut.Load(),
	}
}
