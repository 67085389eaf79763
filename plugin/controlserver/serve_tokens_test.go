package controlserver

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/control"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/pgstore"
)

// oneToken is a database with one token; answer is what it says of it.
type oneToken struct {
	mu      sync.Mutex
	answer  func(ctx context.Context) (pgstore.Token, error)
	running int
	most    int // look-ups that ran at once
}

func (o *oneToken) Authenticate(ctx context.Context, _ string) (pgstore.Token, error) {
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

func (o *oneToken) says(answer func(context.Context) (pgstore.Token, error)) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.answer = answer
}

// atOnce is how many look-ups ran at once, at most.
func (o *oneToken) atOnce() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.most
}

// What a database says of the token.
var (
	found = func(context.Context) (pgstore.Token, error) { return pgstore.Token{ID: 1, Name: "ann"}, nil }
	ended = func(context.Context) (pgstore.Token, error) {
		return pgstore.Token{}, &pgstore.TokenError{Name: "ann", State: pgstore.TokenRevoked}
	}
	fails = func(context.Context) (pgstore.Token, error) {
		return pgstore.Token{}, errors.New("the database is away")
	}
	silent = func(ctx context.Context) (pgstore.Token, error) {
		<-ctx.Done()
		return pgstore.Token{}, ctx.Err()
	}
)

// slow is a database that takes so long to say something.
func slow(by time.Duration, says func(context.Context) (pgstore.Token, error)) func(context.Context) (pgstore.Token, error) {
	return func(ctx context.Context) (pgstore.Token, error) {
		select {
		case <-time.After(by):
			return says(ctx)
		case <-ctx.Done():
			return pgstore.Token{}, ctx.Err()
		}
	}
}

// stopped is a database that says nothing until it is resumed.
func stopped(resumed <-chan struct{}, says func(context.Context) (pgstore.Token, error)) func(context.Context) (pgstore.Token, error) {
	return func(ctx context.Context) (pgstore.Token, error) {
		select {
		case <-resumed:
			return says(ctx)
		case <-ctx.Done():
			return pgstore.Token{}, ctx.Err()
		}
	}
}

// running are tokens of rows that are looked up again until the test ends.
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

// use sends requests with the token, 20 in a second for so long, and tells how many were let in and how long they waited
// in all, and when the first was refused, if one was.
func use(t *testing.T, ts *tokens, long time.Duration) (in int, waited time.Duration, refused time.Time) {
	t.Helper()
	for until := time.Now().Add(long); time.Now().Before(until); time.Sleep(50 * time.Millisecond) {
		start := time.Now()
		_, err := ts.Authenticate(t.Context(), "secret", always)
		waited += time.Since(start)
		switch {
		case err == nil:
			in++
		case refused.IsZero():
			refused = start
		}
	}
	return in, waited, refused
}

func TestRequestsOfATokenInUseNeverWaitForTheDatabaseEvenWhenItBeginsToHang(t *testing.T) {
	for name, says := range map[string]func(context.Context) (pgstore.Token, error){
		"works": found, "is slow": slow(400*time.Millisecond, found), "hangs": silent, "is away": fails, "is away after a while": slow(3*time.Second, fails),
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				rows := &oneToken{answer: found}
				ts := running(t, rows)
				use(t, ts, 10*time.Second)
				rows.says(says)
				if in, waited, _ := use(t, ts, time.Minute); in != 1200 || waited != 0 {
					t.Errorf("%d of 1200 requests were let in, and they waited %v", in, waited)
				}
				if most := rows.atOnce(); most != 1 {
					t.Errorf("%d look-ups ran at once", most)
				}
			})
		})
	}
}

