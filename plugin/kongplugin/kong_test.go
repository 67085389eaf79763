package kongplugin

import (
	"bufio"
	"context"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	pb "github.com/Kong/go-pdk/server/kong_plugin_protocol"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/leaktest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/admit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/decision"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/limit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/policy"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/response"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

func TestMain(m *testing.M) {
	if socket := os.Getenv(noopSocket); socket != "" { // one of BenchmarkSocket's processes
		os.Exit(serveNoop(socket))
	}
	leaktest.Main(m)
}

// bucketsFunc is admit.Buckets as a function.
type bucketsFunc func(bounds []policy.Bound, statuses []decision.Status) error

func (f bucketsFunc) Take(_ context.Context, bounds []policy.Bound, statuses []decision.Status) error {
	return f(bounds, statuses)
}

// observerFunc is admit.Observer as a function.
type observerFunc func(*decision.Decision)

func (f observerFunc) Observe(d *decision.Decision) { f(d) }

// plenty admits everything.
func plenty(bounds []policy.Bound, statuses []decision.Status) error {
	for i := range bounds {
		statuses[i] = decision.Status{Status: limit.Status{Remaining: 7, Reset: 1_000_000}, Source: decision.Memory}
	}
	return nil
}

// nothing denies everything.
func nothing(bounds []policy.Bound, statuses []decision.Status) error {
	for i := range bounds {
		statuses[i] = decision.Status{Wait: 3 * limit.Second, Status: limit.Status{Reset: 3_000_000}, Source: decision.Memory}
	}
	return nil
}

// harness is a server under test, its socket and its log.
type harness struct {
	*Server
	t     testing.TB
	path  string
	paths atomic.Int64 // built and not released
	log   *lines
	stop  func() error
}

// lines is a log that can be waited for.
type lines struct{ ch chan string }

func (l *lines) Write(p []byte) (int, error) {
	select {
	case l.ch <- string(p):
	default:
	}
	return len(p), nil
}

func (l *lines) await(t *testing.T, part string) string {
	t.Helper()
	for {
		select {
		case line := <-l.ch:
			if strings.Contains(line, part) {
				return line
			}
		case <-time.After(10 * time.Second):
			t.Fatalf("no log line contains %q", part)
		}
	}
}

// otherListener makes connections that are no unix sockets, for all that the server can see.
type otherListener struct{ net.Listener }

func (l otherListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	return struct{ net.Conn }{c}, err
}

func serve(t testing.TB, buckets bucketsFunc, change func(*Options)) *harness {
	t.Helper()
	return serveOn(t, buckets, change, func(l net.Listener) net.Listener { return l })
}

// serveOn serves what is accepted by what wrap makes of a listener.
func serveOn(t testing.TB, buckets bucketsFunc, change func(*Options), wrap func(net.Listener) net.Listener) *harness {
	t.Helper()
	h := &harness{t: t, path: filepath.Join(t.TempDir(), "s"), log: &lines{make(chan string, 1000)}}
	options := Options{
		Name: schema.Name,
		Log:  slog.New(slog.NewJSONHandler(h.log, &slog.HandlerOptions{Level: slog.LevelDebug})),
		Build: func(config schema.Config, snapshot *policy.Plan) (*admit.Path, func(), error) {
			h.paths.Add(1)
			path := &admit.Path{Buckets: buckets, Renderer: response.New(config, nil), FailClosed: config.OnInternalError == schema.FailClosed}
			path.Policies.Store(snapshot)
			return path, func() { h.paths.Add(-1) }, nil
		},
	}
	if change != nil {
		change(&options)
	}
	h.Server = New(options)
	listener, err := net.Listen("unix", h.path)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- h.Serve(ctx, wrap(listener)) }()
	stopped := false
	h.stop = func() error {
		if stopped {
			return nil
		}
		stopped = true
		cancel()
		select {
		case err := <-served:
			return err
		case <-time.After(20 * time.Second):
			return errors.New("Serve did not return")
		}
	}
	t.Cleanup(func() {
		if err := h.stop(); err != nil {
			t.Error(err)
		}
	})
	return h
}

// kong is one connection of a Kong worker.
type kong struct {
	t        testing.TB
	net      net.Conn
	r        *bufio.Reader
	sequence int64
	answers  map[string][]byte // by method, or method=first argument
	asked    []string
	headers  map[string]string
	exit     *pb.ExitArgs

	frames frames // of fastEvent
	out    []byte
	start  int
}

func newKong(t testing.TB, c net.Conn) *kong {
	return &kong{t: t, net: c, r: bufio.NewReader(c), frames: newFrames(c), answers: map[string][]byte{}}
}

// writes is how many writes to sockets the server has done.
func (h *harness) writes() uint64 { return h.Counters().Writes.Load() }

func (h *harness) dial() *kong {
	h.t.Helper()
	c, err := net.Dial("unix", h.path)
	if err != nil {
		h.t.Fatal(err)
	}
	h.t.Cleanup(func() { c.Close() })
	return newKong(h.t, c)
}

func (k *kong) send(payload []byte) {
	k.t.Helper()
	if _, err := k.net.Write(appendFrame(nil, payload)); err != nil {
		k.t.Fatalf("send: %v", err)
	}
}

