package gateway

import (
	"bufio"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
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

// echoed holds the request that the built-in upstream saw.
type echoed struct {
	Method, Path, Query, Host string
	Headers                   map[string]string
}

// echo decodes the answer of the built-in upstream.
func (a answer) echo(t *testing.T) echoed {
	t.Helper()
	var e echoed
	if err := json.Unmarshal([]byte(a.body), &e); err != nil {
		t.Fatalf("%v in %s", err, a.body)
	}
	return e
}

func TestTheScriptedUpstreamAnswersWhatTheQuerySays(t *testing.T) {
	g := start(t, Options{Config: deckConfig(t, `
services: [{name: up, host: answer.internal, routes: [{name: all, paths: [/]}]}]`)})
	for query, want := range map[string]struct{ status, size int }{
		"":                              {200, 0},
		"status=418":                    {418, 0},
		"status=204":                    {204, 0},
		"size=3000&delay=1ms":           {200, 3000},
		"size=10&chunks=3&header=X-A:1": {200, 10},
	} {
		if got := send(t, g, "GET /?"+query+" HTTP/1.1"); got.status != want.status || len(got.body) != want.size {
			t.Errorf("%s: %d with %d bytes", query, got.status, len(got.body))
		}
	}
}

// innerInfo returns the info of a plugin without settings.
func innerInfo(t *testing.T, name string, priority int) *PluginInfo {
	t.Helper()
	info, err := ParsePluginInfo(fmt.Appendf(nil, `{"Protocol":"ProtoBuf:1","Plugins":[{"Name":%q,"Phases":["access"],
		"Priority":%d,"Schema":{"name":%[1]q,"fields":[{"config":{"type":"record","fields":[
		{"word":{"type":"string"}}]}}]}}]}`, name, priority))
	require.NoError(t, err)
	return info
}

// bareRoute is a route without plugins, to an upstream.
const bareRoute = "services: [{name: up, url: \"UPSTREAM\", routes: [{name: all, paths: [/]}]}]\n"

func TestAPluginWithinTheGatewayRunsByItsPriority(t *testing.T) {
	var order []string
	note := func(c *PluginCall) {
		order = append(order, fmt.Sprint(c.Config["word"], c.Shared("seen")))
		c.SetShared("seen", c.RequestHeader("X-Word"))
	}
	document := strings.Replace(bareRoute, "UPSTREAM", "http://"+EchoHost, 1) +
		"plugins: [{name: late, config: {word: b}}, {name: early, config: {word: a}}]"
	g := start(t, Options{Config: deckConfig(t, document), Plugins: []Plugin{
		{Info: innerInfo(t, "late", 1), Access: note}, {Info: innerInfo(t, "early", 2), Access: note},
	}})
	got := send(t, g, "GET / HTTP/1.1", "Host: h", "X-Word: w")
	if got.status != 200 || !slices.Equal(order, []string{"a<nil>", "bw"}) {
		t.Errorf("status %d, calls %q", got.status, order)
	}
}

func TestABodyFilterReadsWhatTheClientGets(t *testing.T) {
	upstream := httptest.NewServer(http.HandlerFunc(ServeAnswer))
	defer upstream.Close()
	for name, c := range map[string]struct {
		target string
		exits  bool
		want   string
	}{
		"an answer of the upstream":   {"/?size=3", false, "xxx"},
		"an answer in chunks":         {"/?size=3&chunks=3", false, "xxx"},
		"an answer without a body":    {"/?status=204", false, ""},
		"an answer of another plugin": {"/", true, "no"},
	} {
		var body strings.Builder
		var ends int
		filter := func(call *PluginCall, chunk []byte, last bool) {
			before, _ := call.Own["body"].(string)
			call.Own["body"] = before + string(chunk)
			if last {
				body.WriteString(before)
				ends++
			}
		}
		exit := func(call *PluginCall) {
			if c.exits {
				call.Exit(http.StatusForbidden, []byte("no"))
			}
		}
		document := strings.Replace(bareRoute, "UPSTREAM", upstream.URL, 1)
		g := start(t, Options{Config: deckConfig(t, document+"plugins: [{name: reads}, {name: exits}]"), Plugins: []Plugin{
			{Info: innerInfo(t, "reads", 1), BodyFilter: filter}, {Info: innerInfo(t, "exits", 2), Access: exit},
		}})
		got := send(t, g, "GET "+c.target+" HTTP/1.1")
		if err := g.Close(); err != nil { // after the end of the request
			t.Error(err)
		}
		if got.status == 500 || body.String() != c.want || ends != 1 {
			t.Errorf("%s: status %d, the filter got %q and %d ends, want %q", name, got.status, &body, ends, c.want)
		}
	}
}

func TestASlowUpstreamTimesOutAsItsServiceSays(t *testing.T) {
	upstream := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }))
	defer upstream.Close()
	document := strings.Replace(oneRoute, "host: "+EchoHost, "url: "+upstream.URL+"\n  read_timeout: 50", 1)
	g, entries := withLog(t, document, pass)
	got := send(t, g, "GET / HTTP/1.1")
	entry := <-entries
	if got.status != http.StatusGatewayTimeout || at(entry, "source") != "kong" {
		t.Errorf("status %d, entry %v", got.status, entry)
	}
}
