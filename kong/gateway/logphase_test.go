package gateway

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// withLog starts a gateway with the plugin "rec" in both phases on every route, and returns what kong.log.serialize
// answers in the log phase of each request.
func withLog(t *testing.T, document string, onAccess func(*fakeEvent)) (*Gateway, <-chan map[string]any) {
	t.Helper()
	entries := make(chan map[string]any, 10)
	fake := newFakePlugin(t, nil)
	fake.onEvent = func(e *fakeEvent) {
		if e.name == accessPhase {
			onAccess(e)
			return
		}
		answers, err := e.ask(question{"kong.log.serialize", nil})
		if err != nil {
			entries <- nil
			return
		}
		e.end()
		text, err := decodeString(answers[0])
		entry := map[string]any{}
		if err == nil {
			err = json.Unmarshal([]byte(text), &entry)
		}
		if err != nil {
			t.Error(err)
		}
		entries <- entry
	}
	info := recInfo(t)
	info.Phases = []string{accessPhase, logPhase}
	return start(t, Options{
		Config: deckConfig(t, document), Servers: []PluginServer{{Info: info, Socket: fake.socket()}},
	}), entries
}

// at returns a value of an entry by its path.
func at(entry map[string]any, path string) any {
	var value any = entry
	for _, name := range strings.Split(path, ".") {
		table, _ := value.(map[string]any)
		value = table[name]
	}
	return value
}

func pass(e *fakeEvent) { e.end() }

func TestALogEntryHasWhatTheUpstreamAnswered(t *testing.T) {
	document := strings.Replace(oneRoute, EchoHost, AnswerHost, 1)
	g, entries := withLog(t, document, pass)
	got := send(t, g, "GET /x?status=503&size=1000&header=X-Tokens:34&header=X-Tokens:35&delay=2ms HTTP/1.1", "Host: h")
	entry := <-entries
	if got.status != 503 || len(got.body) != 1000 {
		t.Errorf("%d with %d bytes", got.status, len(got.body))
	}
	for path, want := range map[string]any{
		"response.status": 503.0, "source": "upstream", "client_ip": "127.0.0.1",
		"request.uri":               "/x?status=503&size=1000&header=X-Tokens:34&header=X-Tokens:35&delay=2ms",
		"response.headers.x-tokens": []any{"34", "35"}, "response.headers.content-length": "1000",
		"response.headers.connection": "keep-alive",
	} {
		if value := at(entry, path); !reflect.DeepEqual(value, want) {
			t.Errorf("%s is %v, want %v", path, value, want)
		}
	}
	head := len("HTTP/1.1 503 Service Unavailable\r\nConnection: keep-alive\r\n\r\n")
	for name, values := range got.header {
		if name != "Date" { // net/http adds it, Kong does not
			head += len(name)*len(values) + len(": \r\n")*len(values) + len(strings.Join(values, ""))
		}
	}
	if size := at(entry, "response.size"); size != float64(head+1000) {
		t.Errorf("size %v, want %d of the head and 1000 of the body", size, head)
	}
	if proxy, ok := at(entry, "latencies.proxy").(float64); !ok || proxy < 2 {
		t.Errorf("the upstream took %v ms, want 2 at least", proxy)
	}
}

func TestAChunkedUploadAndAChunkedResponseAreCounted(t *testing.T) {
	upstream := httptest.NewServer(http.HandlerFunc(ServeAnswer))
	defer upstream.Close()
	document := strings.Replace(oneRoute, "host: "+EchoHost, "url: "+upstream.URL, 1)
	g, entries := withLog(t, document, pass)
	var sizes [2]float64
	for i, length := range []int{0, 5000} {
		body := io.MultiReader(strings.NewReader(strings.Repeat("x", length))) // of a length that is not given
		response, err := http.Post(g.URL()+fmt.Sprintf("/?chunks=5&size=%d", 10+i), "text/plain", body)
		require.NoError(t, err)
		received, err := io.ReadAll(response.Body)
		response.Body.Close()
		entry := <-entries
		if err != nil || len(received) != 10+i || at(entry, "response.headers.transfer-encoding") != "chunked" {
			t.Errorf("%v, %d bytes, entry %v", err, len(received), entry)
		}
		sizes[i] = at(entry, "request.size").(float64)
	}
	if got := sizes[1] - sizes[0]; got != 5000 {
		t.Errorf("an upload of 5000 bytes adds %v", got)
	}
}

func TestFailedCallsOfTheUpstreamAreInTheLogEntry(t *testing.T) {
	document := strings.Replace(oneRoute, "host: "+EchoHost, "{HOST}", 1)
	for host, want := range map[string]struct {
		status float64
		tries  []any
	}{
		"url: http://127.0.0.1:1": {502, []any{map[string]any{}}}, "host: nowhere.invalid": {503, []any{}},
	} {
		g, entries := withLog(t, strings.Replace(document, "{HOST}", host, 1), pass)
		send(t, g, "GET / HTTP/1.1")
		entry := <-entries
		if at(entry, "response.status") != want.status || at(entry, "source") != "kong" ||
			!reflect.DeepEqual(at(entry, "tries"), any(want.tries)) {
			t.Errorf("%s: %v", host, entry)
		}
	}
}

