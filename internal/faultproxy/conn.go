package faultproxy

import (
	"bufio"
	"net"
	"sync"
	"sync/atomic"
	"time"
)

// queued bounds the messages of one connection that wait in each direction.
const queued = 1024

// message is one command or reply on its way.
type message struct {
	bytes []byte
	due   time.Time // when it may arrive
}

// conn is a connection of a client and its connection to the target. Each direction has a goroutine that reads and one
// that writes, so that delays overlap.
type conn struct {
	proxy          *Proxy
	client, target net.Conn

	commands chan message // read from the client
	replies  chan message // read from the target
	// expected has an entry for every forwarded or answered command, in their order: the answer of the proxy, or nil
	// bytes for a reply of the target.
	expected chan message
	ended    chan struct{} // closed at the end
	gone     chan struct{} // closed when the target has closed its connection
	once     sync.Once
	lossy    atomic.Bool // bytes were dropped
	hangs    atomic.Bool // nothing reaches the client from now on
}

func newConn(p *Proxy, client, target net.Conn) *conn {
	return &conn{
		proxy: p, client: client, target: target,
		commands: make(chan message, queued), replies: make(chan message, queued), expected: make(chan message, queued),
		ended: make(chan struct{}), gone: make(chan struct{}),
	}
}

// run forwards until the connection ends.
func (c *conn) run() {
	var group sync.WaitGroup
	group.Go(func() { // a client that has closed needs no reply
		c.read(c.client, ToServer, c.commands)
		c.end(false)
	})
	group.Go(func() {
		c.read(c.target, ToClient, c.replies)
		close(c.gone)
	})
	group.Go(c.forwardCommands)
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

// reset closes a connection, over TCP with RST.
func reset(connection net.Conn) {
	if tcp, ok := connection.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0) // fails only if it is closed already
	}
	_ = connection.Close()
}

// read reads messages until one of the two sides ends.
func (c *conn) read(from net.Conn, direction Direction, to chan<- message) {
	r := bufio.NewReader(from)
	for {
		value, err := readValue(r)
		if err != nil {
			return // nothing can be read after a broken value
		}
		select {
		case to <- message{value, time.Now().Add(c.proxy.currentFaults().delay[direction])}:
		case <-c.ended:
			return
		}
	}
}

// forwardCommands passes commands to the target, answers them, or drops them.
func (c *conn) forwardCommands() {
	for {
		var command message
		select {
		case command = <-c.commands:
		case <-c.ended:
			return
		}
		if !c.await(command.due) {
			return
		}
		faults := c.proxy.currentFaults()
		if faults.partition || c.hangs.Load() {
			c.drop()
			continue
		}
		answer, answers := faults.answers[commandName(command.bytes)]
		expected := message{due: time.Now().Add(faults.delay[ToClient])}
		if answers {
			expected.bytes = []byte(answer)
		}
		select {
		case c.expected <- expected:
		case <-c.ended:
			return
		}
		if answers {
			c.proxy.counts.answered.Add(1)
			continue
		}
		n, err := c.target.Write(command.bytes)
		c.proxy.counts.bytesIn.Add(int64(n))
		if err != nil {
			return // the reader of the target fails too, after the replies that have arrived
		}
		c.proxy.counts.commands.Add(1)
	}
}

// forwardReplies passes replies to the client in the order of the commands.
func (c *conn) forwardReplies() {
	for {
		reply, ok := c.nextReply()
		if !ok {
			c.endUnlessSilent()
			return
		}
		if !c.await(reply.due) {
			return
		}
		if c.proxy.currentFaults().partition || c.hangs.Load() {
			c.drop()
			continue
		}
		if end, cut := c.proxy.takeCut(); cut {
			c.breakOff(reply.bytes, end)
			continue
		}
		if err := c.pass(reply.bytes); err != nil {
			return // the client's reader ends the connection
		}
		c.proxy.counts.replies.Add(1)
	}
}

// endUnlessSilent closes the connection after the target has, unless a fault keeps the end from the client.
func (c *conn) endUnlessSilent() {
	if c.proxy.currentFaults().partition || c.hangs.Load() {
		c.lossy.Store(true)
		<-c.ended
		return
	}
	c.end(false)
}

// nextReply waits for the reply to the next command. It returns false if none can come.
func (c *conn) nextReply() (message, bool) {
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
	case reply := <-c.replies:
		return reply, true
	case <-c.ended:
		return message{}, false
	case <-c.gone:
		select {
		case reply := <-c.replies:
			return reply, true
		default:
			return message{}, false
		}
	}
}

// breakOff passes half a reply and ends the connection as end says.
func (c *conn) breakOff(reply []byte, end End) {
	c.proxy.counts.cut.Add(1)
	_ = c.pass(reply[:len(reply)/2]) // the connection ends in any case
	if end == Hang {
		c.lossy.Store(true)
		c.hangs.Store(true)
		return
	}
	c.end(end == Reset)
}

// pass writes a reply to the client.
func (c *conn) pass(reply []byte) error {
	n, err := c.client.Write(reply)
	c.proxy.counts.bytesOut.Add(int64(n))
	return err
}

// drop counts a dropped message.
func (c *conn) drop() {
	c.lossy.Store(true)
	c.proxy.counts.dropped.Add(1)
}

// await waits until due. It returns false if the connection ends before.
func (c *conn) await(due time.Time) bool {
	if left := time.Until(due); left > 0 {
		return wait(c.ended, left)
	}
	return true
}
