package gateway

import (
	"encoding/json"
	"strings"
	"testing"
)

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
	for query, fault := range map[string]string{
		"status=x":  `status: "x" is no number from 0`,
		"status=99": "status: 99 is not from 200 to 599",
		"size=-1":   `size: "-1" is no number from 0`,
		"delay=1":   "delay: ",
	} {
		if got := send(t, g, "GET /?"+query+" HTTP/1.1"); got.status != 400 || !strings.HasPrefix(got.body, fault) {
			t.Errorf("%s: %d %s", query, got.status, got.body)
		}
	}
}
