package spec

import (
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"testing"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/await"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/redistest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/kong/gateway"
)

// settling is an option of start: the companion plugin runs in the plugin server's process.
func settling(o *gateway.Options) {
	o.Servers = []gateway.PluginServer{
		{Binary: plugin(), Args: append([]string{"-metrics-listen", "off"}, patient...)},
		{Query: []string{plugin(), "-dump-settling"}, Socket: "tenant-rate-settling.socket"},
	}
}

// settlingDeck has the routes /answer, whose upstream answers as the query says, and /chat, each with both plugins. The
// store and the limit are in YAML flow style.
func settlingDeck(store, limit string) string {
	plugins := fmt.Sprintf(`plugins: [{name: key-auth}, {name: tenant-rate-settling},
      {name: tenant-rate-limiting, config: {%s, trusted_headers: [X-Max-Tokens],
        tiers: [{name: a, limits: [%s]}]}}]`, store, limit)
	return `_format_version: "3.0"
services:
- {name: answer, url: "http://answer.internal", routes: [{name: answer, paths: [/answer], ` + plugins + `}]}
- {name: chat, url: "http://chat.internal", routes: [{name: chat, paths: [/chat], ` + plugins + `}]}` + consumers
}

// chatting is an option of start: the upstream of /chat.
func chatting(upstream http.HandlerFunc) func(*gateway.Options) {
	return chattingAt("chat.internal", upstream)
}

// chattingAt is an option of start: an upstream.
func chattingAt(host string, upstream http.HandlerFunc) func(*gateway.Options) {
	return func(o *gateway.Options) { o.Upstreams = map[string]http.Handler{host: upstream} }
}

// budget reads what is left of a limit that settles, between requests whose ends have been settled.
type budget struct {
	*node
	sent int64 // requests, each of which has a log event
}

// get sends a request and waits until its log phase is over.
func (b *budget) get(path string, headers ...string) answer {
	b.t.Helper()
	b.sent++
	a := b.node.get(path, append(headers, "apikey", "beth")...)
	await.That(b.t, "the log phase", func() bool { return b.Counters().LogEvents() >= b.sent })
	return a
}

// left returns what is left of the limit, by a request that reserves tokens and uses none.
func (b *budget) left(reserves int) int {
	b.t.Helper()
	a := b.get("/answer?header=X-Tokens-Used:0")
	left, err := strconv.Atoi(a.Header.Get("X-RateLimit-Remaining"))
	if err != nil {
		b.t.Fatalf("%d %v %s", a.Status, a.Header, a.Body)
	}
	return left + reserves
}

// inStores runs a test with buckets in the process, and in a Redis.
func inStores(t *testing.T, test func(t *testing.T, store string)) {
	t.Helper()
	redis := redistest.Single(t)
	for name, store := range map[string]string{
		"local": "strategy: local",
		"redis": "strategy: redis, redis: {socket: " + redis.Socket + ", " +
			strings.ReplaceAll(strings.ReplaceAll(patience, `"`, ""), ":", ": ") + "}",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, store)
		})
	}
}
