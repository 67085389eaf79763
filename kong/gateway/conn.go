package gateway

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"sync/atomic"
	"time"

	pb "github.com/Kong/go-pdk/server/kong_plugin_protocol"
	"google.golang.org/protobuf/proto"
)

const (
	// readBuffer holds a batch of questions, so that they are answered without another system call.
	readBuffer = 64 << 10
	// maxFrame bounds what a plugin may make the gateway allocate. Kong has no such bound.
	maxFrame = 256 << 20
	// writeAhead bounds the bytes of answers that wait until all questions of a batch are answered.
	writeAhead = 64 << 10
	// callTimeout is nginx's default for its sockets: a handler that takes longer ends in a 500.
	callTimeout = 60 * time.Second
)

var (
	// errClosed means that the plugin closed the connection. Kong concludes that its instances are gone.
	errClosed = errors.New("closed")
	// errWrite means that a call or an answer could not be written. Kong raises at once.
	errWrite = errors.New("write to plugin server")
	// errExited ends an event after kong.response.exit. It is no failure.
	errExited = errors.New("exited")
)

// Conn is one connection to a plugin server and speaks Kong's side of the protocol. It serves one call at a time. After
// an error, and after an event that ended in an exit, it cannot be used again, as in Kong.
type Conn struct {
	conn     net.Conn
	reader   *bufio.Reader
	out      []byte
	sequence *atomic.Int64
	timeout  time.Duration
	node     *node
}

// Dial connects to the plugin server that listens at the unix socket path, for driving events without a gateway.
func Dial(path string) (*Conn, error) {
	n := &node{log: slog.New(slog.DiscardHandler), counters: &Counters{}}
	return dial(path, n, new(atomic.Int64), callTimeout)
}

func dial(path string, n *node, sequence *atomic.Int64, timeout time.Duration) (*Conn, error) {
	conn, err := net.Dial("unix", path)
	if err != nil {
		return nil, fmt.Errorf("connect to plugin server: %w", err)
	}
	reader := bufio.NewReaderSize(conn, readBuffer)
	return &Conn{conn: conn, reader: reader, sequence: sequence, timeout: timeout, node: n}, nil
}

// Close closes the connection.
func (c *Conn) Close() error { return c.conn.Close() }

// StartInstance starts an instance of the plugin from the JSON that Kong would send and returns its id.
func (c *Conn) StartInstance(plugin string, config []byte) (int32, error) {
	c.node.counters.Starts.Add(1)
	reply, err := c.call(&pb.RpcCall{Call: &pb.RpcCall_CmdStartInstance{
		CmdStartInstance: &pb.CmdStartInstance{Name: plugin, Config: config},
	}}, nil)
	if err != nil {
		return 0, fmt.Errorf("start instance: %w", err)
	}
	status := reply.GetInstanceStatus()
	if status == nil {
		return 0, errors.New("start instance: no instance status in the answer")
	}
	return status.InstanceId, nil
}

// CloseInstance closes an instance.
func (c *Conn) CloseInstance(id int32) error {
	c.node.counters.Closes.Add(1)
	_, err := c.call(&pb.RpcCall{Call: &pb.RpcCall_CmdCloseInstance{
		CmdCloseInstance: &pb.CmdCloseInstance{InstanceId: id},
	}}, nil)
	if err != nil {
		return fmt.Errorf("close instance %d: %w", id, err)
	}
	return nil
}

// HandleEvent runs one event of an instance for a request and answers the plugin's questions from it. After an Outcome
// with an Exit the connection is closed, as Kong closes it.
func (c *Conn) HandleEvent(instance int32, phase string, request Request) (Outcome, error) {
	x, ok := newExchange(c.node, request)
	if !ok {
		return Outcome{}, fmt.Errorf("handle event: bad request target %q", request.Target)
	}
	switch {
	case phase == logPhase && request.Response == nil:
		return Outcome{}, errors.New("handle event: the log phase needs a response")
	case phase == logPhase:
		x.sent = request.Response.sent(x)
	}
	err := c.handleEvent(instance, phase, x)
	if errors.Is(err, errExited) {
		err = c.Close()
	}
	outcome := Outcome{Exit: x.exit, Header: x.responseHeader, Shared: x.shared}
	for _, added := range x.serialized {
		put(&outcome.Serialized, added.key, added.value)
	}
	return outcome, err
}

