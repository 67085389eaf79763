package server

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/pgtest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/migrations"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/control/api"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/database/rows"
)

// memoryRows replaces the database in tests with a synthetic clock. The secret of a token is its name.
type memoryRows struct {
	mu      sync.Mutex
	live    map[string]rows.Token
	lookups int                     // number of look-ups
	used    map[int64]time.Duration // argument of the last call of Used
	away    error                   // the error of every call
}

func (m *memoryRows) Authenticate(_ context.Context, secret string) (rows.Token, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.lookups++
	if m.away != nil {
		return rows.Token{}, m.away
	}
	token, ok := m.live[secret]
	if !ok {
		return rows.Token{}, &rows.TokenError{}
	}
	return token, nil
}

func (m *memoryRows) Used(_ context.Context, ago map[int64]time.Duration) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.away == nil {
		m.used = ago
	}
	return m.away
}

// lastUsed returns the argument of the last call of Used since it was called before.
func (m *memoryRows) lastUsed() string {
	m.mu.Lock()
	defer m.mu.Unlock()
	used := m.used
	m.used = nil
	return fmt.Sprint(used)
}

func (m *memoryRows) fail(err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.away = err
}

func newMemoryRows() *memoryRows {
	return &memoryRows{live: map[string]rows.Token{
		"ci":   {ID: 1, Name: "ci", Role: rows.RoleAdmin},
		"acme": {ID: 2, Name: "acme", Role: rows.RoleTenant, Org: "acme"},
	}}
}

// quietTokens returns tokens over rows, without a log, where every text counts as a secret.
func quietTokens(rows tokenRows) *tokens {
	ts := newTokens(rows, slog.New(slog.DiscardHandler))
	ts.isSecret = func(string) bool { return true }
	return ts
}

func always() bool { return true }

// authenticate authenticates a secret, which must succeed.
func authenticate(t *testing.T, ts *tokens, secret string) api.Caller {
	t.Helper()
	caller, err := ts.Authenticate(t.Context(), secret, always)
	if err != nil {
		t.Fatalf("%s: %v", secret, err)
	}
	return caller
}

func TestATokenIsCachedAndARevocationTakesEffectWithinFiveSeconds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rows := newMemoryRows()
		ts := quietTokens(rows)
		for range 100 {
			if caller := authenticate(t, ts, "ci"); caller != (api.Caller{Token: "ci", Role: api.Admin}) {
				t.Fatalf("the caller is %+v", caller)
			}
		}
		if caller := authenticate(t, ts, "acme"); caller !=
			(api.Caller{Token: "acme", Role: api.Tenant, Org: "acme"}) {
			t.Errorf("the caller is %+v", caller)
		}
		if rows.lookups != 2 {
			t.Errorf("two tokens were looked up %d times", rows.lookups)
		}
		delete(rows.live, "ci")
		time.Sleep(5 * time.Second)
		if _, err := ts.Authenticate(t.Context(), "ci", always); !errors.Is(err, api.ErrUnknownToken) {
			t.Errorf("after its revocation: %v", err)
		}
		authenticate(t, ts, "acme")
	})
}

func TestACachedTokenExpiresOnTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		list := newMemoryRows()
		list.live["ci"] = rows.Token{ID: 1, Name: "ci", Role: rows.RoleAdmin, ExpiresAt: time.Now().Add(time.Second)}
		ts := quietTokens(list)
		authenticate(t, ts, "ci")
		delete(list.live, "ci")
		time.Sleep(time.Second)
		if _, err := ts.Authenticate(t.Context(), "ci", always); !errors.Is(err, api.ErrUnknownToken) {
			t.Errorf("at its expiry: %v", err)
		}
	})
}

func TestUnknownTokensAreRememberedForALimitedTimeAndNeverAuthenticated(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		list := newMemoryRows()
		ts := quietTokens(list)
		guess := func(times, want int) {
			t.Helper()
			list.lookups = 0
			for i := range times {
				_, err := ts.Authenticate(t.Context(), fmt.Sprint("guess", i%10), always)
				if !errors.Is(err, api.ErrUnknownToken) {
					t.Errorf("guess %d: %v", i, err)
				}
			}
			if list.lookups != want || len(ts.cached) != 0 || len(ts.used) != 0 {
				t.Errorf("%d guesses at 10 secrets are looked up %d times, want %d; %d are cached",
					times, list.lookups, want, len(ts.cached))
			}
		}
		guess(100, 10)
		list.live["guess0"] = rows.Token{ID: 7, Name: "late", Role: rows.RoleViewer}
		time.Sleep(2 * unknownTime)
		if caller := authenticate(t, ts, "guess0"); caller.Token != "late" {
			t.Errorf("the caller is %+v", caller)
		}
	})
}

func TestGuessesTakeBoundedMemoryAndEvictNoToken(t *testing.T) {
	rows := newMemoryRows()
	ts := quietTokens(rows)
	authenticate(t, ts, "ci")
	for i := range 5 * unknownMemory {
		_, _ = ts.Authenticate(t.Context(), fmt.Sprint("guess", i), always) // each is denied, as above
	}
	if remembered := len(ts.unknown.newer) + len(ts.unknown.older); remembered > 2*unknownMemory {
		t.Errorf("%d guesses are remembered, want at most %d", remembered, 2*unknownMemory)
	}
	before := rows.lookups
	authenticate(t, ts, "ci")
	if rows.lookups != before {
		t.Error("a token was looked up again after guesses")
	}
}

func TestACachedTokenNeedsNoLookUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rows := newMemoryRows()
		ts := quietTokens(rows)
		never := func() bool { return false }
		if _, err := ts.Authenticate(t.Context(), "ci", never); !errors.Is(err, api.ErrNotLookedUp) || rows.lookups != 0 {
			t.Errorf("an uncached token: %v, after %d look-ups", err, rows.lookups)
		}
		authenticate(t, ts, "ci")
		for _, pause := range []time.Duration{0, tokenRenewal, tokenFresh} { // the last one is looked up again at once
			time.Sleep(pause)
			if _, err := ts.Authenticate(t.Context(), "ci", never); err != nil {
				t.Errorf("cached for another %v: %v", pause, err)
			}
		}
	})
}

func TestTheNumberOfCachedTokensIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		list := newMemoryRows()
		for i := range tokenMemory + 100 {
			name := fmt.Sprint("t", i)
			list.live[name] = rows.Token{ID: int64(i), Name: name, Role: rows.RoleViewer}
		}
		ts := quietTokens(list)
		for name := range list.live {
			authenticate(t, ts, name)
		}
		if len(ts.cached) != tokenMemory {
			t.Errorf("%d tokens are cached, want %d", len(ts.cached), tokenMemory)
		}
		time.Sleep(tokenOutage)
		list.live["new"] = rows.Token{ID: -1, Name: "new", Role: rows.RoleViewer}
		authenticate(t, ts, "new")
		if len(ts.cached) != 1 {
			t.Errorf("%d tokens are cached after all have aged, want the new one", len(ts.cached))
		}
	})
}

func TestAFailedLookUpDoesNotMakeATokenUnknown(t *testing.T) {
	rows := newMemoryRows()
	ts := quietTokens(rows)
	authenticate(t, ts, "ci")
	rows.fail(errors.New("postgres is unavailable"))
	authenticate(t, ts, "ci")
	if _, err := ts.Authenticate(t.Context(), "acme", always); err == nil || errors.Is(err, api.ErrUnknownToken) {
		t.Errorf("a token that cannot be looked up: %v", err)
	}
}

func TestUseIsWrittenInTheBackgroundAndAtTheEndAndKeptWhileTheDatabaseIsUnavailable(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rows := newMemoryRows()
		ts := quietTokens(rows)
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- ts.Run(ctx) }()
		step := func(use, want string) {
			t.Helper()
			if use != "" {
				authenticate(t, ts, use)
			}
			time.Sleep(tokenUse)
			synctest.Wait()
			if got := rows.lastUsed(); got != want {
				t.Errorf("the written use is %s, want %s", got, want)
			}
		}
		step("ci", "map[1:20s]")
		step("", "map[]")
		authenticate(t, ts, "ci")
		rows.fail(errors.New("postgres is unavailable"))
		step("", "map[]")
		rows.fail(nil)
		step("acme", "map[1:40s 2:20s]")
		authenticate(t, ts, "acme")
		stop()
		if err := <-ended; err != nil || rows.lastUsed() != "map[2:0s]" {
			t.Errorf("at the end: %v, or the last use is not written", err)
		}
	})
}

func TestTheLogNamesARevokedTokenWithoutItsSecret(t *testing.T) {
	dsn := pgtest.Shared(t).Empty(t)
	pool := pgtest.Pool(t, dsn)
	if _, err := migrations.Up(t.Context(), pool.Config().ConnConfig); err != nil {
		t.Fatal(err)
	}
	store := rows.New(pool)
	by := rows.Change{Actor: "ann", Reason: "a test"}
	secret, token, err := store.CreateToken(t.Context(), by, rows.NewToken{Name: "ci", Role: rows.RoleAdmin})
	if err != nil {
		t.Fatal(err)
	}
	var log bytes.Buffer
	ts, now := newTokens(store, slog.New(slog.NewTextHandler(&log, nil))), time.Now()
	ts.now = func() time.Time { return now }
	authenticate(t, ts, secret)
	ts.writeUse(t.Context())
	if list, err := store.Tokens(t.Context(), rows.TokenFilter{}); err != nil || len(list) != 1 ||
		list[0].ID != token.ID || list[0].LastUsedAt.IsZero() {
		t.Errorf("the tokens are %+v (%v), want the use written", list, err)
	}
	if _, err := store.RevokeToken(t.Context(), by, "ci"); err != nil {
		t.Fatal(err)
	}
	now = now.Add(5 * time.Second)
	if _, err := ts.Authenticate(t.Context(), secret, always); !errors.Is(err, api.ErrUnknownToken) {
		t.Errorf("after its revocation: %v", err)
	}
	if text := log.String(); !strings.Contains(text, "token=ci") || !strings.Contains(text, "state=revoked") ||
		strings.Contains(text, secret) {
		t.Errorf("the log has %s", text)
	}
}
