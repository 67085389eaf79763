package server

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/pgtest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/soak"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/bucket/memory"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/control/api"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/database/rows"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/node/process"
)

// storedTokens authenticates by the tokens of a database, and reads them for each request.
type storedTokens struct{ *rows.DB }

func (s storedTokens) Authenticate(ctx context.Context, secret string) (api.Caller, error) {
	all, err := s.Secrets(ctx)
	if err != nil {
		return api.Caller{}, err
	}
	token, err := all.Token(secret)
	if err != nil {
		return api.Caller{}, api.ErrUnknownToken
	}
	return api.Caller{Token: token.Name, Role: api.Role(token.Role), Org: token.Org}, nil
}

// guarded is the API over a real Postgres, with limits of its own.
type guarded struct {
	*testing.T
	store  *rows.DB
	server *api.Server
}

func openGuarded(t *testing.T) *guarded {
	t.Helper()
	store := rows.New(pgtest.Pool(t, pgtest.Shared(t).Database(t)))
	server, err := api.New(api.Options{
		Rows: store, Tokens: storedTokens{store}, Log: slog.New(slog.DiscardHandler),
		Limits: memory.New(memory.Options{Now: process.BucketClock.Now}),
	})
	require.NoError(t, err)
	return &guarded{t, store, server}
}

// token creates a token and returns its secret.
func (g *guarded) token(name string) string {
	g.Helper()
	secret, _, err := g.store.CreateToken(g.Context(), rows.Change{Actor: "ann", Reason: "a test"},
		rows.NewToken{Name: name, Role: rows.RoleAdmin})
	require.NoError(g, err)
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

func TestSoakGuessesFromOneAddressAreDeniedBeyondItsLimitAndEndNoTokenBehindIt(t *testing.T) {
	g, guesses := openGuarded(t), soak.Count(400, 4000)
	for name, from := range map[string]func(int) string{
		"an-address":        func(i int) string { return fmt.Sprint("192.0.2.1:", 1+i%60_000) },
		"a-network":         func(i int) string { return fmt.Sprintf("[2001:db8::%x:%x]:1", i>>16, i&0xffff) },
		"an-address-mapped": func(i int) string { return fmt.Sprint("[::ffff:198.51.100.7]:", 1+i%60_000) },
	} {
		begun := time.Now()
		statuses := g.guesses(guesses, from)
		most := 60 + int(time.Since(begun).Seconds()) + 1
		if n := statuses[http.StatusUnauthorized]; n < 60 || n > most || n+statuses[http.StatusTooManyRequests] != guesses {
			t.Errorf("%s: of %d guesses at most %d may be a 401, and the others a 429: %v", name, guesses, most, statuses)
		}
		g.want(http.StatusOK, g.token(name), from(1))
	}
}
