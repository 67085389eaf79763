package server

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/pgtest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/control/api"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/database/rows"
)

// memoryRows replaces the database in tests with a synthetic clock.
type memoryRows struct {
	mu            sync.Mutex
	live          rows.Secrets
	reads         int
	running, most int                             // reads at once
	used          map[int64]time.Duration         // argument of the last call of Used
	answer        func(ctx context.Context) error // of every call; nil: none fails
}

func (m *memoryRows) add(t rows.Token) {
	m.mu.Lock()
	defer m.mu.Unlock()
	t.State = rows.TokenLive
	m.live[sha256.Sum256([]byte(secretOf(t.Name)))] = t
}

func (m *memoryRows) remove(name string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.live, sha256.Sum256([]byte(secretOf(name))))
}

// counts returns how often the tokens were read, and how many reads ran at once.
func (m *memoryRows) counts() (reads, most int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.reads, m.most
}

func (m *memoryRows) Secrets(ctx context.Context) (rows.Secrets, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.reads++
	m.running++
	m.most = max(m.most, m.running)
	if answer := m.answer; answer != nil {
		m.mu.Unlock()
		err := answer(ctx)
		m.mu.Lock()
		if err != nil {
			m.running--
			return nil, err
		}
	}
	m.running--
	return maps.Clone(m.live), nil
}

func (m *memoryRows) Used(ctx context.Context, ago map[int64]time.Duration) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if answer := m.answer; answer != nil {
		m.mu.Unlock()
		err := answer(ctx)
		m.mu.Lock()
		if err != nil {
			return err
		}
	}
	m.used = ago
	return nil
}

// lastUsed returns the argument of the last call of Used since it was called before.
func (m *memoryRows) lastUsed() string {
	m.mu.Lock()
	defer m.mu.Unlock()
	used := m.used
	m.used = nil
	return fmt.Sprint(used)
}

func (m *memoryRows) setAnswer(answer func(context.Context) error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.answer = answer
}

// Answers of a database.
var (
	fails  = func(context.Context) error { return errors.New("postgres is unavailable") }
	silent = func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }
	slow   = func(ctx context.Context) error {
		select {
		case <-time.After(400 * time.Millisecond):
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
)

func newMemoryRows() *memoryRows {
	m := &memoryRows{live: rows.Secrets{}}
	m.add(rows.Token{ID: 1, Name: "ci", Role: rows.RoleAdmin})
	m.add(rows.Token{ID: 2, Name: "acme", Role: rows.RoleTenant, Org: "acme"})
	return m
}

// running returns tokens over rows, without a log, whose Run runs until the test ends.
func running(t *testing.T, rows tokenRows) *tokens {
	t.Helper()
	ts := newTokens(rows, slog.New(slog.DiscardHandler))
	t.Cleanup(run(t, ts))
	return ts
}

// run runs tokens until stop is called.
func run(t *testing.T, ts *tokens) (stop func()) {
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- ts.Run(ctx) }()
	return sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

// authenticate authenticates the secret of a name, which must succeed.
func authenticate(t *testing.T, ts *tokens, name string) api.Caller {
	t.Helper()
	caller, err := ts.Authenticate(t.Context(), secretOf(name))
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return caller
}

// wantUnknown fails unless the secret of a name is unknown.
func wantUnknown(t *testing.T, ts *tokens, name, when string) {
	t.Helper()
	if _, err := ts.Authenticate(t.Context(), secretOf(name)); !errors.Is(err, api.ErrUnknownToken) {
		t.Errorf("%s: %v", when, err)
	}
}

func TestATokenIsInMemoryAndARevocationTakesEffectWithinTwoSeconds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		list := newMemoryRows()
		list.add(rows.Token{ID: 3, Name: "short", Role: rows.RoleAdmin, ExpiresAt: time.Now().Add(time.Second)})
		ts := running(t, list)
		authenticate(t, ts, "short")
		for range 100 {
			if caller := authenticate(t, ts, "ci"); caller != (api.Caller{Token: "ci", Role: api.Admin}) {
				t.Fatalf("the caller is %+v", caller)
			}
		}
		if caller := authenticate(t, ts, "acme"); caller != (api.Caller{Token: "acme", Role: api.Tenant, Org: "acme"}) {
			t.Errorf("the caller is %+v", caller)
		}
		if reads, _ := list.counts(); reads > 2 {
			t.Errorf("the tokens were read %d times", reads)
		}
		list.remove("ci")
		time.Sleep(2*time.Second + time.Millisecond)
		wantUnknown(t, ts, "ci", "after its revocation")
		wantUnknown(t, ts, "short", "after its expiry")
		authenticate(t, ts, "acme")
	})
}

func TestGuessesReadTheTokensOnceASecondAndDelayNoKnownToken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		list := newMemoryRows()
		ts := running(t, list)
		authenticate(t, ts, "ci")
		before, _ := list.counts()
		const lasts = 20 * time.Second
		end := time.Now().Add(lasts)
		var guesses sync.WaitGroup
		for i := range 200 {
			guesses.Go(func() {
				for n := 0; time.Now().Before(end); n++ {
					wantUnknown(t, ts, fmt.Sprint("guess", i, n), "a guess")
				}
			})
		}
		for i := range 10 {
			time.Sleep(time.Second + 300*time.Millisecond)
			begun := time.Now()
			authenticate(t, ts, "ci")
			if took := time.Since(begun); took != 0 {
				t.Errorf("a known token waits %v", took)
			}
			list.add(rows.Token{ID: int64(3 + i), Name: fmt.Sprint("new", i), Role: rows.RoleViewer})
			authenticate(t, ts, fmt.Sprint("new", i))
			if took := time.Since(begun); took > time.Second {
				t.Errorf("a new token waits %v", took)
			}
		}
		guesses.Wait()
		reads, _ := list.counts()
		if most := int(lasts/tokenRefresh) + 2; reads-before > most {
			t.Errorf("the tokens are read %d times in %v, want at most %d", reads-before, lasts, most)
		}
		if _, err := ts.Authenticate(t.Context(), "no secret"); !errors.Is(err, api.ErrUnknownToken) {
			t.Errorf("a text that is no secret: %v", err)
		}
	})
}

