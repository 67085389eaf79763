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

// dialTimeout bounds opening a connection to the target, which is on the same machine. That may be busy.
const dialTimeout = time.Minute

// Address locates a server.
type Address struct {
	Network string // tcp or unix
	Name    string // host:port, or a path
}

// TCP returns an address on a network.
func TCP(hostPort string) Address { return Address{"tcp", hostPort} }

// Unix returns the address of a unix socket.
func Unix(path string) Address { return Address{"unix", path} }

// Proxy forwards connections to a target and injects faults. Any goroutine may call any method at any time. After Close
// they do nothing.
type Proxy struct {
	target Address
	listen Address
	port   *port // nil: the proxy listens on a unix socket
	counts counts

	mu       sync.Mutex
	faults   faults
	listener net.Listener // nil: the proxy does not listen
	conns    map[*conn]struct{}
	resets   int // the number of calls of Reset
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
	if err := p.Listen(); err != nil {
		return nil, errors.Join(fmt.Errorf("start a proxy: %w", err), held.close())
	}
	return p, nil
}

// NewUnix starts a proxy on a unix socket that forwards to a target. No file may exist at path. Close ends the proxy
// and removes the socket. Unix sockets have no reset: the proxy closes connections instead.
func NewUnix(path string, target Address) (*Proxy, error) {
	p := &Proxy{target: target, listen: Unix(path), conns: map[*conn]struct{}{}}
	if err := p.Listen(); err != nil {
		return nil, fmt.Errorf("start a proxy: %w", err)
	}
	return p, nil
}

// Address returns the address of the proxy, which never changes.
func (p *Proxy) Address() Address { return p.listen }

// Port returns the port on which the proxy listens, or 0 for a unix socket.
func (p *Proxy) Port() int {
	if p.port == nil {
		return 0
	}
	return p.port.number
}

// Listen listens again after StopListening.
func (p *Proxy) Listen() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.listener != nil || p.closed {
		return nil
	}
	listener, err := net.Listen(p.listen.Network, p.listen.Name)
	if err != nil {
		return fmt.Errorf("listen: %w", err)
	}
	p.listener = listener
	p.running.Go(func() { p.accept(listener) })
	return nil
}

// StopListening makes new connections fail. Open connections stay open.
func (p *Proxy) StopListening() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.closeListener()
}

// closeListener closes the listener, if there is one. p.mu is held.
func (p *Proxy) closeListener() error {
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
			return // it is closed, or the process has no free file descriptor
		}
		p.counts.connections.Add(1)
		resets := p.resetCount()
		p.running.Go(func() { p.serve(client, resets) })
	}
}

// resetCount returns the number of calls of Reset.
func (p *Proxy) resetCount() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.resets
}

// serve forwards one connection until it ends. It resets the connection if the target cannot be reached. resets is the
// resetCount when the connection was accepted.
func (p *Proxy) serve(client net.Conn, resets int) {
	target, err := net.DialTimeout(p.target.Network, p.target.Name, dialTimeout)
	if err != nil {
		reset(client)
		return
	}
	c := newConn(p, client, target)
	if !p.add(c, resets) {
		c.end(true)
		return
	}
	c.run()
	p.remove(c)
}

// add adds a connection. It returns false if the proxy was reset or closed since the connection was accepted.
func (p *Proxy) add(c *conn, resets int) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed || p.resets != resets {
		return false
	}
	p.conns[c] = struct{}{}
	return true
}

// remove removes a connection.
func (p *Proxy) remove(c *conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.conns, c)
}

// Close resets all connections and waits for the goroutines of the proxy. It may be called again.
func (p *Proxy) Close() error {
	p.mu.Lock()
	if p.closed {
		p.mu.Unlock()
		return nil
	}
	p.closed = true
	err := p.closeListener()
	p.resetMatching(func(*conn) bool { return true })
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

// Counts count what a proxy has done since its start.
type Counts struct {
	Connections int64 // accepted
	Open        int   // connections now
	Commands    int64 // forwarded to the target
	Replies     int64 // passed to clients as a whole, with those of the proxy
	Answered    int64 // commands that the proxy answered itself
	Dropped     int64 // commands and replies that were dropped
	Cut         int64 // replies that were broken off
	BytesIn     int64 // forwarded to the target
	BytesOut    int64 // passed to clients
}

type counts struct {
	connections, commands, replies, answered, dropped, cut, bytesIn, bytesOut atomic.Int64
}

// Counts returns the counts.
func (p *Proxy) Counts() Counts {
	p.mu.Lock()
	open := len(p.conns)
	p.mu.Unlock()
	n := &p.counts
	return Counts{
		Connections: n.connections.Load(), Open: open, Commands: n.commands.Load(), Replies: n.replies.Load(),
		Answered: n.answered.Load(), Dropped: n.dropped.Load(), Cut: n.cut.Load(),
		BytesIn: n.bytesIn.Load(), BytesOut: n.bytesOut.Load(),
	}
}
