package gateway

import (
	"net/http"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	pb "github.com/Kong/go-pdk/server/kong_plugin_protocol"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/descriptorpb"
)

const oneRoute = `
services:
- name: echo
  host: echo.internal
  routes: [{name: all, paths: [/], plugins: [{name: rec}]}]
`

func TestEveryMethodOfTheProtocolIsAnswered(t *testing.T) {
	camel := regexp.MustCompile(`([a-z]\d*)([A-Z])`)
	methods := pb.File_server_kong_plugin_protocol_pluginsocket_proto.Services().ByName("Kong").Methods()
	seen := map[string]bool{}
	for i := range methods.Len() {
		m := methods.Get(i)
		name := "Kong." + strings.ReplaceAll(string(m.Name()), "_", ".")
		name = strings.ToLower(camel.ReplaceAllString(name, "${1}_${2}"))
		if option, ok := proto.GetExtension(m.Options().(*descriptorpb.MethodOptions), pb.E_MethodName).(string); ok && option != "" {
			name = option
		}
		seen[name] = true
		if pdkMethods[name] == nil {
			t.Errorf("no method %s", name)
		}
	}
	for name := range pdkMethods {
		if !seen[name] {
			t.Errorf("Kong knows no method %s", name)
		}
	}
}

func TestPipelinedQuestionsAreAnsweredInOrder(t *testing.T) {
	var paths []string
	g, _ := withFake(t, oneRoute, func(e *fakeEvent) {
		var questions []question
		for range 500 {
			questions = append(questions, question{"kong.request.get_path", nil}, question{"kong.request.get_method", nil})
		}
		answers, err := e.ask(questions...)
		for _, a := range answers {
			s, _ := readString(a)
			paths = append(paths, s)
		}
		if err == nil {
			e.end()
		}
	})
	if got := send(t, g, "GET /p HTTP/1.1"); got.status != 200 {
		t.Fatalf("status %d", got.status)
	}
	if len(paths) != 1000 || paths[998] != "/p" || paths[999] != "GET" {
		t.Errorf("%d answers, last %q", len(paths), paths[len(paths)-2:])
	}
	if c := g.Counters(); c.Questions() != 1000 || c.Replays() != 0 {
		t.Errorf("%d questions, %d replays", c.Questions(), c.Replays())
	}
}

func TestHeadersSetInAccessPrecedeTheUpstreamsOwn(t *testing.T) {
	fake := newFakePlugin(t, func(e *fakeEvent) {
		e.end(setHeaders(map[string]any{"x-both": "ours", "X-RateLimit-Limit": 5.0, "X-List": []any{"a", ""}}))
	})
	g := started(t, Options{
		Config: deckConfig(t, oneRoute), Servers: []PluginServer{{Info: recInfo(t), Socket: fake.socket()}},
		Upstreams: map[string]http.Handler{EchoHost: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("X-Both", "theirs")
			w.WriteHeader(503)
		})},
	})
	got := send(t, g, "GET / HTTP/1.1")
	if lines := strings.Join(got.named("x-both"), "|"); lines != "x-both: ours|x-both: theirs" {
		t.Errorf("both lines: %s", lines)
	}
	if lines := strings.Join(append(got.named("X-RateLimit-Limit"), got.named("x-list")...), "|"); lines !=
		"X-RateLimit-Limit: 5|X-List: a|X-List: " {
		t.Errorf("lines: %s", lines)
	}
	if got.status != 503 || g.Counters().ServerErrors() != 1 {
		t.Errorf("status %d, %d server errors", got.status, g.Counters().ServerErrors())
	}
}

func TestHeadersSetInAccessReachTheClientOnKongsOwnErrors(t *testing.T) {
	document := strings.Replace(oneRoute, "echo.internal", "127.0.0.1\n  port: 1", 1)
	g, _ := withFake(t, document, func(e *fakeEvent) { e.end(setHeaders(map[string]any{"X-Ours": "1"})) })
	got := send(t, g, "GET / HTTP/1.1")
	if got.status != 502 || len(got.named("X-Ours")) != 1 ||
		!strings.Contains(got.body, `"message":"An invalid response was received from the upstream server"`) {
		t.Errorf("%d %v %s", got.status, got.lines, got.body)
	}
}

func TestExitIsDeliveredExactly(t *testing.T) {
	var after error
	finished := make(chan struct{}, 1)
	g, _ := withFake(t, oneRoute, func(e *fakeEvent) {
		if _, err := e.ask(question{"kong.response.set_header", kv("X-Before", "1")}); err != nil {
			return
		}
		_, after = e.ask(exitWith(429, "no\xff", map[string]any{"X-RateLimit-Limit": "5"}), question{"kong.request.get_path", nil})
		finished <- struct{}{}
	})
	got := send(t, g, "GET / HTTP/1.1")
	<-finished
	if got.status != 429 || got.body != "no\xff" || len(got.named("Content-Type")) != 0 ||
		strings.Join(got.named("X-RateLimit-Limit"), "") != "X-RateLimit-Limit: 5" || len(got.named("X-Before")) != 1 {
		t.Errorf("%d %q %q", got.status, got.lines, got.body)
	}
	if after != errKongClosed {
		t.Errorf("a call after exit: %v", after)
	}
	if got := send(t, g, "GET / HTTP/1.1"); got.status != 429 || g.Counters().Replays() != 0 {
		t.Errorf("second request %d, %d replays", got.status, g.Counters().Replays())
	}
}

