package gateway

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"path/filepath"
	"sync"
	"testing"

	pb "github.com/Kong/go-pdk/server/kong_plugin_protocol"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
)

// fakePlugin is a plugin server for tests. It keeps instances by their __seq__ and calls a function of the test for
// each event.
type fakePlugin struct {
	listener net.Listener
	onEvent  func(*fakeEvent)
	onStart  func(config map[string]any) bool // false: close the connection
	newID    func() int32                     // of an instance; nil: its __seq__

	mu        sync.Mutex
	conns     map[net.Conn]bool
	instances map[int32]map[string]any
	started   []map[string]any
	stopped   []int32
	done      sync.WaitGroup
}

// fakeEvent is one event as the plugin sees it.
type fakeEvent struct {
	conn   net.Conn
	name   string // of the phase
	config map[string]any
	call   int64
	closed bool
}

// question is a PDK call.
type question struct {
	method string
	arg    []byte
}

// errKongClosed reports that Kong dropped the connection.
var errKongClosed = errors.New("kong closed the connection")

// newFakePlugin serves a plugin until the end of the test.
func newFakePlugin(t testing.TB, onEvent func(*fakeEvent)) *fakePlugin {
	t.Helper()
	listener, err := net.Listen("unix", filepath.Join(t.TempDir(), "p.socket"))
	require.NoError(t, err)
	f := serveFake(listener, onEvent)
	t.Cleanup(f.close)
	return f
}

// serveFake serves a plugin at a listener.
func serveFake(listener net.Listener, onEvent func(*fakeEvent)) *fakePlugin {
	f := &fakePlugin{
		listener: listener, onEvent: onEvent, conns: map[net.Conn]bool{}, instances: map[int32]map[string]any{},
	}
	f.done.Go(f.accept)
	return f
}

func (f *fakePlugin) socket() string { return f.listener.Addr().String() }

func (f *fakePlugin) accept() {
	for {
		conn, err := f.listener.Accept()
		if err != nil {
			return // closed
		}
		f.mu.Lock()
		f.conns[conn] = true
		f.mu.Unlock()
		f.done.Go(func() { f.serve(conn) })
	}
}

func (f *fakePlugin) close() {
	f.listener.Close()
	f.mu.Lock()
	for conn := range f.conns {
		conn.Close()
	}
	f.mu.Unlock()
	f.done.Wait()
}

func (f *fakePlugin) serve(conn net.Conn) {
	defer conn.Close()
	for {
		frame, err := readFakeFrame(conn)
		if err != nil {
			return
		}
		var call pb.RpcCall
		if proto.Unmarshal(frame, &call) != nil || !f.handle(conn, &call) {
			return
		}
	}
}

func (f *fakePlugin) handle(conn net.Conn, call *pb.RpcCall) bool {
	reply := &pb.RpcReturn{Sequence: call.Sequence}
	switch {
	case call.GetCmdStartInstance() != nil:
		config := map[string]any{}
		if json.Unmarshal(call.GetCmdStartInstance().Config, &config) != nil {
			return false
		}
		f.mu.Lock()
		f.started = append(f.started, config)
		f.mu.Unlock()
		if f.onStart != nil && !f.onStart(config) {
			return false
		}
		id := int32(config["__seq__"].(float64))
		if f.newID != nil {
			id = f.newID()
		}
		f.mu.Lock()
		f.instances[id] = config
		f.mu.Unlock()
		reply.Return = &pb.RpcReturn_InstanceStatus{InstanceStatus: &pb.InstanceStatus{InstanceId: id}}
	case call.GetCmdCloseInstance() != nil:
		f.mu.Lock()
		f.stopped = append(f.stopped, call.GetCmdCloseInstance().InstanceId)
		delete(f.instances, call.GetCmdCloseInstance().InstanceId)
		f.mu.Unlock()
	case call.GetCmdHandleEvent() != nil:
		f.mu.Lock()
		config, exists := f.instances[call.GetCmdHandleEvent().InstanceId]
		f.mu.Unlock()
		if !exists {
			return false
		}
		event := &fakeEvent{
			conn: conn, name: call.GetCmdHandleEvent().EventName, config: config, call: call.Sequence,
		}
		f.onEvent(event)
		return !event.closed
	}
	return writeFakeFrames(conn, mustMarshal(reply)) == nil
}

