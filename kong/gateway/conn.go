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
	// readBuffer holds a batch of questions, so that they are worked through
	// without another system call.
	readBuffer = 64 << 10
	// maxFrame bounds what a plugin may make the gateway allocate. Kong has no
	// such bound.
	maxFrame = 256 << 20
	// writeAhead is how many bytes of answers may wait for the questions that
	// have already arrived to be worked through.
	writeAhead = 64 << 10
	// callTimeout is nginx's default for its sockets: a handler that takes
	// longer ends in a 500.
	callTimeout = 60 * time.Second
)

var (
	// errLost means that the plugin closed the connection: to Kong, that its
	// instances are gone.
	errLost = errors.New("closed")
	// errUnwritten means that a call or an answer could not be written. Kong
	// raises at once.
	errUnwritten = errors.New("write to plugin server")
	// errExited ends an event after kong.response.exit. It is no failure.
	errExited = errors.New("exited")
)

// Conn is one connection to a plugin server, speaking Kong's side of the
// protocol. It serves one call at a time. After an error, and after an event
// that ended in an exit, it is of no further use, as in Kong.
type Conn struct {
	conn     net.Conn
	reader   *bufio.Reader
	out      []byte
	sequence *atomic.Int64
	timeout  time.Duration
	counters *Counters
	node     *node
}

// Dial connects to the plugin server listening at the unix socket path, for
// driving events without a gateway. PDK questions about the node get fixed
// answers.
func Dial(path string) (*Conn, error) {
	counters := &Counters{}
	realIP, err := newRealIP(nil, "", false)
	if err != nil {
		return nil, err
	}
	empty := &state{}
	n := &node{
		id: "00000000-0000-4000-8000-000000000000", port: 8000, realIP: realIP,
		log: slog.New(slog.DiscardHandler), state: func() *state { return empty }, counters: counters,
	}
	return dial(path, n, new(atomic.Int64), callTimeout)
}

func dial(path string, n *node, sequence *atomic.Int64, timeout time.Duration) (*Conn, error) {
	conn, err := net.Dial("unix", path)
	if err != nil {
		return nil, fmt.Errorf("connect to plugin server: %w", err)
	}
	c := &Conn{conn: conn, sequence: sequence, timeout: timeout, counters: n.counters, node: n}
	c.reader = bufio.NewReaderSize(countingReader{conn, &n.counters.reads}, readBuffer)
	return c, nil
}

// countingReader counts the reads that brought something.
type countingReader struct {
	source io.Reader
	count  *atomic.Int64
}

func (r countingReader) Read(p []byte) (int, error) {
	n, err := r.source.Read(p)
	if n > 0 {
		r.count.Add(1)
	}
	return n, err
}

// Counters are those of the connection's calls.
func (c *Conn) Counters() *Counters { return c.counters }

// Close closes the connection.
func (c *Conn) Close() error { return c.conn.Close() }

// StartInstance starts an instance of the plugin from the JSON that Kong would
// send and gives its id.
func (c *Conn) StartInstance(plugin string, config []byte) (int32, error) {
	c.counters.starts.Add(1)
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

// CloseInstance ends an instance.
func (c *Conn) CloseInstance(id int32) error {
	c.counters.closes.Add(1)
	_, err := c.call(&pb.RpcCall{Call: &pb.RpcCall_CmdCloseInstance{
		CmdCloseInstance: &pb.CmdCloseInstance{InstanceId: id},
	}}, nil)
	if err != nil {
		return fmt.Errorf("close instance %d: %w", id, err)
	}
	return nil
}

// HandleEvent runs one event of an instance for a request, answering the
// plugin's questions from it. After an Outcome with an Exit the connection is
// closed, as Kong closes it.
func (c *Conn) HandleEvent(instance int32, phase string, request Request) (Outcome, error) {
	x, ok := newExchange(c.node, request, time.Now())
	if !ok {
		return Outcome{}, fmt.Errorf("handle event: bad request target %q", request.Target)
	}
	err := c.handleEvent(instance, phase, x)
	if errors.Is(err, errExited) {
		err = c.Close()
	}
	return x.outcome(), err
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

// call sends a command and reads its answer; with an exchange it first works
// through the plugin's questions, up to the empty frame.
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
		if err := c.bridge(x); err != nil {
			return nil, err
		}
	}
	frame, err := c.readFrame()
	if err != nil {
		return nil, err
	}
	var reply pb.RpcReturn
	if err := proto.Unmarshal(frame, &reply); err != nil {
		return nil, fmt.Errorf("decode answer: %w", err)
	}
	if reply.Sequence != command.Sequence {
		return nil, fmt.Errorf("answer to call %d instead of %d", reply.Sequence, command.Sequence)
	}
	return &reply, c.flush() // the answer to what the plugin sent last, if it has not left yet
}

func (c *Conn) bridge(x *exchange) error {
	for {
		method, err := c.readFrame()
		if err != nil {
			return err
		}
		if len(method) == 0 {
			return nil
		}
		// the next frame may overwrite the buffer that method lies in
		name := string(method)
		arg, err := c.readFrame()
		if err != nil {
			return err
		}
		reply, err := x.answer(name, arg)
		if err != nil {
			return err
		}
		c.out = appendFrame(c.out, reply)
	}
}

func appendFrame(b, payload []byte) []byte {
	b = binary.LittleEndian.AppendUint32(b, uint32(len(payload)))
	return append(b, payload...)
}

// readFrame gives the next frame, valid until the following read. Before it
// waits for bytes it sends what has been answered so far.
func (c *Conn) readFrame() ([]byte, error) {
	if c.reader.Buffered() < 4 || len(c.out) > writeAhead {
		if err := c.flush(); err != nil {
			return nil, err
		}
	}
	head, err := c.reader.Peek(4)
	if err != nil {
		return nil, lost(err)
	}
	size := int(binary.LittleEndian.Uint32(head))
	if size > maxFrame {
		return nil, fmt.Errorf("frame of %d bytes", size)
	}
	if _, err := c.reader.Discard(4); err != nil {
		return nil, lost(err)
	}
	if c.reader.Buffered() < size {
		if err := c.flush(); err != nil {
			return nil, err
		}
	}
	if size > readBuffer {
		frame := make([]byte, size)
		_, err := io.ReadFull(c.reader, frame)
		return frame, lost(err)
	}
	frame, err := c.reader.Peek(size)
	if err != nil {
		return nil, lost(err)
	}
	_, err = c.reader.Discard(size)
	return frame, lost(err)
}

func (c *Conn) flush() error {
	if len(c.out) == 0 {
		return nil
	}
	_, err := c.conn.Write(c.out)
	c.out = c.out[:0]
	if err != nil {
		return fmt.Errorf("%w: %w", errUnwritten, err)
	}
	return nil
}

// lost tells an end of file from other failures to read. Only the first makes
// Kong replay the event.
func lost(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return errLost
	}
	return fmt.Errorf("read from plugin server: %w", err)
}
