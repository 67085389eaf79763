package gateway

import (
	"bytes"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/await"
)

const oneRoute = `
services:
- name: echo
  host: echo.internal
  routes: [{name: all, paths: [/], plugins: [{name: rec}]}]
`

func TestHeadersSetInAccessPrecedeThoseOfTheUpstream(t *testing.T) {
	fake := newFakePlugin(t, func(e *fakeEvent) {
		e.end(setHeadersCall(map[string]any{"x-both": "ours", "X-RateLimit-Limit": 5.0, "X-List": []any{"a", ""}}))
	})
	g := start(t, Options{
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
	if got.status != 503 || g.Counters().ServerErrors.Load() != 1 {
		t.Errorf("status %d, %d server errors", got.status, g.Counters().ServerErrors.Load())
	}
}

func TestHeadersSetInAccessReachTheClientOnKongsOwnErrors(t *testing.T) {
	document := strings.Replace(oneRoute, "echo.internal", "127.0.0.1\n  port: 1", 1)
	g, _ := withFake(t, document, func(e *fakeEvent) { e.end(setHeadersCall(map[string]any{"X-Ours": "1"})) })
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
		if _, err := e.ask(setHeadersCall(map[string]any{"X-Before": "1"})); err != nil {
			return
		}
		_, after = e.ask(
			exitWith(429, "no\xff", map[string]any{"X-RateLimit-Limit": "5"}), question{"kong.request.get_path", nil},
		)
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
	if got := send(t, g, "GET / HTTP/1.1"); got.status != 429 || g.Counters().Replays.Load() != 0 {
		t.Errorf("second request %d, %d replays", got.status, g.Counters().Replays.Load())
	}
}

func TestTheAnswersBeforeAnExitOrAnErrorReachThePlugin(t *testing.T) {
	for name, last := range map[string]question{
		"exit": exitWith(429, "no", nil), "error": {"kong.no.such", nil},
	} {
		t.Run(name, func(t *testing.T) {
			var answers [][]byte
			var after error
			finished := make(chan struct{})
			g, _ := withFake(t, oneRoute, func(e *fakeEvent) {
				defer close(finished)
				answers, after = e.ask(
					question{"kong.request.get_path", nil}, question{"kong.ctx.shared.set", kv("k", "v")}, last,
				)
			})
			send(t, g, "GET /p HTTP/1.1")
			<-finished
			if len(answers) != 2 || !bytes.Equal(answers[0], encodeString("/p")) || after != errKongClosed {
				t.Errorf("answers %q, then %v; want both that Kong writes before it closes", answers, after)
			}
		})
	}
}

// kv encodes a key and a value.
func kv(key string, value any) []byte {
	return appendNested(encodeString(key), entryValue, encodeValue(value))
}

func TestStoredValuesAreReadAsInKong(t *testing.T) {
	const set, get = "kong.ctx.shared.set", "kong.ctx.shared.get"
	var got []byte
	g, _ := withFake(t, oneRoute, func(e *fakeEvent) {
		answers, err := e.ask(
			question{set, kv("text", "kept")}, question{get, encodeString("text")},
			question{set, kv("no", false)}, question{get, encodeString("no")},
			question{set, append(encodeString("text"), "\x12\x02\x08\x00"...)}, question{get, encodeString("text")},
		)
		if err != nil {
			return
		}
		got = slices.Concat(answers...)
		e.end()
	})
	if got := send(t, g, "GET / HTTP/1.1"); got.status != 200 {
		t.Fatalf("status %d", got.status)
	}
	want := slices.Concat(encodeValue("kept"), encodeValue(nil), encodeValue("NULL_VALUE"))
	if !bytes.Equal(got, want) {
		t.Errorf("answers %q, want %q", got, want)
	}
}

func TestMethodsThatRaiseInKongAreA500(t *testing.T) {
	for _, q := range []question{
		{"kong.no.such", nil},
		{"kong.log.serialize", nil},
		{"kong.response.exit", nil},
		exitWith(429, "", map[string]any{"X": map[string]any{"a": "b"}}),
		setHeadersCall(map[string]any{"X": []any{true}}),
		{"kong.response.set_headers", []byte{0xff}},
	} {
		var lost error
		finished := make(chan struct{})
		g, _ := withFake(t, oneRoute, func(e *fakeEvent) {
			_, lost = e.ask(q)
			close(finished)
		})
		got := send(t, g, "GET / HTTP/1.1")
		<-finished
		if got.status != 500 || lost != errKongClosed || g.Counters().Replays.Load() != 0 {
			t.Errorf("%s: status %d, plugin saw %v, %d replays", q.method, got.status, lost, g.Counters().Replays.Load())
		}
		if !strings.Contains(got.body, `"message":"An unexpected error occurred"`) {
			t.Errorf("%s: body %s", q.method, got.body)
		}
	}
}

func TestALostInstanceIsStartedAnewAndTheEventReplayed(t *testing.T) {
	var events atomic.Int64
	fake := newFakePlugin(t, func(e *fakeEvent) {
		if events.Add(1) <= 3 {
			e.lose()
			return
		}
		e.end()
	})
	g := start(t, Options{
		Config: deckConfig(t, oneRoute), replayFor: await.Longest,
		Servers: []PluginServer{{Info: recInfo(t), Socket: fake.socket()}},
	})
	if got := send(t, g, "GET / HTTP/1.1"); got.status != 200 {
		t.Fatalf("status %d", got.status)
	}
	if g.Counters().Replays.Load() != 3 || len(fake.startedConfigs()) != 4 {
		t.Errorf("%d replays, %d starts", g.Counters().Replays.Load(), len(fake.startedConfigs()))
	}
}

func TestReplaysEndWithA500(t *testing.T) {
	fake := newFakePlugin(t, (*fakeEvent).lose)
	g := start(t, Options{
		Config: deckConfig(t, oneRoute), replayFor: time.Millisecond,
		Servers: []PluginServer{{Info: recInfo(t), Socket: fake.socket()}},
	})
	if got := send(t, g, "GET / HTTP/1.1"); got.status != 500 || g.Counters().Replays.Load() == 0 {
		t.Errorf("status %d after %d replays", got.status, g.Counters().Replays.Load())
	}
}

func TestAFailedStartIsA500WithoutReplay(t *testing.T) {
	g, fake := withFake(t, oneRoute, func(e *fakeEvent) { e.end() })
	fake.onStart = func(map[string]any) bool { return false }
	if got := send(t, g, "GET / HTTP/1.1"); got.status != 500 || g.Counters().Replays.Load() != 0 {
		t.Errorf("status %d, %d replays", got.status, g.Counters().Replays.Load())
	}
}

func TestASilentPluginIsA500(t *testing.T) {
	release := make(chan struct{})
	fake := newFakePlugin(t, func(e *fakeEvent) { <-release; e.lose() })
	g := start(t, Options{
		Config: deckConfig(t, oneRoute), eventTimeout: 20 * time.Millisecond,
		Servers: []PluginServer{{Info: recInfo(t), Socket: fake.socket()}},
	})
	got := send(t, g, "GET / HTTP/1.1")
	close(release)
	if got.status != 500 || g.Counters().Replays.Load() != 0 {
		t.Errorf("status %d, %d replays", got.status, g.Counters().Replays.Load())
	}
}

func TestAnAbsentPluginServerIsA500(t *testing.T) {
	g, fake := withFake(t, oneRoute, func(e *fakeEvent) { e.end() })
	fake.close()
	if got := send(t, g, "GET / HTTP/1.1"); got.status != 500 {
		t.Errorf("status %d", got.status)
	}
}
