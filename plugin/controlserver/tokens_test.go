package controlserver

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
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/control"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/pgstore"
)

// memoryRows stand in for the database where a test has its own time. The secret of a token is its name.
type memoryRows struct {
	mu    sync.Mutex
	live  map[string]pgstore.Token
	asked int                     // times that a secret was looked up
	noted map[int64]time.Duration // what Used was told last
	away  error                   // what every call fails with
}

func (m *memoryRows) Authenticate(_ context.Context, secret string) (pgstore.Token, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.asked++
	if m.away != nil {
		return pgstore.Token{}, m.away
	}
	token, ok := m.live[secret]
	if !ok {
		return pgstore.Token{}, &pgstore.TokenError{}
	}
	return token, nil
}

func (m *memoryRows) Used(_ context.Context, ago map[int64]time.Duration) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.away == nil {
		m.noted = ago
	}
	return m.away
}

// told is what Used was told since the last call.
func (m *memoryRows) told() string {
	m.mu.Lock()
	defer m.mu.Unlock()
	noted := m.noted
	m.noted = nil
	return fmt.Sprint(noted)
}

func (m *memoryRows) fail(err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.away = err
}

func newMemoryRows() *memoryRows {
	return &memoryRows{live: map[string]pgstore.Token{
		"ci": {ID: 1, Name: "ci", Role: pgstore.RoleAdmin}, "acme": {ID: 2, Name: "acme", Role: pgstore.RoleTenant, Org: "acme"},
	}}
}

// quietTokens are tokens of rows in which every text is a secret.
func quietTokens(rows tokenRows) *tokens {
	ts := newTokens(rows, slog.New(slog.DiscardHandler))
	ts.isSecret = func(string) bool { return true }
	return ts
}

func always() bool { return true }

// enter authenticates a secret that must be let in.
func enter(t *testing.T, ts *tokens, secret string) control.Caller {
	t.Helper()
	caller, err := ts.Authenticate(t.Context(), secret, always)
	if err != nil {
		t.Fatalf("%s: %v", secret, err)
	}
	return caller
}

func TestTokenIsLookedUpOnceInAWhileAndARevokedOneIsFoundOutWithinFiveSeconds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rows := newMemoryRows()
		ts := quietTokens(rows)
		for range 100 {
			if caller := enter(t, ts, "ci"); caller != (control.Caller{Token: "ci", Role: control.Admin}) {
				t.Fatalf("the caller is %+v", caller)
			}
		}
		if caller := enter(t, ts, "acme"); caller != (control.Caller{Token: "acme", Role: control.Tenant, Org: "acme"}) {
			t.Errorf("the caller is %+v", caller)
		}
		if rows.asked != 2 {
			t.Errorf("two tokens were looked up %d times", rows.asked)
		}
		delete(rows.live, "ci")
		time.Sleep(5 * time.Second)
		if _, err := ts.Authenticate(t.Context(), "ci", always); !errors.Is(err, control.ErrUnknownToken) {
			t.Errorf("after its revocation: %v", err)
		}
		enter(t, ts, "acme")
	})
}

func TestExpiryIsNotOutlivedByWhatIsRemembered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rows := newMemoryRows()
		rows.live["ci"] = pgstore.Token{ID: 1, Name: "ci", Role: pgstore.RoleAdmin, ExpiresAt: time.Now().Add(time.Second)}
		ts := quietTokens(rows)
		enter(t, ts, "ci")
		delete(rows.live, "ci")
		time.Sleep(time.Second)
		if _, err := ts.Authenticate(t.Context(), "ci", always); !errors.Is(err, control.ErrUnknownToken) {
			t.Errorf("at its expiry: %v", err)
		}
	})
}

func TestAnUnknownTokenIsLookedUpOnceInAMomentAndNeverTakenForAKnownOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rows := newMemoryRows()
		ts := quietTokens(rows)
		guess := func(times, want int) {
			t.Helper()
			rows.asked = 0
			for i := range times {
				_, err := ts.Authenticate(t.Context(), fmt.Sprint("guess", i%10), always)
				if !errors.Is(err, control.ErrUnknownToken) {
					t.Errorf("guess %d: %v", i, err)
				}
			}
			if rows.asked != want || len(ts.known) != 0 || len(ts.used) != 0 {
				t.Errorf("%d guesses at 10 secrets are looked up %d times, want %d; %d are known",
					times, rows.asked, want, len(ts.known))
			}
		}
		guess(100, 10)
		rows.live["guess0"] = pgstore.Token{ID: 7, Name: "late", Role: pgstore.RoleViewer}
		time.Sleep(2 * unknownTime)
		if caller := enter(t, ts, "guess0"); caller.Token != "late" {
			t.Errorf("the caller is %+v", caller)
		}
	})
}

func TestGuessesTakeBoundedMemoryAndNoTokenIsForgottenForThem(t *testing.T) {
	rows := newMemoryRows()
	ts := quietTokens(rows)
	enter(t, ts, "ci")
	for i := range 5 * unknownMemory {
		_, _ = ts.Authenticate(t.Context(), fmt.Sprint("guess", i), always) // each lets nobody in, as above
	}
	if held := len(ts.unknown.newer) + len(ts.unknown.older); held > 2*unknownMemory {
		t.Errorf("%d guesses are remembered, want at most %d", held, 2*unknownMemory)
	}
	asked := rows.asked
	enter(t, ts, "ci")
	if rows.asked != asked {
		t.Error("a token was looked up again after guesses")
	}
}

