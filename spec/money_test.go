package spec

import (
	"fmt"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/await"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/freeport"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/pgtest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/redistest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/kong/gateway"
)

// loggingCalls returns a plugin of Kong's that logs a call as ai-proxy does: the model that answers and its tokens,
// which the request's header X-Answers names.
func loggingCalls(t *testing.T) gateway.Plugin {
	t.Helper()
	return lateInAccess(t, "logging-calls", func(c *gateway.PluginCall) {
		call := strings.Fields(c.RequestHeader("X-Answers"))
		if len(call) > 0 {
			c.SetSerializeValue("ai.proxy.meta.response_model", call[0])
			c.SetSerializeValue("ai.proxy.meta.provider_name", "openai")
		}
		if len(call) == 3 {
			prompt, _ := strconv.ParseFloat(call[1], 64)
			completion, _ := strconv.ParseFloat(call[2], 64)
			c.SetSerializeValue("ai.proxy.usage.prompt_tokens", prompt)
			c.SetSerializeValue("ai.proxy.usage.completion_tokens", completion)
		}
	})
}

// moneyDeck has the routes /chat and /answer with a budget of 1,000 USD of all models, and one of 500 USD of gpt-4o.
func moneyDeck(store string) string {
	plugins := `plugins: [{name: key-auth}, {name: tenant-rate-settling}, {name: logging-calls},
	{name: tenant-rate-limiting, config: {` + store + `, trusted_headers: [X-Model], llm: {request_model: header.X-Model,
	prices: [{model: "gpt-4o*", prompt: "2.50", completion: "10"}, {model: claude, prompt: "1", completion: "1"}]},
	tiers: [{name: a, limits: [
	{name: all, scope: tenant, unit: usd, limit: 1000000000, window_size: 31536000, algorithm: fixed_window,
	 settle: {sources: [{from: prices}], reserve: 100}},
	{name: of-4o, scope: tenant, unit: usd, limit: 500000000, window_size: 31536000, algorithm: fixed_window,
	 match: {model: "gpt-4o*"}, settle: {sources: [{from: prices}], reserve: 100}}]}]}}]`
	return `_format_version: "3.0"
services:
- {name: answer, url: "http://answer.internal", routes: [{name: answer, paths: [/answer], ` + plugins + `}]}
- {name: chat, url: "http://chat.internal", routes: [{name: chat, paths: [/chat], ` + plugins + `}]}` + consumers
}

// remaining matches the numbers of RateLimit.
var remaining = regexp.MustCompile(`"(all|of-4o)";r=(\d+)`)

// spent returns what is spent of both budgets, by a request for gpt-4o that uses nothing.
func spent(b *budget) string {
	b.t.Helper()
	a := b.get("/answer", "X-Model", "gpt-4o", "X-Answers", "gpt-4o 0 0")
	var texts []string
	for _, found := range remaining.FindAllStringSubmatch(a.Header.Get("RateLimit"), -1) {
		left, _ := strconv.Atoi(found[2])
		limit := map[string]int{"all": 1_000_000_000, "of-4o": 500_000_000}[found[1]]
		texts = append(texts, fmt.Sprintf("%s %d", found[1], limit-left-100))
	}
	if len(texts) > 1 && strings.HasPrefix(texts[0], "of") { // the budget that binds is the first
		texts[0], texts[1] = texts[1], texts[0]
	}
	return strings.Join(texts, ", ")
}

