package spec

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/await"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/grpctest"
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
	await.That(b.t, "the log phase", func() bool { return b.Counters().LogEvents.Load() >= b.sent })
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

// hostileDeck is settlingDeck with a budget of 100,000 tokens, a reservation of 100 and one more plugin for all.
func hostileDeck(store, source, plugin string) string {
	return settlingDeck(store, `{name: budget, scope: tenant, limit: 100000, window_size: 31536000,
		algorithm: fixed_window, settle: {sources: [{from: `+source+`}], reserve: 100}}`) +
		"\nplugins: [{name: " + plugin + "}]"
}

// wantSound fails the test if Kong had to replay an event, or the plugin's process has ended or panicked.
func (b *budget) wantSound(process int) {
	b.t.Helper()
	panicked := strings.Contains(b.log.String(), "panicked")
	if n := b.Counters().Replays.Load(); n > 0 || b.PluginPID() != process || panicked {
		b.t.Errorf("%d events were replayed, the process %d is now %d", n, process, b.PluginPID())
	}
}

func TestAForgedIDOfAReservationSettlesNothing(t *testing.T) {
	t.Parallel()
	forged := map[string]any{
		"text": "tokens", "hex": strings.Repeat("0", 32), "more hex": strings.Repeat("f", 33), "empty": "",
		"bytes": "\xff\x00\n", "number": 7.0, "negative": -1.0, "true": true, "false": false, "missing": nil,
		"list": []any{"a", 1.0}, "table": map[string]any{"id": "a"}, "long": strings.Repeat("0", 1<<20),
		"longer than an answer": strings.Repeat("0", 5<<20),
	}
	inStores(t, func(t *testing.T, store string) {
		forges := lateInAccess(t, "forges", func(c *gateway.PluginCall) {
			if kind := c.RequestHeader("X-Forge"); kind != "" {
				c.SetShared("trl", forged[kind])
			}
		})
		b := budget{node: start(t, hostileDeck(store, "header.X-Tokens-Used", "forges"), settling, within(forges))}
		process := b.runningPID()
		for kind := range forged {
			before := b.left(100)
			if a := b.get("/answer?header=X-Tokens-Used:0", "X-Forge", kind); a.Status != http.StatusOK {
				t.Fatalf("%s: %d %s", kind, a.Status, a.Body)
			}
			if charged := before - b.left(100); charged != 100 {
				t.Errorf("an id that is %s: %d tokens were charged, want the reservation of 100", kind, charged)
			}
		}
		b.wantSound(process)
	})
}

func TestTheIDOfAnotherReservationReturnsNoMoreThanThatReserved(t *testing.T) {
	t.Parallel()
	inStores(t, func(t *testing.T, store string) {
		ids, answer := make(chan string, 1), make(chan struct{})
		var stolen string
		steals := lateInAccess(t, "steals", func(c *gateway.PluginCall) {
			switch c.RequestHeader("X-Role") {
			case "victim":
				id, _ := c.Shared("trl").(string)
				ids <- id
			case "thief":
				c.SetShared("trl", stolen)
			}
		})
		b := budget{node: start(t, hostileDeck(store, "header.X-Tokens-Used", "steals"), settling, within(steals),
			chatting(func(w http.ResponseWriter, _ *http.Request) {
				<-answer
				w.Header().Set("X-Tokens-Used", "70")
			}))}
		use := func(consumer string, tokens int) int {
			t.Helper()
			b.sent++
			a := b.node.get(fmt.Sprint("/answer?header=X-Tokens-Used:", tokens), "apikey", consumer)
			await.That(t, "the log phase", func() bool { return b.Counters().LogEvents.Load() >= b.sent })
			n, err := strconv.Atoi(a.Header.Get("X-RateLimit-Remaining"))
			if err != nil {
				t.Fatalf("%d %v %s", a.Status, a.Header, a.Body)
			}
			return n + 100
		}
		process := b.runningPID()
		use("alice", 1000) // so that tokens that are returned twice show
		var victim sync.WaitGroup
		victim.Go(func() {
			if a, err := b.send("GET", "/chat", "apikey", "alice", "X-Role", "victim"); err != nil || a.Status != 200 {
				t.Errorf("the victim: %d, %v", a.Status, err)
			}
		})
		stolen = <-ids
		for range 3 { // the first one settles the reservation, the others find none
			b.get("/answer?header=X-Tokens-Used:0", "X-Role", "thief")
		}
		if alice, beth := use("alice", 0), use("beth", 0); alice != 99_000 || beth != 100_000-3*100 {
			t.Errorf("%d and %d tokens are left, want the victim's reservation returned, and those of the thief kept", alice, beth)
		}
		close(answer)
		victim.Wait()
		b.sent++
		await.That(t, "the victim's log phase", func() bool { return b.Counters().LogEvents.Load() >= b.sent })
		if alice := use("alice", 0); alice != 99_000 {
			t.Errorf("%d tokens are left to the victim after its end: its reservation was settled twice", alice)
		}
		b.wantSound(process)
	})
}

