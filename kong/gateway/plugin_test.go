package gateway

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

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
	if got.status != http.StatusGatewayTimeout || at(entry, "source") != "kong" ||
		at(entry, "service.read_timeout") != 50.0 {
		t.Errorf("status %d, entry %v", got.status, entry)
	}
}
