package gateway

import (
	"bufio"
	"encoding/json"
	"os"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestEveryRecordedRequestLineIsAnsweredAsByARealKong(t *testing.T) {
	var seen []string
	onEvent := func(e *fakeEvent) {
		answers, err := e.ask(
			question{"kong.request.get_path", nil}, question{"kong.nginx.get_var", encodeString("request")},
		)
		if err != nil {
			return
		}
		for _, a := range answers {
			s, _ := decodeString(a)
			seen = append(seen, s)
		}
		e.end()
	}
	g, _ := withFake(t, `
services:
- {name: up, host: echo.internal, routes: [{name: norm, paths: [/norm], plugins: [{name: rec}]}]}
`, onEvent)
	file, err := os.Open("testdata/paths.jsonl")
	require.NoError(t, err)
	defer file.Close()
	rows := 0
	for lines := bufio.NewScanner(file); lines.Scan(); rows++ {
		var row struct {
			RequestLine   string `json:"request_line"`
			Status        int
			ReachedPlugin bool   `json:"reached_plugin"`
			GetPath       string `json:"get_path"`
			GetVarRequest string `json:"get_var_request"`
		}
		require.NoError(t, json.Unmarshal(lines.Bytes(), &row))
		seen = nil
		got := send(t, g, row.RequestLine)
		if got.status != row.Status || (seen != nil) != row.ReachedPlugin {
			t.Errorf("%s: status %d, reached %v", row.RequestLine, got.status, seen != nil)
		}
		if row.ReachedPlugin && (seen[0] != row.GetPath || seen[1] != row.GetVarRequest) {
			t.Errorf("%s: plugin saw %q", row.RequestLine, seen)
		}
	}
	if rows < 30 {
		t.Errorf("only %d rows", rows)
	}
}

func TestBadTargetsNeverReachAPlugin(t *testing.T) {
	g, _ := withFake(t, oneRoute, func(e *fakeEvent) { e.end() })
	for _, line := range []string{
		"GET /../x HTTP/1.1", "GET /a%00 HTTP/1.1", "GET /a%2f..%2f..%2f HTTP/1.1", "OPTIONS * HTTP/1.1",
	} {
		if got := send(t, g, line); got.status != 400 {
			t.Errorf("%s: status %d", line, got.status)
		}
	}
	if n := g.Counters().Questions(); n != 0 || g.counters.starts.Load() != 0 {
		t.Errorf("%d questions", n)
	}
}

func TestARouteForHTTPSOnlyRequiresHTTPS(t *testing.T) {
	g := start(t, Options{Config: deckConfig(t, `
services:
- {name: echo, host: echo.internal, routes: [{name: a, paths: [/a], protocols: [https]}]}
`)})
	if got := send(t, g, "GET /a HTTP/1.1"); got.status != 426 || got.header.Get("Upgrade") == "" {
		t.Errorf("%d %v", got.status, got.lines)
	}
}

func TestTheServiceGetsTheNormalisedPathAndTheMethod(t *testing.T) {
	g := start(t, Options{Config: deckConfig(t, `
services:
- {name: echo, host: echo.internal, routes: [{name: c, paths: [/c], strip_path: false, methods: [PURGE, GET]}]}
`)})
	got := send(t, g, "PURGE //c/%7Ex? HTTP/1.1", "Host: h.test").echo(t)
	if got.Path != "/c/~x" || got.Host != EchoHost || got.Method != "PURGE" {
		t.Errorf("%+v", got)
	}
}

func TestARouteWithoutAServiceIsUnavailable(t *testing.T) {
	g := start(t, Options{Config: deckConfig(t, "routes: [{name: alone, paths: [/alone]}]")})
	if got := send(t, g, "GET /alone HTTP/1.1"); got.status != 503 {
		t.Errorf("status %d", got.status)
	}
}