func TestRequestsOfAKnownTokenNeverWaitForTheDatabase(t *testing.T) {
	for name, answer := range map[string]func(context.Context) error{
		"works": nil, "is slow": slow, "hangs": silent, "is unavailable": fails,
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				list := newMemoryRows()
				ts := running(t, list)
				authenticate(t, ts, "ci")
				list.setAnswer(answer)
				begun := time.Now()
				for range 1200 {
					authenticate(t, ts, "ci")
					time.Sleep(50 * time.Millisecond)
				}
				_, most := list.counts()
				if took := time.Since(begun); took != time.Minute || most != 1 {
					t.Errorf("1200 requests wait %v, and %d reads ran at once", took-time.Minute, most)
				}
				list.remove("ci")
				list.setAnswer(nil)
				time.Sleep(tokenTimeout + tokenRefresh)
				wantUnknown(t, ts, "ci", "revoked, and the database is back")
			})
		})
	}
}

func TestTokensStayValidWhileTheDatabaseIsUnavailableForALimitedTime(t *testing.T) {
	for name, answer := range map[string]func(context.Context) error{"unavailable": fails, "hanging": silent} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				list := newMemoryRows()
				ts := running(t, list)
				authenticate(t, ts, "ci")
				list.setAnswer(answer)
				time.Sleep(tokenOutage - 3*time.Second)
				authenticate(t, ts, "ci")
				time.Sleep(3 * time.Second)
				for _, secret := range []string{"ci", "another"} {
					_, err := ts.Authenticate(t.Context(), secretOf(secret))
					if err == nil || errors.Is(err, api.ErrUnknownToken) {
						t.Errorf("%s, after ten minutes without an answer: %v", secret, err)
					}
				}
			})
		})
	}
}

func TestARequestThatEndsOrAProcessThatEndsAwaitsNoRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		list := newMemoryRows()
		ts := newTokens(list, slog.New(slog.DiscardHandler))
		stop := run(t, ts)
		authenticate(t, ts, "ci")
		list.setAnswer(silent)
		canceled, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		if _, err := ts.Authenticate(canceled, secretOf("guess")); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("a request that ends: %v", err)
		}
		stop()
		authenticate(t, ts, "ci")
		if _, err := ts.Authenticate(t.Context(), secretOf("guess")); !errors.Is(err, errStopped) {
			t.Errorf("a request while the process ends: %v", err)
		}
	})
}

func TestAReadThatTheEndOfTheProcessInterruptsIsNoFailure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		list := newMemoryRows()
		list.setAnswer(silent)
		var log bytes.Buffer
		stop := run(t, newTokens(list, slog.New(slog.NewTextHandler(&log, nil))))
		synctest.Wait()
		stop()
		assert.Empty(t, log.String())
	})
}

func TestUseIsWrittenInTheBackgroundAndAtTheEndAndKeptWhileTheDatabaseIsUnavailable(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rows := newMemoryRows()
		ts := newTokens(rows, slog.New(slog.DiscardHandler))
		stop := run(t, ts)
		synctest.Wait()
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
		rows.setAnswer(fails)
		step("", "map[]")
		rows.setAnswer(nil)
		step("acme", "map[1:40s 2:20s]")
		authenticate(t, ts, "acme")
		stop()
		if got := rows.lastUsed(); got != "map[2:0s]" {
			t.Errorf("the use written at the end is %s", got)
		}
	})
}

func TestTheLogNamesARevokedTokenWithoutItsSecret(t *testing.T) {
	store := rows.New(pgtest.Pool(t, pgtest.Shared(t).Database(t)))
	by := rows.Change{Actor: "ann", Reason: "a test"}
	secret, token, err := store.CreateToken(t.Context(), by, rows.NewToken{Name: "ci", Role: rows.RoleAdmin})
	require.NoError(t, err)
	var log bytes.Buffer
	ts := newTokens(store, slog.New(slog.NewTextHandler(&log, nil)))
	ts.read(t.Context())
	if _, err := ts.Authenticate(t.Context(), secret); err != nil {
		t.Fatal(err)
	}
	ts.writeUse(t.Context(), tokenTimeout)
	if list, err := store.Tokens(t.Context(), rows.TokenFilter{}); err != nil || len(list) != 1 ||
		list[0].ID != token.ID || list[0].LastUsedAt.IsZero() {
		t.Errorf("the tokens are %+v (%v), want the use written", list, err)
	}
	if _, err := store.RevokeToken(t.Context(), by, "ci"); err != nil {
		t.Fatal(err)
	}
	ts.read(t.Context())
	if _, err := ts.Authenticate(t.Context(), secret); !errors.Is(err, api.ErrUnknownToken) {
		t.Errorf("after its revocation: %v", err)
	}
	if text := log.String(); !strings.Contains(text, "token=ci") || !strings.Contains(text, "state=revoked") ||
		strings.Contains(text, secret) {
		t.Errorf("the log has %s", text)
	}
}
