package spec

import (
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/await"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/kong/gateway"
)

// hostileDeck is settlingDeck with a budget of 100,000 tokens, a reservation of 100 and one more plugin for all.
func hostileDeck(store, source, plugin string) string {
	return settlingDeck(store, `{name: budget, scope: tenant, limit: 100000, window_size: 31536000,
		algorithm: fixed_window, settle: {sources: [{from: `+source+`}], reserve: 100}}`) +
		"\nplugins: [{name: " + plugin + "}]"
}

// wantSound fails the test if Kong had to replay an event, or the plugin's process has ended or panicked.
func (b *budget) wantSound(process int) {
	b.t.Helper()
	if n := b.Counters().Replays(); n > 0 || b.PluginPID() != process || strings.Contains(b.log.String(), "panicked") {
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
			await.That(t, "the log phase", func() bool { return b.Counters().LogEvents() >= b.sent })
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
		await.That(t, "the victim's log phase", func() bool { return b.Counters().LogEvents() >= b.sent })
		if alice := use("alice", 0); alice != 99_000 {
			t.Errorf("%d tokens are left to the victim after its end: its reservation was settled twice", alice)
		}
		b.wantSound(process)
	})
}
