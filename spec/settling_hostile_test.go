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

func TestALongLogEntryIsReadUpToOneMebibyte(t *testing.T) {
	t.Parallel()
	bloats := lateInAccess(t, "bloats", func(c *gateway.PluginCall) {
		length, _ := strconv.Atoi(c.RequestHeader("X-Bloat")) // 0 without the header
		c.SetSerializeValue("note", strings.Repeat("x", length))
		tokens, _ := strconv.ParseFloat(c.RequestHeader("X-Uses"), 64)
		c.SetSerializeValue("ai.proxy.usage.total_tokens", tokens)
	})
	inStores(t, func(t *testing.T, store string) {
		b := budget{node: start(t, hostileDeck(store, "log.ai.*.usage.total_tokens", "bloats"), settling, within(bloats))}
		process := b.runningPID()
		for _, c := range []struct {
			length, charged int
		}{
			{0, 30},
			{1<<20 - 16<<10, 30},
			{1 << 20, 100}, // with what else the entry has it is longer than is read
			{3 << 20, 100},
			{5 << 20, 100},
			{0, 30},
		} {
			before := b.left(100)
			b.get("/answer", "X-Bloat", strconv.Itoa(c.length), "X-Uses", "30")
			if charged := before - b.left(100); charged != c.charged {
				t.Errorf("%d bytes more in the log entry: %d tokens were charged, want %d", c.length, charged, c.charged)
			}
		}
		const together, times, entry = 4, 32, 1<<20 - 16<<10
		idle, before := peakMemory(t, process), b.left(100)
		for range times {
			var group sync.WaitGroup
			for range together {
				group.Go(func() {
					a, err := b.send("GET", "/answer", "apikey", "beth", "X-Bloat", strconv.Itoa(entry), "X-Uses", "30")
					if err != nil || a.Status != http.StatusOK {
						t.Errorf("%d, %v", a.Status, err)
					}
				})
			}
			group.Wait()
			b.sent += together
			await.That(t, "the log phases", func() bool { return b.Counters().LogEvents() >= b.sent })
		}
		if charged := before - b.left(100); charged != together*times*30 {
			t.Errorf("%d tokens were charged for %d requests of 30", charged, together*times)
		}
		// Each event has the entry in a buffer, which grows as bytes arrive, and a copy of it. All entries have 128 MB.
		if grown := peakMemory(t, process) - idle; grown > together*16 {
			t.Errorf("the process grew by %.0f MB for %d entries of 1 MB at a time", grown, together)
		} else {
			t.Logf("the process grew by %.0f MB", grown)
		}
		b.wantSound(process)
	})
}
