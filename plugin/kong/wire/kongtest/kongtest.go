// Package kongtest plays Kong for the tests of plugins: a [Worker] starts instances, sends events and answers the
// plugin's questions, in the order in which Kong does. It holds recorded frames of a running Kong 3.9.3.
//
// It shares no code with package wire: its messages are the generated ones of go-pdk.
package kongtest

import (
	"bufio"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	pb "github.com/Kong/go-pdk/server/kong_plugin_protocol"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"
)

type (
	// Consumer is the answer of kong.client.get_consumer.
	Consumer = pb.Consumer
	// Route is the answer of kong.router.get_route.
	Route = pb.Route
	// String is the answer of a method that returns a string.
	String = pb.String
)

// Panics is a testing.TB for examples, which have no test: a failure panics, and the caller closes connections.
type Panics struct{ testing.TB }

// Helper does nothing.
func (Panics) Helper() {}

// Cleanup does nothing.
func (Panics) Cleanup(func()) {}

// Errorf panics.
func (Panics) Errorf(format string, args ...any) { panic(fmt.Sprintf(format, args...)) }

// frameTimeout bounds the wait for a frame of the plugin.
const frameTimeout = 20 * time.Second

// Worker is one connection of a Kong worker. It fails its test if the plugin breaks the protocol.
type Worker struct {
	Conn     net.Conn
	Answers  map[string][]byte // encoded, by method, or by method=argument
	Sequence int64             // of the last call

	Questions []string          // of the last event, named as Answers are
	Headers   map[string]string // that the last event has set
	Exit      *pb.ExitArgs      // of the last event; nil: the request is proxied

	t testing.TB
	r *bufio.Reader
}

// NewWorker returns a worker with a connection to a plugin.
func NewWorker(t testing.TB, c net.Conn) *Worker {
	return &Worker{t: t, Conn: c, r: bufio.NewReaderSize(c, 16<<10), Answers: map[string][]byte{}}
}

// Dial connects a worker to the plugin at a unix socket.
func Dial(t testing.TB, socket string) *Worker {
	t.Helper()
	c, err := net.Dial("unix", socket)
	require.NoError(t, err)
	t.Cleanup(func() { _ = c.Close() }) // the plugin or the test may have closed it
	return NewWorker(t, c)
}

// Encode returns the encoded message.
func Encode(t testing.TB, m proto.Message) []byte {
	t.Helper()
	b, err := proto.Marshal(m)
	require.NoError(t, err)
	return b
}

// Frame returns the frame of a payload.
func Frame(payload []byte) []byte {
	return append(binary.LittleEndian.AppendUint32(nil, uint32(len(payload))), payload...)
}

// Write sends bytes, which need not be whole frames.
func (k *Worker) Write(b []byte) {
	k.t.Helper()
	_, err := k.Conn.Write(b)
	require.NoError(k.t, err)
}

// Send sends a frame.
func (k *Worker) Send(payload []byte) {
	k.t.Helper()
	k.Write(Frame(payload))
}

// Receive returns the next frame.
func (k *Worker) Receive() ([]byte, error) {
	if err := k.Conn.SetReadDeadline(time.Now().Add(frameTimeout)); err != nil {
		return nil, err
	}
	var size uint32
	if err := binary.Read(k.r, binary.LittleEndian, &size); err != nil {
		return nil, err
	}
	payload := make([]byte, size)
	_, err := io.ReadFull(k.r, payload)
	return payload, err
}

// Call sends a call, with the next sequence number.
func (k *Worker) Call(m *pb.RpcCall) {
	k.t.Helper()
	k.Sequence++
	m.Sequence = k.Sequence
	k.Send(Encode(k.t, m))
}

// CallEvent sends an event of an instance, and does not wait.
func (k *Worker) CallEvent(id int32, name string) {
	k.t.Helper()
	event := &pb.CmdHandleEvent{InstanceId: id, EventName: name}
	k.Call(&pb.RpcCall{Call: &pb.RpcCall_CmdHandleEvent{CmdHandleEvent: event}})
}

// Return returns the return of the last call.
func (k *Worker) Return() (*pb.RpcReturn, error) {
	frame, err := k.Receive()
	if err != nil {
		return nil, err
	}
	var m pb.RpcReturn
	require.NoError(k.t, proto.Unmarshal(frame, &m))
	require.Equal(k.t, k.Sequence, m.Sequence, "the call that returned")
	return &m, nil
}

