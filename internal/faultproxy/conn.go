package faultproxy

import (
	"bufio"
	"net"
	"sync"
	"sync/atomic"
	"time"
)

// queued bounds the messages of one connection that are under way in each direction.
const queued = 1024

// message is one command or reply on its way.
type message struct {
	bytes []byte
	due   time.Time // when it may arrive
}

// conn holds a connection of a client, and its connection to the target. Four goroutines serve it: each
// direction has one that reads and one that writes, so that a delay holds up nothing behind it.
type conn struct {
	proxy          *Proxy
	client, target net.Conn

	commands chan message // read from the client
	replies  chan message // read from the target
	// expected has an entry for every command that was let pass, in their order, before it is sent: the proxy's own
	// answer, or nil bytes for one by the target.
	expected chan message
	ended    chan struct{} // closed at the end
	gone     chan struct{} // closed when the target ended its connection
	once     sync.Once
	spoiled  atomic.Bool // bytes were swallowed
	hangs    atomic.Bool // nothing may reach the client any more
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
	group.Go(func() { // a client that is done needs no reply
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

// end ends both connections; the first call decides how.
func (c *conn) end(byReset bool) {
	c.once.Do(func() {
		close(c.ended)
		if byReset {
			reset(c.client)
		} else {
			_ = c.client.Close() // given up anyway
		}
		_ = c.target.Close()
	})
}

// reset closes a connection with RST, where there is such a thing.
func reset(connection net.Conn) {
	if tcp, ok := connection.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0) // fails only when it is closed already
	}
	_ = connection.Close()
}

// read reads messages until one of the two sides ends.
func (c *conn) read(from net.Conn, direction Direction, to chan<- message) {
	r := bufio.NewReader(from)
	for {
		value, err := readValue(r)
		if err != nil {
			return // the rest of a broken value is useless
		}
		select {
		case to <- message{value, time.Now().Add(c.proxy.now().delay[direction])}:
		case <-c.ended:
			return
		}
	}
}

// forwardCommands passes commands to the target, or answers or swallows them.
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
		now := c.proxy.now()
		if now.partition || c.hangs.Load() {
			c.swallow()
			continue
		}
		answer, own := now.answers[commandName(command.bytes)]
		expected := message{due: time.Now().Add(now.delay[ToClient])}
		if own {
			expected.bytes = []byte(answer)
		}
		select {
		case c.expected <- expected:
		case <-c.ended:
			return
		}
		if own {
			c.proxy.counts.answered.Add(1)
			continue
		}
		n, err := c.target.Write(command.bytes)
		c.proxy.counts.bytesIn.Add(int64(n))
		if err != nil {
			return // the target's reader finds that out too, and passes on what it still has
		}
		c.proxy.counts.commands.Add(1)
	}
}

// forwardReplies passes replies to the client in the order of the commands.
func (c *conn) forwardReplies() {
	for {
		reply, ok := c.nextReply()
		if !ok {
			c.endUnlessUnheard()
			return
		}
		if !c.await(reply.due) {
			return
		}
		if c.proxy.now().partition || c.hangs.Load() {
			c.swallow()
			continue
		}
		if end, cut := c.proxy.cut(); cut {
			c.breakOff(reply.bytes, end)
			continue
		}
		if err := c.pass(reply.bytes); err != nil {
			return // the client's reader ends the connection
		}
		c.proxy.counts.replies.Add(1)
	}
}

// endUnlessUnheard ends the connection when the target did, unless the client cannot hear of it.
func (c *conn) endUnlessUnheard() {
	if c.proxy.now().partition || c.hangs.Load() {
		c.spoiled.Store(true)
		<-c.ended
		return
	}
	c.end(false)
}

// nextReply waits for the reply to the next command. It is false when there will be none.
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

// breakOff passes half a reply and ends the connection as wanted.
func (c *conn) breakOff(reply []byte, end End) {
	c.proxy.counts.cut.Add(1)
	_ = c.pass(reply[:len(reply)/2]) // it ends now in any case
	if end == Hang {
		c.spoiled.Store(true)
		c.hangs.Store(true)
		return
	}
	c.end(end == Reset)
}

func (c *conn) pass(reply []byte) error {
	n, err := c.client.Write(reply)
	c.proxy.counts.bytesOut.Add(int64(n))
	return err
}

func (c *conn) swallow() {
	c.spoiled.Store(true)
	c.proxy.counts.swallowed.Add(1)
}

// await waits until due; it is false when the connection ended before.
func (c *conn) await(due time.Time) bool {
	if left := time.Until(due); left > 0 {
		return wait(c.ended, left)
	}
	return true
}