func TestOnlyGlobalPluginsLogARequestThatEndedBeforeThePlugins(t *testing.T) {
	scoped := `
services:
- {name: echo, host: echo.internal, routes: [{name: a, paths: [/a], protocols: [grpc], plugins: [{name: rec}]}]}
`
	for _, line := range []string{"GET /a HTTP/1.1", "GET /nowhere HTTP/1.1", "GET /%00 HTTP/1.1"} {
		g, entries := withLog(t, scoped+"plugins: [{name: rec}]", pass)
		got := send(t, g, line)
		entry := <-entries
		if at(entry, "response.status") != float64(got.status) || at(entry, "source") != "kong" {
			t.Errorf("%s: status %d, entry %v", line, got.status, entry)
		}
		g, entries = withLog(t, scoped, pass)
		send(t, g, line)
		if err := g.Close(); err != nil || len(entries) > 0 { // Close waits for log events
			t.Errorf("%s: %v, %d entries without a global plugin", line, err, len(entries))
		}
	}
}

func TestValuesThatPluginsAddAreNestedInTheLogEntry(t *testing.T) {
	set := func(key string, value any) question { return question{"kong.log.set_serialize_value", kv(key, value)} }
	g, entries := withLog(t, oneRoute, func(e *fakeEvent) {
		if _, err := e.ask(
			set("a.b", 1.0), set("a.c.d", "text"), set("request.headers.host", false), set("client_ip", "hidden"),
			set("list", []any{"x", false, "y"}),
		); err == nil {
			e.end()
		}
	})
	send(t, g, "GET / HTTP/1.1")
	entry := <-entries
	for path, want := range map[string]any{
		"a":         map[string]any{"b": 1.0, "c": map[string]any{"d": "text"}},
		"client_ip": "hidden", "request.headers.host": nil, "list": []any{"x"},
	} {
		if got := at(entry, path); !reflect.DeepEqual(got, want) {
			t.Errorf("%s is %v, want %v", path, got, want)
		}
	}
	g, entries = withLog(t, oneRoute, func(e *fakeEvent) { e.end(set("client_ip.x", 1.0)) })
	if send(t, g, "GET / HTTP/1.1"); <-entries != nil {
		t.Error("a value was added below a text; Kong raises an error")
	}
}

func TestSharedListsEndAtAHole(t *testing.T) {
	var got []byte
	g, _ := withFake(t, oneRoute, func(e *fakeEvent) {
		list := question{"kong.ctx.shared.set", kv("l", []any{"x", false, "y"})}
		answers, err := e.ask(list, question{"kong.ctx.shared.get", encodeString("l")})
		if err == nil {
			got = answers[1]
			e.end()
		}
	})
	if send(t, g, "GET / HTTP/1.1"); !bytes.Equal(got, encodeValue([]any{"x"})) {
		t.Errorf("answer %q", got)
	}
}

func TestAPluginWithBothPhasesHasOneInstance(t *testing.T) {
	g, entries := withLog(t, oneRoute, func(e *fakeEvent) { e.end(question{"kong.ctx.shared.set", kv("k", "v")}) })
	for range 3 {
		send(t, g, "GET / HTTP/1.1")
		<-entries
	}
	if starts := g.counters.Starts.Load(); starts > 2 { // one for each worker
		t.Errorf("%d starts", starts)
	}
}

func TestOneProcessServesTwoPlugins(t *testing.T) {
	binary := pluginBinary(t, "two")
	logged := make(chan string, 1)
	log := &logLines{onLine: func(line string) {
		if _, text, found := strings.Cut(line, "logged "); found {
			logged <- text
		}
	}}
	g := start(t, Options{
		Config: deckConfig(t, oneRoute+"plugins: [{name: rec-log}]"), Log: log.logger(),
		Servers: []PluginServer{
			{Binary: binary}, {Query: []string{binary, "-dump-log"}, Socket: "rec-log.socket"},
		},
	})
	if got := send(t, g, "GET / HTTP/1.1"); got.status != 200 || got.header.Get("X-PID") != fmt.Sprint(g.PluginPID()) {
		t.Errorf("%d %v", got.status, got.lines)
	}
	want := fmt.Sprintf("%x", [][]byte{{0x08, 0xc8, 0x01}, encodeValue("v")})
	if text := <-logged; !strings.Contains(text, want) {
		t.Errorf("the other plugin logged %q, want %q", text, want)
	}
}

func TestALogEventThatIsLostIsReplayedOnlySoLong(t *testing.T) {
	fake := newFakePlugin(t, (*fakeEvent).lose)
	info := recInfo(t)
	info.Phases = []string{logPhase}
	log := &logLines{}
	g, err := New(Options{
		Config: deckConfig(t, oneRoute), replayFor: time.Millisecond, Log: log.logger(),
		Servers: []PluginServer{{Info: info, Socket: fake.socket()}},
	})
	require.NoError(t, err)
	require.NoError(t, g.Start(context.Background()))
	got := send(t, g, "GET / HTTP/1.1")
	if err := g.Close(); err != nil {
		t.Error(err)
	}
	failed := strings.Contains(log.String(), "plugin failed in the log phase")
	if got.status != 200 || g.Counters().Replays.Load() == 0 || !failed {
		t.Errorf("status %d, %d replays, log %s", got.status, g.Counters().Replays.Load(), log)
	}
}
