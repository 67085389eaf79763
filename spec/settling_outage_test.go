package spec

import (
	"net/http"
	"strconv"
	"testing"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/await"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/redistest"
)

func TestAfterAnOutageRequestsAreChargedWhatTheyReallyUsed(t *testing.T) {
	t.Parallel()
	for _, mode := range []string{"open", "local"} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			server := redistest.Single(t)
			store := "strategy: redis, fail_mode: " + mode + ", local_share_pct: 100, degraded_header: true, " +
				"redis: {socket: " + server.Socket + ", " + patience + "}"
			b := budget{node: start(t, settlingDeck(store, `{name: budget, scope: tenant, limit: 100000,
				window_size: 31536000, algorithm: fixed_window, settle: {sources: [{from: header.X-Tokens-Used}],
				reserve: 100, refund_on: [503]}}`), settling)}
			if left := b.left(100); left != 100_000 {
				t.Fatalf("%d tokens are left at the start", left)
			}
			server.Kill()
			for range 5 { // of another tenant: the first ones may be lost, which leaves their charges unknown
				b.sent++
				b.node.get("/answer?header=X-Tokens-Used:0", "apikey", "alice")
			}
			for _, query := range []string{
				"header=X-Tokens-Used:30", "header=X-Tokens-Used:250", "header=X-Tokens-Used:0", "header=X-Tokens-Used:100",
				"status=503&header=X-Tokens-Used:30", "header=X-Tokens-Used:40", "size=1",
			} {
				a := b.get("/answer?" + query)
				if got := a.Header.Get("X-RateLimit-Degraded"); got != "budget="+mode || a.Status == http.StatusTooManyRequests {
					t.Fatalf("%s: %d, decided by %q", query, a.Status, got)
				}
			}
			server.Restart(t)
			// A request that is admitted without Redis keeps its reservation if it settles after it was charged.
			await.That(t, "an answer of Redis to another tenant", func() bool {
				b.sent++
				return b.node.get("/answer?header=X-Tokens-Used:0", "apikey", "alice").Header.Get("X-RateLimit-Degraded") == ""
			})
			const used = 30 + 250 + 0 + 100 + 0 + 40 + 100 // the last one has no header
			await.That(t, "the charge of what the requests used", func() bool {
				a := b.get("/answer?header=X-Tokens-Used:0")
				return a.Header.Get("X-RateLimit-Degraded") == "" &&
					a.Header.Get("X-RateLimit-Remaining") == strconv.Itoa(100_000-used-100)
			})
		})
	}
}
