package faultproxy

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net"
	"strconv"
	"sync"
	"sync/atomic"
	"time"
)

// queued bounds the messages of one connection that wait in each direction.
const queued = 1024

// message is one reply on its way.
type message struct {
	bytes []byte
	due   time.Time // when it may arrive
}

// conn is a connection of a client and its connection to the target. Commands, replies from the target and replies to
// the client have a goroutine each, so that delays overlap.
type conn struct {
	proxy          *Proxy
	client, target net.Conn

	replies chan message // read from the target; closed when the target has closed its connection
	// expected has an entry for every forwarded or answered command, in their order: the answer of the proxy, or nil
	// bytes for a reply of the target.
	expected chan message
	ended    chan struct{} // closed at the end
	gone     chan struct{} // closed with replies
	once     sync.Once
	lossy    atomic.Bool // bytes were dropped
	hangs    atomic.Bool // nothing reaches the client from now on
}

func newConn(p *Proxy, client, target net.Conn) *conn {
	return &conn{
		proxy: p, client: client, target: target,
		replies: make(chan message, queued), expected: make(chan message, queued),
		ended: make(chan struct{}), gone: make(chan struct{}),
	}
}

// run forwards until the connection ends.
func (c *conn) run() {
	var group sync.WaitGroup
	group.Go(func() { // a client that has closed needs no reply
		c.forwardCommands()
		c.end(false)
	})
	group.Go(func() {
		c.readReplies()
		close(c.gone)
		close(c.replies)
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
		expected := message{due: time.Now().Add(faults.delay)}
		if answer != "" {
			expected.bytes = []byte(answer)
		}
		select {
		case c.expected <- expected:
		case <-c.ended:
			return
		}
		if answer == "" {
			_, _ = c.target.Write(command) // the reader of the target fails too, after the replies that have arrived
		}
	}
}

// readReplies reads replies until the target ends.
func (c *conn) readReplies() {
	for r := bufio.NewReader(c.target); ; {
		reply, err := readValue(r)
		if err != nil {
			return
		}
		select {
		case c.replies <- message{reply, time.Now().Add(c.proxy.currentFaults().delay)}:
		case <-c.ended:
			return
		}
	}
}

// forwardReplies passes replies to the client in the order of the commands.
func (c *conn) forwardReplies() {
	for {
		reply, ok := c.nextReply()
		faults := c.proxy.currentFaults()
		if !ok {
			if c.loses(&faults) { // the client does not learn of the end of the target
				<-c.ended
			}
			c.end(false)
			return
		}
		if !wait(c.ended, time.Until(reply.due)) {
			return
		}
		if faults = c.proxy.currentFaults(); c.loses(&faults) {
			continue
		}
		if end, cut := c.proxy.takeCut(); cut {
			c.breakOff(reply.bytes, end)
		} else if _, err := c.client.Write(reply.bytes); err != nil {
			return // the reader of the client ends the connection
		}
	}
}

// nextReply waits for the reply to the next command. It returns false if none can come.
func (c *conn) nextReply() (reply message, ok bool) {
	var expected message
	select {
	case expected = <-c.expected:
	case <-c.ended:
		return message{}, false
	case <-c.gone:
		select {
		case expected = <-c.expected:
		default:
			return message{}, false
		}
	}
	if expected.bytes != nil {
		return expected, true
	}
	select {
	case reply, ok = <-c.replies:
	case <-c.ended:
	}
	return reply, ok
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
	if err != nil || bytes.IndexByte([]byte("$=!*~>%|"), value[0]) < 0 {
		return value, err
	}
	n, err := strconv.Atoi(string(bytes.TrimRight(value[1:], "\r\n")))
	if err != nil || n < -1 || n > maxLength {
		return value, fmt.Errorf("read a RESP value: %q announces no length", value)
	}
	switch value[0] {
	case '$', '=', '!':
		if n < 0 {
			return value, nil
		}
		text := make([]byte, n+len("\r\n"))
		_, err = io.ReadFull(r, text)
		return append(value, text...), err
	case '%':
		n *= 2
	case '|': // attributes, and then the value that has them
		n = 2*n + 1
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
	if command[0] != '*' {
		name, _, _ := bytes.Cut(bytes.TrimRight(command, "\r\n"), []byte(" "))
		return string(bytes.ToLower(name))
	}
	lines := bytes.SplitN(command, []byte("\r\n"), 4) // word count, length of the first word, first word, other bytes
	if len(lines) < 4 {
		return ""
	}
	return string(bytes.ToLower(lines[2]))
}