func (c *Conn) handleEvent(instance int32, phase string, x *exchange) error {
	_, err := c.call(&pb.RpcCall{Call: &pb.RpcCall_CmdHandleEvent{
		CmdHandleEvent: &pb.CmdHandleEvent{InstanceId: instance, EventName: phase},
	}}, x)
	if err != nil {
		return fmt.Errorf("handle event: %w", err)
	}
	return nil
}

// call sends a command and reads its reply; with an exchange it first answers the plugin's questions, up to the empty
// frame.
func (c *Conn) call(command *pb.RpcCall, x *exchange) (*pb.RpcReturn, error) {
	command.Sequence = c.sequence.Add(1)
	payload, err := proto.Marshal(command)
	if err != nil {
		return nil, fmt.Errorf("encode command: %w", err)
	}
	if err := c.conn.SetDeadline(time.Now().Add(c.timeout)); err != nil {
		return nil, fmt.Errorf("set deadline: %w", err)
	}
	c.out = appendFrame(c.out[:0], payload)
	if x != nil {
		if err := c.answerQuestions(x); err != nil {
			return nil, err
		}
	}
	frame, err := c.readFrame()
	if err != nil {
		return nil, err
	}
	var reply pb.RpcReturn
	if err := proto.Unmarshal(frame, &reply); err != nil {
		return nil, fmt.Errorf("decode reply: %w", err)
	}
	if reply.Sequence != command.Sequence {
		return nil, fmt.Errorf("reply to call %d instead of %d", reply.Sequence, command.Sequence)
	}
	return &reply, c.flush() // the answer to the plugin's last question may still wait
}

func (c *Conn) answerQuestions(x *exchange) error {
	for {
		method, err := c.readFrame()
		if err != nil {
			return err
		}
		if len(method) == 0 {
			return nil
		}
		arg, err := c.readFrame()
		if err != nil {
			return err
		}
		reply, err := x.answer(string(method), arg)
		if err != nil { // Kong has written the answers before it
			if failed := c.flush(); failed != nil {
				return failed
			}
			return err
		}
		c.out = appendFrame(c.out, reply)
	}
}

func appendFrame(b, payload []byte) []byte {
	b = binary.LittleEndian.AppendUint32(b, uint32(len(payload)))
	return append(b, payload...)
}

// readFrame returns the next frame. Before it waits for bytes it sends the answers so far.
func (c *Conn) readFrame() ([]byte, error) {
	const sizeBytes = 4
	if c.reader.Buffered() < sizeBytes || len(c.out) > writeAhead {
		if err := c.flush(); err != nil {
			return nil, err
		}
	}
	var head [sizeBytes]byte
	if _, err := io.ReadFull(c.reader, head[:]); err != nil {
		return nil, readError(err)
	}
	size := int(binary.LittleEndian.Uint32(head[:]))
	if size > maxFrame {
		return nil, fmt.Errorf("frame of %d bytes", size)
	}
	if c.reader.Buffered() < size {
		if err := c.flush(); err != nil {
			return nil, err
		}
	}
	frame := make([]byte, size)
	if _, err := io.ReadFull(c.reader, frame); err != nil {
		return nil, readError(err)
	}
	return frame, nil
}

func (c *Conn) flush() error {
	if len(c.out) == 0 {
		return nil
	}
	_, err := c.conn.Write(c.out)
	c.out = c.out[:0]
	if err != nil {
		return fmt.Errorf("%w: %w", errWrite, err)
	}
	return nil
}

// readError returns errClosed for an end of file, which alone makes Kong replay the event.
func readError(err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return errClosed
	}
	return fmt.Errorf("read from plugin server: %w", err)
}