func kv(key string, value any) []byte {
	return appendNested(stringAnswer(key), entryValue, appendValue(nil, value))
}

func TestMethodsThatRaiseInKongEndInA500(t *testing.T) {
	for _, q := range []question{
		{"kong.no.such", nil},
		{"kong.log.serialize", nil},
		{"kong.response.get_status", nil},
		{"kong.service.response.get_raw_body", nil},
		{"kong.nginx.get_ctx", stringAnswer("plugins")},
		{"kong.request.get_headers", intAnswer(0)},
		{"kong.request.get_query", intAnswer(1001)},
		{"kong.request.get_query_arg", stringAnswer("flag")},
		{"kong.client.load_consumer", stringAnswer("alice")},
		{"kong.client.authenticate", nil},
		{"kong.response.set_status", intAnswer(600)},
		{"kong.response.exit", nil},
		{"kong.response.set_header", kv("X", map[string]any{"a": "b"})},
		{"kong.response.set_header", []byte{0xff}},
		{"kong.service.request.set_path", stringAnswer("x")},
		{"kong.service.request.set_scheme", stringAnswer("ftp")},
		{"kong.service.request.set_method", stringAnswer("BREW")},
		{"kong.service.set_target", mustMarshal(&pb.Target{Host: "h", Port: 70000})},
	} {
		var lost error
		finished := make(chan struct{})
		g, _ := withFake(t, oneRoute, func(e *fakeEvent) {
			_, lost = e.ask(q)
			close(finished)
		})
		got := send(t, g, "GET /?flag HTTP/1.1")
		<-finished
		if got.status != 500 || lost != errKongClosed || g.Counters().Replays() != 0 {
			t.Errorf("%s: status %d, plugin saw %v, %d replays", q.method, got.status, lost, g.Counters().Replays())
		}
		if !strings.Contains(got.body, `"message":"An unexpected error occurred"`) {
			t.Errorf("%s: body %s", q.method, got.body)
		}
	}
}

func TestALostInstanceIsStartedAnewAndTheEventReplayed(t *testing.T) {
	var events atomic.Int64
	g, fake := withFake(t, oneRoute, func(e *fakeEvent) {
		if events.Add(1) <= 3 {
			e.lose()
			return
		}
		e.end()
	})
	if got := send(t, g, "GET / HTTP/1.1"); got.status != 200 {
		t.Fatalf("status %d", got.status)
	}
	if g.Counters().Replays() != 3 || len(fake.startedConfigs()) != 4 {
		t.Errorf("%d replays, %d starts", g.Counters().Replays(), len(fake.startedConfigs()))
	}
}

func TestReplaysEndWithA500(t *testing.T) {
	fake := newFakePlugin(t, (*fakeEvent).lose)
	g := started(t, Options{
		Config: deckConfig(t, oneRoute), ReplayFor: 30 * time.Millisecond,
		Servers: []PluginServer{{Info: recInfo(t), Socket: fake.socket()}},
	})
	if got := send(t, g, "GET / HTTP/1.1"); got.status != 500 || g.Counters().Replays() == 0 {
		t.Errorf("status %d after %d replays", got.status, g.Counters().Replays())
	}
}

func TestAFailedStartIsA500WithoutReplay(t *testing.T) {
	g, fake := withFake(t, oneRoute, func(e *fakeEvent) { e.end() })
	fake.onStart = func(map[string]any) bool { return false }
	if got := send(t, g, "GET / HTTP/1.1"); got.status != 500 || g.Counters().Replays() != 0 {
		t.Errorf("status %d, %d replays", got.status, g.Counters().Replays())
	}
}

func TestASilentPluginIsA500(t *testing.T) {
	release := make(chan struct{})
	fake := newFakePlugin(t, func(e *fakeEvent) { <-release; e.lose() })
	g := started(t, Options{
		Config: deckConfig(t, oneRoute), EventTimeout: 20 * time.Millisecond,
		Servers: []PluginServer{{Info: recInfo(t), Socket: fake.socket()}},
	})
	got := send(t, g, "GET / HTTP/1.1")
	close(release)
	if got.status != 500 || g.Counters().Replays() != 0 {
		t.Errorf("status %d, %d replays", got.status, g.Counters().Replays())
	}
}

func TestAnAbsentPluginServerIsA500(t *testing.T) {
	g, fake := withFake(t, oneRoute, func(e *fakeEvent) { e.end() })
	fake.close()
	if got := send(t, g, "GET / HTTP/1.1"); got.status != 500 {
		t.Errorf("status %d", got.status)
	}
}
