package spec

import (
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/await"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/redistest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/kong/gateway"
)

// held is a node with a budget of 1,000 tokens in Redis, of which some requests to /chat have reserved 100 each: they
// are at the upstream, until they are let go, and use 30 each.
type held struct {
	budget
	redis   *redis.Client
	release chan struct{}
	answers chan answer
}

const heldRequests = 8

// hold starts a node, and requests whose reservations are recorded.
func hold(t *testing.T, change func(*gateway.Options)) *held {
	t.Helper()
	server := redistest.Single(t)
	return holdIn(t, server, settlingDeck("strategy: redis, redis: "+patientBlock(server), heldLimit), change)
}

const heldLimit = `{name: budget, scope: tenant, limit: 1000, window_size: 31536000, algorithm: fixed_window,
	settle: {sources: [{from: header.X-Tokens-Used}], reserve: 100}}`

// patientBlock returns the redis block of a server, or with a name that of a pool.
func patientBlock(server *redistest.Server, name ...string) string {
	fields := strings.ReplaceAll(strings.ReplaceAll(patience, `"`, ""), ":", ": ") + ", socket: " + server.Socket
	for _, n := range name {
		fields += ", name: " + n
	}
	return "{" + fields + "}"
}

// holdIn starts a node with a deck, and requests whose reservations are recorded in a Redis.
func holdIn(t *testing.T, server *redistest.Server, deck string, change func(*gateway.Options)) *held {
	t.Helper()
	h := &held{redis: server.Client(t), release: make(chan struct{}), answers: make(chan answer, heldRequests)}
	var arrived atomic.Int64
	h.node = start(t, deck, change, chatting(func(w http.ResponseWriter, _ *http.Request) {
		arrived.Add(1)
		<-h.release
		w.Header().Set("X-Tokens-Used", "30")
	}))
	for range heldRequests {
		go func() {
			a, err := h.send("GET", "/chat", "apikey", "beth")
			if err != nil {
				t.Error(err)
			}
			h.answers <- a
		}()
	}
	await.That(t, "the requests at their upstream", func() bool { return arrived.Load() == heldRequests })
	await.That(t, "the records of their reservations", func() bool { return len(h.records()) == heldRequests })
	return h
}

// records returns the keys of the records in Redis.
func (h *held) records() []string {
	return slices.DeleteFunc(h.redis.Keys(h.t.Context(), "rl:*:{r=*}").Val(), func(key string) bool {
		return strings.HasPrefix(h.redis.Get(h.t.Context(), key).Val(), "\x00") // claimed
	})
}

// end lets the requests go, and waits until their log phases are over.
func (h *held) end() {
	h.t.Helper()
	close(h.release)
	for range heldRequests {
		if a := <-h.answers; a.Status != http.StatusOK {
			h.t.Fatalf("%d %s", a.Status, a.Body)
		}
	}
	h.sent += heldRequests
	await.That(h.t, "the log phases", func() bool { return h.Counters().LogEvents.Load() >= h.sent })
}

// wantSettled waits until the requests are charged what they used, and checks that nothing changes after that.
func (h *held) wantSettled() {
	h.t.Helper()
	const want = 1000 - 30*heldRequests
	await.That(h.t, "the settlements", func() bool { return h.left(100) == want })
	if left, records := h.left(100), h.records(); left != want || len(records) > 1 {
		h.t.Errorf("%d tokens are left, with the records %q", left, records)
	}
}

func TestRequestsAreSettledAfterTheirPluginProcessWasKilled(t *testing.T) {
	t.Parallel()
	h := hold(t, settling)
	h.crash()
	h.end()
	h.wantSettled()
}

func TestRequestsAreSettledByTheProcessAfterAReload(t *testing.T) {
	t.Parallel()
	prefix := shortDir(t)
	first := startPlugin(t, prefix, "-metrics-listen", "off")
	h := hold(t, func(o *gateway.Options) {
		o.Servers = []gateway.PluginServer{
			{Info: pluginInfo(t), Socket: filepath.Join(prefix, "tenant-rate-limiting.socket")},
			{
				Query:  []string{plugin(), "-dump-settling"},
				Socket: filepath.Join(prefix, "tenant-rate-settling.socket"),
			},
		}
	})
	startPlugin(t, prefix, "-metrics-listen", "off") // as `kong reload` does, while the first one serves
	h.end()                                          // the first log events, which open connections to the second
	first.terminate()
	h.wantSettled()
}