func (k *kong) receive() ([]byte, error) {
	if err := k.net.SetReadDeadline(time.Now().Add(20 * time.Second)); err != nil {
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

func (k *kong) call(m *pb.RpcCall) {
	k.t.Helper()
	k.sequence++
	m.Sequence = k.sequence
	frame, err := proto.Marshal(m)
	if err != nil {
		k.t.Fatal(err)
	}
	k.send(frame)
}

func (k *kong) returned() (*pb.RpcReturn, error) {
	frame, err := k.receive()
	if err != nil {
		return nil, err
	}
	var m pb.RpcReturn
	if err := proto.Unmarshal(frame, &m); err != nil {
		k.t.Fatalf("the return is not an RpcReturn: %v", err)
	}
	if m.Sequence != k.sequence {
		k.t.Fatalf("return of call %d, want %d", m.Sequence, k.sequence)
	}
	return &m, nil
}

// startInstance starts an instance; the config is JSON without what Kong adds.
func (k *kong) startInstance(seq int, config string) int32 {
	k.t.Helper()
	return k.startRaw([]byte(withSeq(seq, "plugin-1", config)))
}

func withSeq(seq int, plugin, config string) string {
	extra, _ := json.Marshal(map[string]any{"__seq__": seq, "__plugin_id": plugin, "__key__": "plugins:x", "__ws_id": "ws"})
	joined := strings.TrimSuffix(string(extra), "}")
	if rest := strings.TrimPrefix(strings.TrimSpace(config), "{"); rest != "}" {
		return joined + "," + rest
	}
	return joined + "}"
}

func (k *kong) startRaw(config []byte) int32 {
	k.t.Helper()
	k.call(&pb.RpcCall{Call: &pb.RpcCall_CmdStartInstance{CmdStartInstance: &pb.CmdStartInstance{Name: schema.Name, Config: config}}})
	m, err := k.returned()
	if err != nil {
		k.t.Fatalf("start: %v", err)
	}
	return m.GetInstanceStatus().GetInstanceId()
}

func (k *kong) close(id int32) {
	k.t.Helper()
	k.call(&pb.RpcCall{Call: &pb.RpcCall_CmdCloseInstance{CmdCloseInstance: &pb.CmdCloseInstance{InstanceId: id}}})
	if _, err := k.returned(); err != nil {
		k.t.Fatalf("close: %v", err)
	}
}

// event runs one event as Kong does: it works through the questions one after another, keeps the headers, and drops
// the connection on exit. The error is what ended the connection, if anything did.
func (k *kong) event(id int32) error {
	k.t.Helper()
	k.asked, k.headers, k.exit = nil, nil, nil
	k.call(&pb.RpcCall{Call: &pb.RpcCall_CmdHandleEvent{CmdHandleEvent: &pb.CmdHandleEvent{InstanceId: id, EventName: "access"}}})
	for {
		method, err := k.receive()
		if err != nil {
			return err
		}
		if len(method) == 0 {
			_, err := k.returned()
			return err
		}
		arguments, err := k.receive()
		if err != nil {
			return err
		}
		switch string(method) {
		case "kong.response.set_headers":
			k.headers = decodeHeaders(k.t, arguments)
			k.send(nil)
		case "kong.response.exit":
			k.exit = &pb.ExitArgs{}
			if err := proto.Unmarshal(arguments, k.exit); err != nil {
				k.t.Fatal(err)
			}
			return k.net.Close()
		default:
			name := string(method)
			if argument, err := decodeString(arguments, nil); err == nil && argument != "" {
				name += "=" + argument
			}
			k.asked = append(k.asked, name)
			k.send(k.answers[name])
		}
	}
}

func decodeHeaders(t testing.TB, arguments []byte) map[string]string {
	t.Helper()
	var s structpb.Struct
	if err := proto.Unmarshal(arguments, &s); err != nil {
		t.Fatal(err)
	}
	headers := map[string]string{}
	for name, value := range s.Fields {
		headers[name] = value.GetStringValue()
	}
	return headers
}

func encode(t *testing.T, m proto.Message) []byte {
	t.Helper()
	b, err := proto.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// recorded is one line of the transcript of a real Kong 3.9.3.
type recorded struct {
	N     int
	Conn  int
	Dir   string
	Label string
	Case  string
	EOF   bool
	Frame []byte
}

func transcript(t testing.TB) []recorded {
	t.Helper()
	file, err := os.Open("testdata/kong-3.9.3.jsonl")
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	var all []recorded
	for decoder := json.NewDecoder(file); ; {
		var line struct {
			recorded
			Frame string
		}
		switch err := decoder.Decode(&line); {
		case errors.Is(err, io.EOF):
			return all
		case err != nil:
			t.Fatal(err)
		}
		line.recorded.Frame, err = base64.StdEncoding.DecodeString(line.Frame)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, line.recorded)
	}
}

// answersOf are Kong's recorded answers in one case, by question.
func answersOf(t *testing.T, name string) map[string][]byte {
	answers := map[string][]byte{}
	for _, line := range transcript(t) {
		if question, ok := strings.CutPrefix(line.Label, "answer of "); ok && line.Case == name {
			answers[question] = line.Frame
		}
	}
	if len(answers) == 0 {
		t.Fatalf("the transcript has no case %s", name)
	}
	// nginx's variable of a header that came once, which was not recorded, holds what get_header answers.
	answers["kong.nginx.get_var=http_x_user_id"] = answers["kong.request.get_header=x-user-id"]
	delete(answers, "kong.request.get_header=x-user-id")
	return answers
}