// StartInstance starts an instance of plugin-1 and returns its id. config is JSON without the fields that Kong adds.
func (k *Worker) StartInstance(seq int, config string) int32 {
	k.t.Helper()
	return k.StartRaw([]byte(WithSeq(seq, "plugin-1", config)))
}

// WithSeq returns a config with the fields that Kong adds.
func WithSeq(seq int, plugin, config string) string {
	added := map[string]any{"__seq__": seq, "__plugin_id": plugin, "__key__": "plugins:x", "__ws_id": "ws"}
	extra, _ := json.Marshal(added) // of these types it always succeeds
	joined := strings.TrimSuffix(string(extra), "}")
	if fields := strings.TrimPrefix(strings.TrimSpace(config), "{"); fields != "}" {
		return joined + "," + fields
	}
	return joined + "}"
}

// StartRaw starts an instance of a config as it is, and returns the instance's id.
func (k *Worker) StartRaw(config []byte) int32 {
	k.t.Helper()
	start := &pb.CmdStartInstance{Name: "plugin", Config: config}
	k.Call(&pb.RpcCall{Call: &pb.RpcCall_CmdStartInstance{CmdStartInstance: start}})
	m, err := k.Return()
	require.NoError(k.t, err)
	return m.GetInstanceStatus().GetInstanceId()
}

// CloseInstance closes an instance.
func (k *Worker) CloseInstance(id int32) {
	k.t.Helper()
	k.Call(&pb.RpcCall{Call: &pb.RpcCall_CmdCloseInstance{CmdCloseInstance: &pb.CmdCloseInstance{InstanceId: id}}})
	_, err := k.Return()
	require.NoError(k.t, err)
}

// Begin sends an event and reads its first question, which must call a method without arguments.
func (k *Worker) Begin(id int32, method string) {
	k.t.Helper()
	k.CallEvent(id, "access")
	for _, want := range []string{method, ""} {
		frame, err := k.Receive()
		require.NoError(k.t, err)
		require.Equal(k.t, want, string(frame))
	}
}

// Event runs one access event as Kong does: it answers the questions one after another, keeps the headers, and drops
// the connection on exit. The error is the one that ended the connection.
func (k *Worker) Event(id int32) error {
	k.t.Helper()
	return k.event(id, "access")
}

// LogEvent runs one log event as Kong does.
func (k *Worker) LogEvent(id int32) error {
	k.t.Helper()
	return k.event(id, "log")
}

func (k *Worker) event(id int32, phase string) error {
	k.t.Helper()
	k.Questions, k.Headers, k.Exit = nil, nil, nil
	k.CallEvent(id, phase)
	for {
		method, err := k.Receive()
		if err != nil {
			return err
		}
		if len(method) == 0 {
			_, err := k.Return()
			return err
		}
		arguments, err := k.Receive()
		if err != nil {
			return err
		}
		switch string(method) {
		case "kong.response.set_headers":
			k.Headers = decodeHeaders(k.t, arguments)
			k.Send(nil)
		case "kong.response.exit":
			k.Exit = &pb.ExitArgs{}
			require.NoError(k.t, proto.Unmarshal(arguments, k.Exit))
			return k.Conn.Close()
		default:
			name := QuestionName(method, arguments)
			k.Questions = append(k.Questions, name)
			k.Send(k.Answers[name])
		}
	}
}

// QuestionName returns method, or method=argument if the first field of the arguments is a text or a number.
func QuestionName(method, arguments []byte) string {
	var text pb.String
	if err := proto.Unmarshal(arguments, &text); err == nil && text.V != "" {
		return string(method) + "=" + text.V
	}
	var number pb.Int
	if err := proto.Unmarshal(arguments, &number); err == nil && number.V != 0 {
		return fmt.Sprintf("%s=%d", method, number.V)
	}
	return string(method)
}

func decodeHeaders(t testing.TB, arguments []byte) map[string]string {
	t.Helper()
	var s structpb.Struct
	require.NoError(t, proto.Unmarshal(arguments, &s))
	headers := map[string]string{}
	for name, value := range s.Fields {
		headers[name] = value.GetStringValue()
	}
	return headers
}