// grpcCall is what the server of a gRPC call does.
type grpcCall struct {
	name            string
	header, trailer string // tokens that it says it has used
	fails           bool
	charged         int
}

var grpcCalls = []grpcCall{
	{name: "tokens in the header", header: "30", charged: 30},
	{name: "more tokens than were reserved", header: "170", charged: 170},
	{name: "no tokens", header: "0", charged: 0},
	{name: "tokens nowhere", charged: 100},
	{name: "tokens in the trailer, which Kong does not read", trailer: "30", charged: 100},
	{name: "a failure", header: "30", fails: true, charged: 30}, // its HTTP status is 200
}

// answersWith are options of a server whose calls all do what call says.
func answersWith(call *grpcCall) []grpc.ServerOption {
	tokens := func(value string) metadata.MD {
		if value == "" {
			return nil
		}
		return metadata.Pairs("X-Tokens-Used", value)
	}
	failure := func() error {
		if call.fails {
			return status.Error(codes.Unavailable, "try later")
		}
		return nil
	}
	return []grpc.ServerOption{
		grpc.UnaryInterceptor(func(ctx context.Context, request any, _ *grpc.UnaryServerInfo,
			next grpc.UnaryHandler,
		) (any, error) {
			err := errors.Join(grpc.SetHeader(ctx, tokens(call.header)), grpc.SetTrailer(ctx, tokens(call.trailer)))
			if err == nil {
				err = failure()
			}
			if err != nil {
				return nil, err
			}
			return next(ctx, request)
		}),
		grpc.StreamInterceptor(func(service any, stream grpc.ServerStream, _ *grpc.StreamServerInfo,
			next grpc.StreamHandler,
		) error {
			stream.SetTrailer(tokens(call.trailer))
			if err := errors.Join(stream.SetHeader(tokens(call.header)), failure()); err != nil {
				return err
			}
			return next(service, stream)
		}),
	}
}

// grpcBudget returns a config with a budget for all calls together.
func grpcBudget(limit string) string {
	return `{show_shared_limits: true, global: {limits: [{name: budget, scope: global, limit: ` + limit + `, window_size: 31536000,
		algorithm: fixed_window, settle: {sources: [{from: header.X-Tokens-Used}], reserve: 100, refund_on: [503]}}]}}`
}

// settlingGRPCDeck is grpcDeck with the companion plugin.
func settlingGRPCDeck(port int, config string) string {
	return strings.Replace(grpcDeck(port, config, ""), "plugins: []", "plugins: [{name: tenant-rate-settling}]", 1)
}

// calls sends gRPC calls to a node and waits for their log phases.
type calls struct {
	*node
	sent int64
}

// call returns the outcome of a call and what was left of the budget when it was decided.
func (c *calls) call(method string) (got grpctest.Result, left int) {
	c.t.Helper()
	c.sent++
	got = grpctest.Call(c.t, c.URL(), method)
	await.That(c.t, "the log phase", func() bool { return c.Counters().LogEvents.Load() >= c.sent })
	left, err := strconv.Atoi(strings.Join(got.Metadata["x-ratelimit-remaining"], ","))
	if err != nil {
		c.t.Fatalf("%+v: %v", got, err)
	}
	return got, left
}

func TestAGRPCCallIsChargedWhatItsHeaderSays(t *testing.T) {
	t.Parallel()
	for _, method := range []string{grpctest.Check, grpctest.Watch} {
		var call grpcCall
		server := grpctest.ServeHealth(t, answersWith(&call)...)
		c := calls{node: start(t, settlingGRPCDeck(server, grpcBudget("100000")), settling)}
		left := 100_000
		for _, call = range append(slices.Clone(grpcCalls), grpcCall{name: "the next one"}) {
			got, now := c.call(method)
			if now != left-100 {
				t.Fatalf("%s: before %s: %d tokens are left at access, want %d", method, call.name, now, left-100)
			}
			if failed := got.Code == codes.Unavailable; failed != call.fails {
				t.Errorf("%s: %s: %v", method, call.name, got.Code)
			}
			left -= call.charged
		}
	}
}