func TestATokenInMemoryNeedsNoLookUpThatItsAddressMayNotHave(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rows := newMemoryRows()
		ts := quietTokens(rows)
		never := func() bool { return false }
		if _, err := ts.Authenticate(t.Context(), "ci", never); !errors.Is(err, control.ErrNotLookedUp) || rows.asked != 0 {
			t.Errorf("a token that is not in memory: %v, after %d look-ups", err, rows.asked)
		}
		enter(t, ts, "ci")
		for _, rest := range []time.Duration{0, tokenRenewal, tokenBelief} { // the last one is looked up again at once
			time.Sleep(rest)
			if _, err := ts.Authenticate(t.Context(), "ci", never); err != nil {
				t.Errorf("in memory for %v: %v", rest, err)
			}
		}
	})
}

func TestOnlySoManyTokensAreRemembered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rows := newMemoryRows()
		for i := range tokenMemory + 100 {
			name := fmt.Sprint("t", i)
			rows.live[name] = pgstore.Token{ID: int64(i), Name: name, Role: pgstore.RoleViewer}
		}
		ts := quietTokens(rows)
		for name := range rows.live {
			enter(t, ts, name)
		}
		if len(ts.known) != tokenMemory {
			t.Errorf("%d tokens are remembered, want %d", len(ts.known), tokenMemory)
		}
		time.Sleep(tokenOutage)
		rows.live["new"] = pgstore.Token{ID: -1, Name: "new", Role: pgstore.RoleViewer}
		enter(t, ts, "new")
		if len(ts.known) != 1 {
			t.Errorf("%d tokens are remembered after all have aged, want the new one", len(ts.known))
		}
	})
}

func TestDatabaseThatIsAwayIsNoUnknownToken(t *testing.T) {
	rows := newMemoryRows()
	ts := quietTokens(rows)
	enter(t, ts, "ci")
	rows.fail(errors.New("postgres is away"))
	enter(t, ts, "ci")
	if _, err := ts.Authenticate(t.Context(), "acme", always); err == nil || errors.Is(err, control.ErrUnknownToken) {
		t.Errorf("a token that nobody can look up: %v", err)
	}
}

func TestUseIsNotedInTheBackgroundAndAtTheEndAndKeptWhileTheDatabaseIsAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rows := newMemoryRows()
		ts := quietTokens(rows)
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- ts.Run(ctx) }()
		step := func(use, want string) {
			t.Helper()
			if use != "" {
				enter(t, ts, use)
			}
			time.Sleep(tokenUse)
			synctest.Wait()
			if got := rows.told(); got != want {
				t.Errorf("noted is %s, want %s", got, want)
			}
		}
		step("ci", "map[1:20s]")
		step("", "map[]")
		enter(t, ts, "ci")
		rows.fail(errors.New("postgres is away"))
		step("", "map[]")
		rows.fail(nil)
		step("acme", "map[1:40s 2:20s]")
		enter(t, ts, "acme")
		stop()
		if err := <-ended; err != nil || rows.told() != "map[2:0s]" {
			t.Errorf("at the end: %v, and the last use is not noted", err)
		}
	})
}

func TestRevokedTokenOfTheDatabaseIsNamedInTheLogWithoutItsSecret(t *testing.T) {
	dsn := pgtest.Start(t).Empty(t)
	pool := pgtest.Pool(t, dsn)
	if _, err := migrations.Up(t.Context(), pool.Config().ConnConfig); err != nil {
		t.Fatal(err)
	}
	store := pgstore.New(pool)
	by := pgstore.Change{Actor: "ann", Reason: "a test"}
	secret, token, err := store.CreateToken(t.Context(), by, pgstore.NewToken{Name: "ci", Role: pgstore.RoleAdmin})
	if err != nil {
		t.Fatal(err)
	}
	var log bytes.Buffer
	ts, now := newTokens(store, slog.New(slog.NewTextHandler(&log, nil))), time.Now()
	ts.now = func() time.Time { return now }
	enter(t, ts, secret)
	ts.note(t.Context())
	if list, err := store.Tokens(t.Context(), pgstore.TokenFilter{}); err != nil || len(list) != 1 || list[0].ID != token.ID || list[0].LastUsedAt.IsZero() {
		t.Errorf("the tokens are %+v (%v), want the use noted", list, err)
	}
	if _, err := store.RevokeToken(t.Context(), by, "ci"); err != nil {
		t.Fatal(err)
	}
	now = now.Add(5 * time.Second)
	if _, err := ts.Authenticate(t.Context(), secret, always); !errors.Is(err, control.ErrUnknownToken) {
		t.Errorf("after its revocation: %v", err)
	}
	if said := log.String(); !strings.Contains(said, "token=ci") || !strings.Contains(said, "state=revoked") || strings.Contains(said, secret) {
		t.Errorf("the log says %s", said)
	}
}
