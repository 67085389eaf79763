package server

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/control/api"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/database/rows"
)

// oneToken simulates a database with one token, which answers every look-up with answer.
type oneToken struct {
	mu      sync.Mutex
	answer  func(ctx context.Context) (rows.Token, error)
	running int
	most    int // look-ups that ran at once
}

func (o *oneToken) Authenticate(ctx context.Context, _ string) (rows.Token, error) {
	o.mu.Lock()
	answer := o.answer
	o.running++
	o.most = max(o.most, o.running)
	o.mu.Unlock()
	defer func() {
		o.mu.Lock()
		defer o.mu.Unlock()
		o.running--
	}()
	return answer(ctx)
}

func (o *oneToken) Used(context.Context, map[int64]time.Duration) error { return nil }

func (o *oneToken) setAnswer(answer func(context.Context) (rows.Token, error)) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.answer = answer
}

// atOnce returns the largest number of look-ups that ran at once.
func (o *oneToken) atOnce() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.most
}

// Answers of a database.
var (
	found = func(context.Context) (rows.Token, error) { return rows.Token{ID: 1, Name: "ann"}, nil }
	ended = func(context.Context) (rows.Token, error) {
		return rows.Token{}, &rows.TokenError{Name: "ann", State: rows.TokenRevoked}
	}
	fails = func(context.Context) (rows.Token, error) {
		return rows.Token{}, errors.New("the database is unavailable")
	}
	silent = func(ctx context.Context) (rows.Token, error) {
		<-ctx.Done()
		return rows.Token{}, ctx.Err()
	}
)

// lookup is the answer of a database.
type lookup = func(context.Context) (rows.Token, error)

// slow returns an answer that takes some time.
func slow(delay time.Duration, answer lookup) lookup {
	return func(ctx context.Context) (rows.Token, error) {
		select {
		case <-time.After(delay):
			return answer(ctx)
		case <-ctx.Done():
			return rows.Token{}, ctx.Err()
		}
	}
}

// stopped returns an answer that waits until it is resumed.
func stopped(resumed <-chan struct{}, answer lookup) lookup {
	return func(ctx context.Context) (rows.Token, error) {
		select {
		case <-resumed:
			return answer(ctx)
		case <-ctx.Done():
			return rows.Token{}, ctx.Err()
		}
	}
}

// running returns tokens over rows whose Run runs until the test ends.
func running(t *testing.T, rows tokenRows) *tokens {
	t.Helper()
	ts := quietTokens(rows)
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- ts.Run(ctx) }()
	t.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	return ts
}

// use sends 20 requests a second with the token. It returns the number of authenticated requests, the sum of their
// waits, and the time of the first denied one.
func use(t *testing.T, ts *tokens, duration time.Duration) (authenticated int, waited time.Duration, denied time.Time) {
	t.Helper()
	for until := time.Now().Add(duration); time.Now().Before(until); time.Sleep(50 * time.Millisecond) {
		start := time.Now()
		_, err := ts.Authenticate(t.Context(), "secret", always)
		waited += time.Since(start)
		switch {
		case err == nil:
			authenticated++
		case denied.IsZero():
			denied = start
		}
	}
	return authenticated, waited, denied
}

func TestRequestsOfATokenInUseNeverWaitForTheDatabase(t *testing.T) {
	for name, answer := range map[string]lookup{
		"works": found, "is slow": slow(400*time.Millisecond, found), "hangs": silent, "is unavailable": fails,
		"is unavailable after a while": slow(3*time.Second, fails),
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				rows := &oneToken{answer: found}
				ts := running(t, rows)
				use(t, ts, 10*time.Second)
				rows.setAnswer(answer)
				if n, waited, _ := use(t, ts, time.Minute); n != 1200 || waited != 0 {
					t.Errorf("%d of 1200 requests are authenticated, after waits of %v", n, waited)
				}
				if most := rows.atOnce(); most != 1 {
					t.Errorf("%d look-ups ran at once", most)
				}
			})
		})
	}
}

