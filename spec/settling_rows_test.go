package spec

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/await"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/kong/gateway"
)

// ending is a way in which a request of a limit that settles ends. The limit has reserved 100 tokens for it.
type ending struct {
	name    string
	path    string // of the upstream; the first segment names the service
	uses    string // what all sources say; "": nothing
	headers []string
	status  int // 0: the client has left
	leaves  bool
	charged int
}

var endings = []ending{
	{name: "an answer costs what it used", path: "/up", uses: "30", status: 200, charged: 30},
	{name: "an answer may cost more than it reserved", path: "/up", uses: "250", status: 200, charged: 250},
	{name: "an answer that used nothing is free", path: "/up", uses: "0", status: 200, charged: 0},
	{name: "an answer that does not say what it used costs its reservation", path: "/up", status: 200, charged: 100},
	{name: "a slow answer in chunks is settled after its end", path: "/up/parts", uses: "70", status: 200, charged: 70},
	{name: "an error of the upstream costs what it used", path: "/up?status=500", uses: "30", status: 500, charged: 30},
	{name: "an upstream that limits too costs what it used", path: "/up?status=429", uses: "30", status: 429, charged: 30},
	{name: "a status of refund_on is free", path: "/up?status=503", uses: "30", status: 503, charged: 0},
	{name: "an upstream that cannot be reached is free", path: "/gone", uses: "30", status: 502, charged: 0},
	{name: "an upstream that times out is free", path: "/late/stuck", uses: "30", status: 504, charged: 0},
	{
		name: "a client that leaves in the body pays what the request used", path: "/up/endless", uses: "30",
		leaves: true, charged: 30,
	},
	{
		name: "a client that leaves before the answer pays the reservation", path: "/up/stuck", uses: "30",
		leaves: true, charged: 100,
	},
	{
		name: "a request that is denied is free", path: "/up", uses: "30", headers: []string{"X-Max-Tokens", "100000"},
		status: 429, charged: 0,
	},
	{
		name: "a request that key-auth denies is free", path: "/up", uses: "30", headers: []string{"apikey", "wrong"},
		status: 401, charged: 0,
	},
	{name: "a request without a route is free", path: "/nowhere", uses: "30", status: 404, charged: 0},
	{name: "a request that another plugin answers is free", path: "/ended", uses: "30", status: 418, charged: 0},
}

// rowSources are the sources of the limits, one limit for each. The tenant has a bucket of each.
var rowSources = map[string]string{
	"header": "header.X-Tokens-Used", "log": "log.ai.*.usage.total_tokens", "shared": "shared.tokens",
}

// reporting returns a plugin of Kong's that says what a request uses: in the log, as ai-proxy does, and in
// kong.ctx.shared.
func reporting(t *testing.T) gateway.Plugin {
	t.Helper()
	return lateInAccess(t, "reporting", func(c *gateway.PluginCall) {
		if tokens, err := strconv.ParseFloat(c.RequestHeader("X-Uses"), 64); err == nil {
			c.SetSerializeValue("ai.proxy.usage.total_tokens", tokens)
			c.SetShared("tokens", tokens)
		}
	})
}

// rowsDeck has, for each source, the routes /SERVICE/SOURCE with a limit of 100,000 tokens. upstream is the URL of the
// services.
func rowsDeck(store, upstream string) string {
	services := map[string][]string{}
	for source, from := range rowSources {
		plugins := fmt.Sprintf(`{name: key-auth}, {name: tenant-rate-limiting, config: {%s,
			trusted_headers: [X-Max-Tokens], tiers: [{name: a, limits: [{name: by-%s, scope: tenant, limit: 100000,
			window_size: 31536000, algorithm: fixed_window, settle: {sources: [{from: %s}], reserve: 100,
			refund_on: [503], reserve_header: X-Max-Tokens, reserve_max: 100000}}]}]}}`, store, source, from)
		for _, service := range []string{"up", "late", "gone"} {
			services[service] = append(services[service],
				fmt.Sprintf("{name: %s-%s, paths: [/%[1]s/%[2]s], plugins: [%[3]s]}", service, source, plugins))
		}
		services["up"] = append(services["up"], fmt.Sprintf("{name: ended-%s, paths: [/ended/%[1]s], plugins: [%[2]s, "+
			"{name: request-termination, config: {status_code: 418}}]}", source, plugins))
	}
	return fmt.Sprintf(`_format_version: "3.0"
services:
- {name: up, url: %q, routes: [%s]}
- {name: late, url: %[1]q, read_timeout: 200, routes: [%[3]s]}
- {name: gone, url: "http://127.0.0.1:1", routes: [%[4]s]}
plugins: [{name: tenant-rate-settling}, {name: reporting}]%[5]s`,
		upstream, strings.Join(services["up"], ", "), strings.Join(services["late"], ", "),
		strings.Join(services["gone"], ", "), consumers)
}

