package gateway

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/leaktest"
)

// TestMain runs the tests. Under the name of a link to the test binary it runs the plugin server that they start.
func TestMain(m *testing.M) {
	if name := filepath.Base(os.Args[0]); strings.HasPrefix(name, "plugin-") {
		os.Exit(runPluginProcess(name, os.Args[1:]))
	}
	leaktest.Main(m)
}

// pluginBinary links the test binary to the name of a kind of plugin process.
func pluginBinary(t *testing.T, kind string) string {
	t.Helper()
	self, err := os.Executable()
	require.NoError(t, err)
	link := filepath.Join(t.TempDir(), "plugin-"+kind)
	require.NoError(t, os.Symlink(self, link))
	return link
}

// runPluginProcess runs a kind of plugin server and returns its exit code.
func runPluginProcess(name string, args []string) int {
	if len(args) == 1 && args[0] == "-dump-log" {
		fmt.Println(strings.NewReplacer(`"rec"`, `"rec-log"`, accessPhase, logPhase).Replace(recDump))
		return 0
	}
	if len(args) == 1 && args[0] == "-dump" {
		if name == "plugin-broken" {
			fmt.Fprintln(os.Stderr, "dump failed")
			return 3
		}
		fmt.Println(recDump)
		return 0
	}
	fmt.Printf("environment of %d\n", len(os.Environ()))
	fmt.Fprintln(os.Stderr, "arguments", strings.Join(args, " "))
	if name == "plugin-silent" {
		select {}
	}
	path := filepath.Join(args[1], name+".socket")
	os.Remove(path)
	listener, err := net.Listen("unix", path)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	if name == "plugin-two" {
		logs, err := net.Listen("unix", filepath.Join(args[1], "rec-log.socket"))
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		serveFake(logs, func(e *fakeEvent) {
			answers, err := e.ask(
				question{"kong.response.get_status", nil}, question{"kong.ctx.shared.get", encodeString("k")},
			)
			if err == nil {
				fmt.Printf("logged %x\n", answers)
				e.end()
			}
		})
	}
	serveFake(listener, func(e *fakeEvent) {
		answers, err := e.ask(question{"kong.request.get_header", encodeString("x-die")})
		if err == nil && len(answers[0]) > 0 {
			os.Exit(9)
		}
		e.end(
			question{"kong.ctx.shared.set", kv("k", "v")},
			setHeadersCall(map[string]any{"X-PID": fmt.Sprint(os.Getpid())}),
		)
	}).done.Wait()
	return 0
}

// logLines is a log that tests can read.
type logLines struct {
	onLine func(line string)
	mu     sync.Mutex
	text   strings.Builder
}

func (l *logLines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.onLine != nil {
		l.onLine(string(p))
	}
	return l.text.Write(p)
}

func (l *logLines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

func (l *logLines) logger() *slog.Logger {
	return slog.New(slog.NewTextHandler(l, &slog.HandlerOptions{Level: slog.LevelDebug}))
}

// deckConfig parses a decK document.
func deckConfig(t testing.TB, document string) *Config {
	t.Helper()
	config, err := ParseConfig([]byte("_format_version: \"3.0\"\n" + document))
	require.NoError(t, err)
	return config
}

// start starts a gateway. The end of the test closes it.
func start(t testing.TB, options Options) *Gateway {
	t.Helper()
	g, err := New(options)
	require.NoError(t, err)
	require.NoError(t, g.Start(context.Background()))
	t.Cleanup(func() {
		if err := g.Close(); err != nil {
			t.Error(err)
		}
	})
	return g
}

// withFake starts a gateway whose plugin "rec" the test serves.
func withFake(t testing.TB, document string, onEvent func(*fakeEvent)) (*Gateway, *fakePlugin) {
	t.Helper()
	fake := newFakePlugin(t, onEvent)
	return start(t, Options{
		Config: deckConfig(t, document), Servers: []PluginServer{{Info: recInfo(t), Socket: fake.socket()}},
	}), fake
}

// answer holds a response with its header lines in their order.
type answer struct {
	status int
	header http.Header
	lines  []string
	body   string
}

// send sends the lines of a request on a new connection and reads the response.
func send(t testing.TB, g *Gateway, lines ...string) answer {
	t.Helper()
	conn, err := net.Dial("tcp", strings.TrimPrefix(g.URL(), "http://"))
	require.NoError(t, err)
	defer conn.Close()
	if len(lines) == 1 {
		lines = append(lines, "Host: 127.0.0.1:8000")
	}
	request := strings.Join(append(lines, "", ""), "\r\n")
	if _, err := io.WriteString(conn, request); err != nil {
		t.Fatal(err)
	}
	var raw strings.Builder
	response, err := http.ReadResponse(bufio.NewReader(io.TeeReader(conn, &raw)), nil)
	if err != nil {
		t.Fatalf("%v in %q", err, raw.String())
	}
	body, err := io.ReadAll(response.Body)
	require.NoError(t, err)
	head, _, _ := strings.Cut(raw.String(), "\r\n\r\n")
	return answer{response.StatusCode, response.Header, strings.Split(head, "\r\n")[1:], string(body)}
}

// named returns the header lines of one name, in their spelling.
func (a answer) named(name string) []string {
	var out []string
	for _, line := range a.lines {
		if key, _, _ := strings.Cut(line, ":"); strings.EqualFold(key, name) {
			out = append(out, line)
		}
	}
	return out
}