func TestARevokedTokenLetsNobodyInAfterFiveSecondsAlsoWhenTheDatabaseHasJustComeBack(t *testing.T) {
	for _, before := range []string{"worked", "hung", "was away"} {
		for _, after := range []time.Duration{0, 400 * time.Millisecond, time.Second} {
			t.Run(fmt.Sprint(before, ", answers after ", after), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					rows, resumed := &oneToken{answer: found}, make(chan struct{})
					ts := running(t, rows)
					use(t, ts, 10*time.Second)
					switch before {
					case "hung":
						rows.says(stopped(resumed, ended))
					case "was away":
						rows.says(fails)
					}
					use(t, ts, time.Minute)
					revoked := time.Now()
					rows.says(slow(after, ended))
					close(resumed)
					if _, _, refused := use(t, ts, 10*time.Second); refused.IsZero() || refused.Sub(revoked) > 5*time.Second {
						t.Errorf("it was refused after %v", refused.Sub(revoked))
					}
				})
			})
		}
	}
}

func TestATokenThatRestedIsLookedUpBeforeItLetsIn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rows := &oneToken{answer: found}
		ts := running(t, rows)
		use(t, ts, time.Second)
		time.Sleep(5 * time.Second)
		rows.says(ended)
		if _, err := ts.Authenticate(t.Context(), "secret", always); !errors.Is(err, control.ErrUnknownToken) {
			t.Errorf("revoked, and used first after five seconds: %v", err)
		}
	})
}

func TestAfterARestOnlyTheFirstRequestWaitsForADatabaseThatHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rows := &oneToken{answer: found}
		ts := running(t, rows)
		use(t, ts, time.Second)
		rows.says(silent)
		time.Sleep(time.Minute)
		if in, waited, _ := use(t, ts, 10*time.Second); in < 180 || waited != tokenPatience {
			t.Errorf("%d requests were let in and waited %v, want %v", in, waited, tokenPatience)
		}
		rows.says(ended)
		time.Sleep(tokenLook + tokenPause) // and nobody asks for anything
		if _, err := ts.Authenticate(t.Context(), "secret", always); !errors.Is(err, control.ErrUnknownToken) {
			t.Errorf("revoked, and the database is back: %v", err)
		}
	})
}

func TestATokenThatWasKnownLatelyLetsInWhileTheDatabaseIsAwayAndNoLongerThanItMay(t *testing.T) {
	begin := time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)
	until := func(expires time.Time) func(context.Context) (pgstore.Token, error) {
		return func(context.Context) (pgstore.Token, error) {
			return pgstore.Token{Name: "ann", ExpiresAt: expires}, nil
		}
	}
	type step struct {
		after time.Duration
		says  func(context.Context) (pgstore.Token, error)
		in    bool
	}
	for name, steps := range map[string][]step{
		"never known":          {{0, fails, false}},
		"known":                {{0, found, true}, {time.Minute, fails, true}, {tokenOutage - 1, fails, true}, {tokenOutage, fails, false}},
		"known, and silence":   {{0, found, true}, {time.Minute, silent, true}},
		"expires meanwhile":    {{0, until(begin.Add(time.Minute)), true}, {time.Minute - 1, fails, true}, {time.Minute, fails, false}},
		"revoked, then away":   {{0, found, true}, {tokenBelief, ended, false}, {tokenBelief + 1, fails, false}},
		"the clock steps back": {{0, found, true}, {-time.Second, fails, false}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				rows := &oneToken{}
				ts := quietTokens(rows)
				for _, s := range steps {
					ts.now = func() time.Time { return begin.Add(s.after) }
					rows.says(s.says)
					caller, err := ts.Authenticate(t.Context(), "secret", always)
					if (err == nil) != s.in || s.in && caller.Token != "ann" {
						t.Errorf("after %v: %+v, %v; want it in: %v", s.after, caller, err, s.in)
					}
				}
			})
		})
	}
}

func TestACallerWhoHasGoneIsNotLetInAndSaysNothingOfTheDatabase(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rows := &oneToken{answer: found}
		ts := quietTokens(rows)
		use(t, ts, time.Second)
		time.Sleep(tokenBelief)
		gone, leave := context.WithCancel(t.Context())
		leave()
		rows.says(silent)
		if _, err := ts.Authenticate(gone, "secret", always); !errors.Is(err, context.Canceled) || ts.away {
			t.Errorf("%v, and the database is taken for away: %v; want that the caller has gone", err, ts.away)
		}
	})
}
