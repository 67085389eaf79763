// Package faultproxy injects faults of networks and servers between a client and a Redis. A [Proxy] delays replies,
// drops bytes, stops listening, resets connections, breaks a reply off in the middle, or answers a command with an
// error. Any goroutine may change the faults at any time. A new Proxy has none.
//
// It parses RESP 2 to find the ends of commands and replies and the names of commands. So half a reply
// is exact, and answers of the proxy come in the order of the commands. A command has one reply: messages that no
// command requests (publish and subscribe, MONITOR) do not pass.
//
// Package redistest starts, stops and kills the servers.
package faultproxy

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"maps"
	"net"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
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
	running  sync.WaitGroup
}

// New starts a proxy on a free port of the loopback that forwards to host:port, until the end of the test.
func New(t testing.TB, target string) *Proxy {
	t.Helper()
	p := &Proxy{target: target, port: freeport.Port(t), conns: map[*conn]struct{}{}}
	require.NoError(t, p.Heal())
	t.Cleanup(func() {
		require.NoError(t, p.Down())
		p.running.Wait()
	})
	return p
}

// Address returns host:port of the proxy.
func (p *Proxy) Address() string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(p.port)) }

// Port returns the port on which the proxy listens.
func (p *Proxy) Port() int { return p.port }

// Delay delays every reply by d after its command. Commands on their way keep their earlier delay. The order of replies
// does not change.
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
		answers := map[string]string{} // connections may be reading the old map
		maps.Copy(answers, f.answers)
		answers[strings.ToLower(command)] = reply + "\r\n"
		f.answers = answers
	})
}

// Down stops listening and resets open connections, as if the process of a server had ended.
func (p *Proxy) Down() error {
	p.mu.Lock()
	defer p.mu.Unlock()
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
	if p.listener != nil {
		return nil
	}
	if p.listener, err = net.Listen("tcp", p.Address()); err == nil {
		listener := p.listener
		p.running.Go(func() { p.accept(listener) })
	}
	return err
}

func (p *Proxy) change(by func(*faults)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	by(&p.faults)
}

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
		p.running.Go(func() { p.serve(client, listener) })
	}
}

// serve forwards one connection until it ends. It resets the connection if the target cannot be reached, or if the
// proxy has been down since it was accepted.
func (p *Proxy) serve(client net.Conn, by net.Listener) {
	target, err := net.DialTimeout("tcp", p.target, dialTimeout)
	if err != nil {
		reset(client)
		return
	}
	c := &conn{proxy: p, client: client, target: target}
	c.expected, c.ended = make(chan expectation, queued), make(chan struct{})
	p.mu.Lock()
	if p.listener != by {
		c.end(true)
	}
	p.conns[c] = struct{}{}
	p.mu.Unlock()
	c.run()
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.conns, c)
}

// queued bounds the commands of one connection that wait for their replies.
const queued = 1024

// expectation is the reply to a command that was read.
type expectation struct {
	answer string    // of the proxy; empty: the target replies
	due    time.Time // when the client may get it
}

// conn is a connection of a client and its connection to the target. Commands and replies have a goroutine each.
type conn struct {
	proxy          *Proxy
	client, target net.Conn

	expected chan expectation // in the order of the commands
	ended    chan struct{}    // closed at the end
	once     sync.Once
	lossy    atomic.Bool // bytes were dropped
	hangs    atomic.Bool // nothing reaches the client from now on
}

// run forwards until the connection ends.
func (c *conn) run() {
	var group sync.WaitGroup
	group.Go(func() { // a client that has closed needs no reply
		c.forwardCommands()
		c.end(false)
	})
	group.Go(c.forwardReplies)
	group.Wait()
}

// end closes both connections. The first call decides how.
func (c *conn) end(byReset bool) {
	c.once.Do(func() {
		close(c.ended)
		if byReset {
			reset(c.client)
		} else {
			_ = c.client.Close() // the connection is unusable anyway
		}
		_ = c.target.Close()
	})
}

// reset closes a connection with RST.
func reset(connection net.Conn) {
	_ = connection.(*net.TCPConn).SetLinger(0) // fails only if it is closed already
	_ = connection.Close()
}

// loses reports whether a fault drops what passes now.
func (c *conn) loses(f *faults) bool {
	loses := f.partition || c.hangs.Load()
	if loses {
		c.lossy.Store(true)
	}
	return loses
}

// forwardCommands passes commands to the target, answers them, or drops them, until one of the two sides ends.
func (c *conn) forwardCommands() {
	for r := bufio.NewReader(c.client); ; {
		command, err := readValue(r)
		if err != nil {
			return // nothing can be read after a broken value
		}
		faults := c.proxy.currentFaults()
		if c.loses(&faults) {
			continue
		}
		answer := faults.answers[commandName(command)]
		select {
		case c.expected <- expectation{answer, time.Now().Add(faults.delay)}:
		case <-c.ended:
			return
		}
		if answer == "" {
			_, _ = c.target.Write(command) // the reader of the target fails too, after the replies that have arrived
		}
	}
}

// forwardReplies passes replies to the client in the order of the commands.
func (c *conn) forwardReplies() {
	for r := bufio.NewReader(c.target); ; {
		var next expectation
		select {
		case next = <-c.expected:
		case <-c.ended:
			return
		}
		reply, err := []byte(next.answer), error(nil)
		if next.answer == "" {
			reply, err = readValue(r)
		}
		select {
		case <-time.After(time.Until(next.due)):
		case <-c.ended:
			return
		}
		faults := c.proxy.currentFaults()
		if c.loses(&faults) {
			if err != nil { // the client does not learn of the end of the target
				<-c.ended
			}
			continue
		}
		if err != nil {
			c.end(false)
			return
		}
		if end, cut := c.proxy.takeCut(); cut {
			c.breakOff(reply, end)
		} else if _, err := c.client.Write(reply); err != nil {
			return // the reader of the client ends the connection
		}
	}
}

// breakOff passes half a reply and ends the connection as end says.
func (c *conn) breakOff(reply []byte, end End) {
	_, _ = c.client.Write(reply[:len(reply)/2]) // the connection ends in any case
	if end == Hang {
		c.lossy.Store(true)
		c.hangs.Store(true)
		return
	}
	c.end(true)
}

// maxLength bounds the length in one header, in bytes or elements. It exceeds those of tests.
const maxLength = 64 << 20

// readValue reads one RESP value, a command or a reply with its elements, and returns its bytes. A line that begins
// with no type of RESP is an inline command, which is a value too.
func readValue(r *bufio.Reader) ([]byte, error) {
	value, err := r.ReadBytes('\n')
	if err != nil || value[0] != '$' && value[0] != '*' {
		return value, err
	}
	n, err := strconv.Atoi(string(bytes.TrimRight(value[1:], "\r\n")))
	if err != nil || n < -1 || n > maxLength {
		return value, fmt.Errorf("read a RESP value: %q announces no length", value)
	}
	if value[0] == '$' && n >= 0 {
		text := make([]byte, n+len("\r\n"))
		_, err = io.ReadFull(r, text)
		return append(value, text...), err
	}
	for range n { // a negative n is null
		element, err := readValue(r)
		if value = append(value, element...); err != nil {
			return value, err
		}
	}
	return value, nil
}

// commandName returns the name of a command in lower case, or "" if it has none.
func commandName(command []byte) string {
	lines := bytes.SplitN(command, []byte("\r\n"), 4) // word count, length of the first word, first word, other bytes
	if len(lines) < 4 {
		return ""
	}
	return string(bytes.ToLower(lines[2]))
}