func TestCallsAreChargedByTheModelThatAnsweredAfterTheirProcessWasKilled(t *testing.T) {
	t.Parallel()
	server := redistest.Single(t)
	h := &held{redis: server.Client(t), release: make(chan struct{})}
	store := fmt.Sprintf("strategy: redis, redis: {socket: %s, %s}", server.Socket,
		strings.ReplaceAll(strings.ReplaceAll(patience, `"`, ""), ":", ": "))
	var arrived atomic.Int64
	h.node = start(t, moneyDeck(store), settling, within(loggingCalls(t)),
		chatting(func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", r.Header.Get("X-Kind"))
			arrived.Add(1)
			<-h.release
		}))
	require.Equal(t, "all 0, of-4o 0", spent(&h.budget))

	// what the request states, what answers, and the kind of the answer
	calls := [][3]string{
		{"gpt-4o", "gpt-4o 1000 500", "application/json"},       // 7,500 of both
		{"", "gpt-4o-mini 1 0", "application/json"},             // 3 of both: 2.5 is rounded up
		{"claude", "gpt-4o 1000 500", "application/json"},       // 7,500 of both: claiming a cheap model does not help
		{"gpt-4o", "claude 1000 500", "application/json"},       // 1,500 of all
		{"", "claude 10 0", "application/json"},                 // 10 of all
		{"gpt-4o", "gpt-4o", "application/json"},                // without usage: the reservation of 100 of both
		{"", "foreign 1000 500", "application/json"},            // without a price: 100 of all
		{"gpt-4o", "gpt-4o 1000 500", "text/event-stream"},      // a stream: 100 of both
		{"claude", "gpt-4o 1000 500", "text/event-stream; a=b"}, // a stream: 100 of both, in spite of its claim
	}
	done := make(chan answer, len(calls))
	for _, c := range calls {
		headers := []string{"apikey", "beth", "X-Answers", c[1], "X-Kind", c[2]}
		if c[0] != "" {
			headers = append(headers, "X-Model", c[0])
		}
		go func() {
			a, err := h.send("GET", "/chat", headers...)
			assert.NoError(t, err)
			done <- a
		}()
	}
	await.That(t, "the requests at their upstream", func() bool { return arrived.Load() == int64(len(calls)) })
	await.That(t, "the records of their reservations", func() bool { return len(h.records()) == len(calls) })
	h.crash()
	close(h.release)
	for range calls {
		a := <-done
		assert.Equal(t, http.StatusOK, a.Status, "%s", a.Body)
	}
	h.sent += int64(len(calls))
	want := fmt.Sprintf("all %d, of-4o %d", 7500+3+7500+1500+10+100+100+100+100, 7500+3+7500+100+100+100)
	await.That(t, "the charges", func() bool { return spent(&h.budget) == want })
	assert.LessOrEqual(t, len(h.records()), 1, "the one of the last request")
	a := h.node.get("/chat", "apikey", "beth", "X-Model", "foreign")
	assert.Equal(t, http.StatusBadRequest, a.Status)
	assert.Contains(t, string(a.Body), "The model 'foreign' has no price here")
}

func TestAPriceOfADatabaseAppliesFromItsInstant(t *testing.T) {
	t.Parallel()
	dsn := pgtest.Start(t).Database(t)
	g := &governed{t: t, dsn: dsn, rows: pgtest.Pool(t, dsn), metrics: freeport.Address(t)}
	g.node = start(t, moneyDeck("strategy: local"), within(loggingCalls(t)),
		chatting(func(http.ResponseWriter, *http.Request) {}), func(o *gateway.Options) {
			settling(o)
			o.Servers[0].Args = append([]string{"-database", dsn, "-metrics-listen", g.metrics}, patient...)
		})
	b := &budget{node: g.node}
	charged := 0
	chat := func() int { // a thousand prompt tokens of gpt-4o, and what they cost
		a := b.get("/chat", "X-Model", "gpt-4o", "X-Answers", "gpt-4o 1000 0")
		require.Equal(t, http.StatusOK, a.Status, "%s", a.Body)
		before := charged
		sum := spent(b)
		_, err := fmt.Sscanf(sum, "all %d", &charged)
		require.NoError(t, err, "%q", sum)
		return charged - before
	}
	require.Equal(t, 2500, chat(), "by the config")
	put := `INSERT INTO rate_limiter.prices (model, prompt, completion, starts_at) VALUES ('gpt-4o*', $1, 0, $2)`
	starts := time.Now().Add(2 * time.Second)
	g.write(put, 4_000_000, time.Now().Add(-time.Minute))
	g.write(put, 7_000_000, starts)
	g.awaitEnforced()
	for {
		began := time.Now()
		cost, ended := chat(), time.Now()
		switch {
		case ended.Before(starts):
			require.Equal(t, 4000, cost, "by the row that has begun")
		case !began.Before(starts.Add(time.Millisecond)):
			require.Equal(t, 7000, cost, "by the next one, from its instant on")
			return
		}
	}
}