func (f *fakePlugin) startedConfigs() []map[string]any {
	f.mu.Lock()
	defer f.mu.Unlock()
	return append([]map[string]any(nil), f.started...)
}

// ask sends questions in one write and reads their answers.
func (e *fakeEvent) ask(questions ...question) ([][]byte, error) {
	var frames [][]byte
	for _, q := range questions {
		frames = append(frames, []byte(q.method), q.arg)
	}
	if err := writeFakeFrames(e.conn, frames...); err != nil {
		e.closed = true
		return nil, err
	}
	var answers [][]byte
	for range questions {
		answer, err := readFakeFrame(e.conn)
		if err != nil {
			e.closed = true
			return answers, errKongClosed
		}
		answers = append(answers, answer)
	}
	return answers, nil
}

// end sends calls, the end of the event and the return in one write, and reads the answers to the calls.
func (e *fakeEvent) end(calls ...question) {
	var frames [][]byte
	for _, q := range calls {
		frames = append(frames, []byte(q.method), q.arg)
	}
	frames = append(frames, nil, mustMarshal(&pb.RpcReturn{Sequence: e.call}))
	if writeFakeFrames(e.conn, frames...) != nil {
		e.closed = true
		return
	}
	for range calls {
		if _, err := readFakeFrame(e.conn); err != nil {
			e.closed = true
			return
		}
	}
}

// lose closes the connection in the middle of the event.
func (e *fakeEvent) lose() { e.closed = true }

// readFakeFrame reads one frame.
func readFakeFrame(r io.Reader) ([]byte, error) {
	var size uint32
	if err := binary.Read(r, binary.LittleEndian, &size); err != nil {
		return nil, err
	}
	frame := make([]byte, size)
	_, err := io.ReadFull(r, frame)
	return frame, err
}

// writeFakeFrames writes frames in one write.
func writeFakeFrames(w io.Writer, frames ...[]byte) error {
	var out []byte
	for _, frame := range frames {
		out = appendFrame(out, frame)
	}
	_, err := w.Write(out)
	return err
}

// mustMarshal encodes a message, or panics.
func mustMarshal(m proto.Message) []byte {
	b, err := proto.Marshal(m)
	if err != nil {
		panic(err)
	}
	return b
}

// setHeadersCall returns a call of kong.response.set_headers.
func setHeadersCall(headers map[string]any) question {
	return question{"kong.response.set_headers", encodeStruct(headers)}
}

// exitWith returns a call of kong.response.exit.
func exitWith(status int, body string, headers map[string]any) question {
	b := protowire.AppendVarint(protowire.AppendTag(nil, 1, protowire.VarintType), uint64(status))
	b = protowire.AppendString(protowire.AppendTag(b, 2, protowire.BytesType), body)
	return question{"kong.response.exit", appendNested(b, 3, encodeStruct(headers))}
}

// recInfo returns the info of the recording plugin whose transcripts are in testdata.
func recInfo(t testing.TB) *PluginInfo {
	t.Helper()
	info, err := ParsePluginInfo([]byte(recDump))
	require.NoError(t, err)
	return info
}

var recDump = fmt.Sprintf(`{"Protocol": "ProtoBuf:1", "SocketPath": "", "Plugins": [
	{"Name": "rec", "Phases": ["access"], "Version": "1.0", "Priority": 912, "Schema": %s}]}`, recSchema)

const recSchema = `{"name": "rec", "fields": [{"config": {"type": "record", "required": true, "fields": [
	{"case": {"type": "string"}}, {"set": {"type": "boolean", "default": false}},
	{"exit": {"type": "boolean", "default": false}},
	{"ask": {"type": "array", "default": [], "elements": {"type": "string"}}},
	{"secret": {"type": "string", "referenceable": true}}, {"n": {"type": "number"}}]}}]}`
