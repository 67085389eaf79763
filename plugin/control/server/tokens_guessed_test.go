package server

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/pgtest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/soak"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/bucket/memory"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/control/api"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/database/rows"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/node/process"
)

// lookupCount counts the queries for a token that reach Postgres, each of which is a transaction.
type lookupCount struct{ atomic.Int64 }

func (c *lookupCount) TraceQueryStart(ctx context.Context, _ *pgx.Conn, q pgx.TraceQueryStartData) context.Context {
	if strings.Contains(q.SQL, "h.hash = $1") {
		c.Add(1)
	}
	return ctx
}

func (c *lookupCount) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

// guarded is the API over a real Postgres, with a counter of token look-ups.
type guarded struct {
	*testing.T
	store   *rows.Store
	server  *api.Server
	numbers *prometheus.Registry
	queries lookupCount
	now     atomic.Int64 // the API's clock, in nanoseconds, which only tests advance
}

func openGuarded(t *testing.T) *guarded {
	t.Helper()
	g := &guarded{T: t, numbers: prometheus.NewRegistry()}
	config, err := pgxpool.ParseConfig(pgtest.Shared(t).Database(t))
	if err != nil {
		t.Fatal(err)
	}
	config.ConnConfig.Tracer = &g.queries
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	g.store = rows.New(pool)
	log := slog.New(slog.DiscardHandler)
	g.server, err = api.New(api.Options{
		Store: g.store, Tokens: newTokens(g.store, log), Log: log, Metrics: g.numbers,
		Limits: memory.New(memory.Options{Now: process.BucketClock.Now}),
		Now:    func() time.Time { return time.Unix(1_900_000_000, g.now.Load()) },
	})
	if err != nil {
		t.Fatal(err)
	}
	return g
}

// token creates a token and returns its secret.
func (g *guarded) token(name string) string {
	g.Helper()
	secret, _, err := g.store.CreateToken(g.Context(), rows.Change{Actor: "ann", Reason: "a test"},
		rows.NewToken{Name: name, Role: rows.RoleAdmin})
	if err != nil {
		g.Fatal(err)
	}
	return secret
}

// request sends a request with a token from an address, and returns the response.
func (g *guarded) request(secret, from string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(http.MethodGet, "/v1/ratelimit/policies", http.NoBody)
	r.RemoteAddr = from
	r.Header.Set("Authorization", "Bearer "+secret)
	r.Header.Set("X-Forwarded-For", rand.Text()) // must be ignored
	recorder := httptest.NewRecorder()
	g.server.ServeHTTP(recorder, r)
	return recorder
}

// want sends a request, and fails unless the response has a status.
func (g *guarded) want(status int, secret, from string) {
	g.Helper()
	if a := g.request(secret, from); a.Code != status {
		g.Errorf("from %s: %d %s, want %d", from, a.Code, a.Body, status)
	}
}

// guesses sends n guesses from addresses, 16 at once, and returns the number of responses by status.
func (g *guarded) guesses(n int, from func(int) string) map[int]int {
	statuses := map[int]int{}
	var (
		mu     sync.Mutex
		group  sync.WaitGroup
		sent   atomic.Int64
		secret = func() string {
			random := make([]byte, 32)
			rand.Read(random) // it never fails
			return "rl_" + base64.RawURLEncoding.EncodeToString(random)
		}
	)
	for range 16 {
		group.Go(func() {
			for i := sent.Add(1); i <= int64(n); i = sent.Add(1) {
				a := g.request(secret(), from(int(i)))
				mu.Lock()
				if statuses[a.Code]++; a.Code == http.StatusTooManyRequests && a.Header().Get("Retry-After") == "" {
					g.Errorf("429 without Retry-After: %v", a.Header())
				}
				mu.Unlock()
			}
		})
	}
	group.Wait()
	return statuses
}

// lookups returns the count of look-ups with a result.
func (g *guarded) lookups(result string) float64 {
	g.Helper()
	families, err := g.numbers.Gather()
	if err != nil {
		g.Fatal(err)
	}
	for _, family := range families {
		for _, m := range family.GetMetric() {
			if family.GetName() == "rate_limiter_control_token_lookups_total" && m.GetLabel()[0].GetValue() == result {
				return m.GetCounter().GetValue()
			}
		}
	}
	g.Fatalf("there is no count of look-ups with result %s", result)
	return 0
}

func TestSoakGuessesFromOneAddressReachPostgresOnlyAsOftenAsItsLimitAllows(t *testing.T) {
	g, guesses := openGuarded(t), soak.Count(4000, 20_000)
	const most = 60
	for name, from := range map[string]func(int) string{
		"an-address":        func(i int) string { return fmt.Sprint("192.0.2.1:", 1+i%60_000) },
		"a-network":         func(i int) string { return fmt.Sprintf("[2001:db8::%x:%x]:1", i>>16, i&0xffff) },
		"an-address-mapped": func(i int) string { return fmt.Sprint("[::ffff:198.51.100.7]:", 1+i%60_000) },
	} {
		cached, other := g.token(name), g.token("new-beside-"+name)
		g.want(http.StatusOK, cached, from(0))
		before, denied := g.queries.Load(), g.lookups("denied")
		statuses := g.guesses(guesses, from)
		queries := g.queries.Load() - before
		if queries != most || statuses[http.StatusUnauthorized] > most ||
			statuses[http.StatusTooManyRequests] < guesses-most {
			t.Errorf("%s: %d guesses make %d queries, want %d; the responses are %v", name, guesses, queries, most, statuses)
		}
		if got := g.lookups("denied") - denied; got != float64(guesses-most) {
			t.Errorf("%s: %v guesses are counted as denied, want %d", name, got, guesses-most)
		}
		g.want(http.StatusOK, cached, from(1)) // a cached token needs no look-up
		g.want(http.StatusTooManyRequests, other, from(1))
		g.want(http.StatusOK, other, "203.0.113.1:1")
		g.want(http.StatusOK, other, from(1)) // now it is cached
		late := g.token("made-after-" + name)
		g.now.Add(int64(time.Second))
		for range 3 { // a look-up that finds a token is refunded
			g.want(http.StatusOK, late, from(1))
			late = g.token(name + rand.Text())
		}
	}
}

func TestAnUnknownTokenSentAgainReachesPostgresOnce(t *testing.T) {
	g := openGuarded(t)
	revoked := g.token("ci")
	if _, err := g.store.RevokeToken(t.Context(), rows.Change{Actor: "ann", Reason: "a test"}, "ci"); err != nil {
		t.Fatal(err)
	}
	for range 50 {
		g.want(http.StatusUnauthorized, revoked, "192.0.2.1:1")
		g.want(http.StatusUnauthorized, "no secret at all", "192.0.2.2:1")
	}
	if queries, remembered := g.queries.Load(), g.lookups("remembered"); queries > 2 || queries == 0 || remembered < 98 {
		t.Errorf("looked up %d times, want once, or twice on a machine that stalls for seconds; %v are counted as remembered",
			queries, remembered)
	}
}

func TestManyTokensBehindOneAddressAreAllLookedUp(t *testing.T) {
	g := openGuarded(t)
	for i := range 100 { // more than the look-ups of unknown tokens
		g.want(http.StatusOK, g.token(fmt.Sprint("t", i)), "192.0.2.1:1")
	}
	if found, denied := g.lookups("found"), g.lookups("denied"); found != 100 || denied != 0 {
		t.Errorf("%v are counted as found, %v as denied", found, denied)
	}
}