// rowsUpstream is the upstream of rowsDeck.
type rowsUpstream struct {
	arrived chan struct{} // a request that gets no answer has arrived
	next    chan struct{} // the next chunk may be sent
}

// ServeHTTP answers as the path says, and says in a header what the request uses.
func (u *rowsUpstream) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if uses := r.Header.Get("X-Uses"); uses != "" {
		w.Header().Set("X-Tokens-Used", uses)
	}
	part := func() {
		if _, err := io.WriteString(w, "part"); err == nil {
			w.(http.Flusher).Flush()
		}
	}
	switch r.URL.Path {
	case "/stuck":
		u.arrived <- struct{}{}
		<-r.Context().Done()
	case "/endless":
		part()
		<-r.Context().Done()
	case "/parts":
		for range 3 {
			part()
			<-u.next
		}
	default:
		gateway.ServeAnswer(w, r)
	}
}

// rows sends requests to rowsDeck.
type rows struct {
	*node
	upstream *rowsUpstream
	sent     int64
}

// end sends a request to a service's route of a source, reads its end, and waits until its log phase is over. It
// returns the status, or 0 if the client has left.
func (r *rows) end(e *ending, source string) int {
	r.t.Helper()
	service, rest, found := strings.Cut(strings.TrimPrefix(e.path, "/"), "/")
	if found {
		rest = "/" + rest
	}
	service, query, _ := strings.Cut(service, "?")
	ctx, leave := context.WithCancel(context.Background())
	defer leave()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, r.URL()+"/"+service+"/"+source+rest+"?"+query, nil)
	require.NoError(r.t, err)
	request.Header.Set("apikey", "beth")
	request.Header.Set("X-Uses", e.uses)
	for i := 0; i+1 < len(e.headers); i += 2 {
		request.Header.Set(e.headers[i], e.headers[i+1])
	}
	r.sent++
	defer await.That(r.t, e.name+": the log phase", func() bool { return r.Counters().LogEvents.Load() >= r.sent })
	if rest == "/stuck" {
		go func() {
			if <-r.upstream.arrived; e.leaves {
				leave()
			}
		}()
	}
	response, err := client.Do(request)
	switch {
	case e.leaves && errors.Is(err, context.Canceled):
		return 0
	case err != nil:
		r.t.Fatalf("%s: %v", e.name, err)
	}
	defer response.Body.Close()
	if !e.leaves {
		return r.readAll(e, response)
	}
	if _, err := io.ReadFull(response.Body, make([]byte, len("part"))); err != nil {
		r.t.Fatalf("%s: %v", e.name, err)
	}
	leave()
	return 0
}

// readAll reads the body, chunk by chunk if it comes slowly, and returns the status.
func (r *rows) readAll(e *ending, response *http.Response) int {
	r.t.Helper()
	for strings.HasSuffix(e.path, "/parts") {
		if _, err := io.ReadFull(response.Body, make([]byte, len("part"))); err != nil {
			break // after the last one
		}
		r.upstream.next <- struct{}{}
	}
	if _, err := io.Copy(io.Discard, response.Body); err != nil {
		r.t.Fatalf("%s: %v", e.name, err)
	}
	return response.StatusCode
}

// left returns what is left of a source's limit, by a request that reserves 100 tokens and uses none.
func (r *rows) left(source string) int {
	r.t.Helper()
	r.sent++
	a := r.get("/up/"+source, "apikey", "beth", "X-Uses", "0")
	await.That(r.t, "the log phase", func() bool { return r.Counters().LogEvents.Load() >= r.sent })
	left, err := strconv.Atoi(a.Header.Get("X-RateLimit-Remaining"))
	if err != nil {
		r.t.Fatalf("%d %v %s", a.Status, a.Header, a.Body)
	}
	return left + 100
}

func TestEachEndOfARequestCostsWhatItsRuleSays(t *testing.T) {
	t.Parallel()
	inStores(t, func(t *testing.T, store string) {
		up := &rowsUpstream{arrived: make(chan struct{}), next: make(chan struct{})}
		upstream := httptest.NewServer(up)
		t.Cleanup(upstream.Close)
		inKong := within(reporting(t), requestTermination(t))
		r := rows{node: start(t, rowsDeck(store, upstream.URL), settling, inKong), upstream: up}
		for source := range rowSources {
			left := r.left(source)
			if left != 100_000 {
				t.Fatalf("%s: %d tokens are left before the first request", source, left)
			}
			for _, e := range endings {
				if status := r.end(&e, source); status != e.status {
					t.Errorf("%s: %s: status %d, want %d", source, e.name, status, e.status)
				}
				before := left
				if left = r.left(source); before-left != e.charged {
					t.Errorf("%s: %s: %d tokens were charged, want %d", source, e.name, before-left, e.charged)
				}
			}
		}
	})
}