func TestARevokedTokenIsDeniedWithinFiveSecondsOfTheDatabaseAnswering(t *testing.T) {
	for _, before := range []string{"worked", "hung", "was unavailable"} {
		for _, after := range []time.Duration{0, 400 * time.Millisecond, time.Second} {
			t.Run(fmt.Sprint(before, ", answers after ", after), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					rows, resumed := &oneToken{answer: found}, make(chan struct{})
					ts := running(t, rows)
					use(t, ts, 10*time.Second)
					switch before {
					case "hung":
						rows.setAnswer(stopped(resumed, ended))
					case "was unavailable":
						rows.setAnswer(fails)
					}
					use(t, ts, time.Minute)
					revoked := time.Now()
					rows.setAnswer(slow(after, ended))
					close(resumed)
					if _, _, denied := use(t, ts, 10*time.Second); denied.IsZero() || denied.Sub(revoked) > 5*time.Second {
						t.Errorf("it is denied after %v", denied.Sub(revoked))
					}
				})
			})
		}
	}
}

func TestAnUnusedTokenIsLookedUpBeforeItAuthenticates(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rows := &oneToken{answer: found}
		ts := running(t, rows)
		use(t, ts, time.Second)
		time.Sleep(5 * time.Second)
		rows.setAnswer(ended)
		if _, err := ts.Authenticate(t.Context(), "secret", always); !errors.Is(err, api.ErrUnknownToken) {
			t.Errorf("revoked, and used first after five seconds: %v", err)
		}
	})
}

func TestAfterAPauseOnlyTheFirstRequestWaitsForAHangingDatabase(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rows := &oneToken{answer: found}
		ts := running(t, rows)
		use(t, ts, time.Second)
		rows.setAnswer(silent)
		time.Sleep(time.Minute)
		if n, waited, _ := use(t, ts, 10*time.Second); n < 180 || waited != tokenTimeout {
			t.Errorf("%d requests are authenticated after waits of %v, want %v", n, waited, tokenTimeout)
		}
		rows.setAnswer(ended)
		time.Sleep(tokenLookUp + tokenPause) // without requests
		if _, err := ts.Authenticate(t.Context(), "secret", always); !errors.Is(err, api.ErrUnknownToken) {
			t.Errorf("revoked, and the database is back: %v", err)
		}
	})
}

func TestACachedTokenAuthenticatesWhileTheDatabaseIsUnavailableForALimitedTime(t *testing.T) {
	begin := time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)
	until := func(expires time.Time) lookup {
		return func(context.Context) (rows.Token, error) {
			return rows.Token{Name: "ann", ExpiresAt: expires}, nil
		}
	}
	type step struct {
		after         time.Duration
		answer        lookup
		authenticates bool
	}
	for name, steps := range map[string][]step{
		"never found": {{0, fails, false}},
		"found": {
			{0, found, true},
			{time.Minute, fails, true},
			{tokenOutage - 1, fails, true},
			{tokenOutage, fails, false},
		},
		"found, then no answer": {{0, found, true}, {time.Minute, silent, true}},
		"expires meanwhile": {
			{0, until(begin.Add(time.Minute)), true},
			{time.Minute - 1, fails, true},
			{time.Minute, fails, false},
		},
		"revoked, then unavailable": {{0, found, true}, {tokenFresh, ended, false}, {tokenFresh + 1, fails, false}},
		"the clock steps back":      {{0, found, true}, {-time.Second, fails, false}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				list := &oneToken{}
				ts := quietTokens(list)
				for _, s := range steps {
					ts.now = func() time.Time { return begin.Add(s.after) }
					list.setAnswer(s.answer)
					caller, err := ts.Authenticate(t.Context(), "secret", always)
					if (err == nil) != s.authenticates || s.authenticates && caller.Token != "ann" {
						t.Errorf("after %v: %+v, %v; want it authenticated: %v", s.after, caller, err, s.authenticates)
					}
				}
			})
		})
	}
}

func TestACanceledRequestIsNotAuthenticatedAndDoesNotMarkTheDatabaseAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rows := &oneToken{answer: found}
		ts := quietTokens(rows)
		use(t, ts, time.Second)
		time.Sleep(tokenFresh)
		canceled, cancel := context.WithCancel(t.Context())
		cancel()
		rows.setAnswer(silent)
		if _, err := ts.Authenticate(canceled, "secret", always); !errors.Is(err, context.Canceled) || ts.failing {
			t.Errorf("%v, database unavailable: %v; want only the cancellation", err, ts.failing)
		}
	})
}
