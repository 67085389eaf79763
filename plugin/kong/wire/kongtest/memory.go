package kongtest

import (
	"errors"
	"io"
	"net"
	"testing"
	"time"

	pb "github.com/Kong/go-pdk/server/kong_plugin_protocol"
)

// Memory is a listener whose connections exist in memory only, one at a time. Nothing of it allocates, so that a test
// can count what the server allocates.
type Memory struct {
	net.Listener // nil: no server calls its other methods
	accepted     chan net.Conn
	closed       chan struct{}
	conn         memoryConn
}

// NewMemory returns a listener without connections.
func NewMemory() *Memory {
	return &Memory{
		accepted: make(chan net.Conn), closed: make(chan struct{}),
		conn: memoryConn{ended: make(chan struct{}, 1)},
	}
}

// Run connects, sends the frames of a call, and sends one of answers after each write of the server. After the last one
// it waits for one more write and closes, as Kong does after an exit. It returns all that the server has written, which
// is valid until the next Run.
func (m *Memory) Run(call []byte, answers ...[]byte) []byte {
	m.conn.unread, m.conn.answers, m.conn.written = call, answers, m.conn.written[:0]
	m.accepted <- &m.conn
	<-m.conn.ended
	return m.conn.written
}

// Accept implements net.Listener.
func (m *Memory) Accept() (net.Conn, error) {
	select {
	case c := <-m.accepted:
		return c, nil
	case <-m.closed:
		return nil, net.ErrClosed
	}
}

// Close implements net.Listener. It may be called once.
func (m *Memory) Close() error {
	close(m.closed)
	return nil
}

// memoryConn is the server's end of a connection. A server uses it from one goroutine at a time.
type memoryConn struct {
	net.Conn // nil: no server calls its other methods
	unread   []byte
	answers  [][]byte
	written  []byte
	ended    chan struct{}
}

var errNothingWritten = errors.New("the server waits for an answer to nothing")

func (c *memoryConn) Read(p []byte) (int, error) {
	switch {
	case len(c.unread) > 0:
		n := copy(p, c.unread)
		c.unread = c.unread[n:]
		return n, nil
	case len(c.written) == 0:
		return 0, errNothingWritten
	}
	return 0, io.EOF
}

func (c *memoryConn) Write(p []byte) (int, error) {
	c.written = append(c.written, p...)
	if len(c.answers) > 0 {
		c.unread, c.answers = c.answers[0], c.answers[1:]
	}
	return len(p), nil
}

func (c *memoryConn) Close() error {
	c.ended <- struct{}{}
	return nil
}

// SetDeadline implements net.Conn. No call blocks.
func (c *memoryConn) SetDeadline(time.Time) error { return nil }

// StartCall returns the frame of the call that starts an instance of a config.
func StartCall(t testing.TB, config string) []byte {
	t.Helper()
	start := &pb.CmdStartInstance{Name: "plugin", Config: []byte(config)}
	return Frame(Encode(t, &pb.RpcCall{Sequence: 1, Call: &pb.RpcCall_CmdStartInstance{CmdStartInstance: start}}))
}

// EventCall returns the frame of the call for an instance's access phase.
func EventCall(t testing.TB, id int32) []byte {
	t.Helper()
	event := &pb.CmdHandleEvent{InstanceId: id, EventName: "access"}
	return Frame(Encode(t, &pb.RpcCall{Sequence: 2, Call: &pb.RpcCall_CmdHandleEvent{CmdHandleEvent: event}}))
}
