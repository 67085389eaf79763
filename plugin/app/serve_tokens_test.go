package app

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"time"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/pgstore"
)

// oneToken is a database with one token; answer is what it says of it.
type oneToken struct {
	answer func(ctx context.Context) (pgstore.Token, error)
}

func (o *oneToken) Authenticate(ctx context.Context, _ string) (pgstore.Token, error) {
	return o.answer(ctx)
}

func (o *oneToken) Used(context.Context, map[int64]time.Duration) error { return nil }

func TestATokenThatWasKnownLatelyLetsInWhileTheDatabaseIsAwayAndNoLongerThanItMay(t *testing.T) {
	begin := time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)
	errAway := errors.New("the database is away")
	found := func(expires time.Time) func(context.Context) (pgstore.Token, error) {
		return func(context.Context) (pgstore.Token, error) {
			return pgstore.Token{Name: "ann", ExpiresAt: expires}, nil
		}
	}
	refused := func(context.Context) (pgstore.Token, error) {
		return pgstore.Token{}, &pgstore.TokenError{Name: "ann", State: pgstore.TokenRevoked}
	}
	away := func(context.Context) (pgstore.Token, error) { return pgstore.Token{}, errAway }
	silent := func(ctx context.Context) (pgstore.Token, error) {
		<-ctx.Done()
		return pgstore.Token{}, ctx.Err()
	}
	type step struct {
		after time.Duration
		says  func(context.Context) (pgstore.Token, error)
		in    bool
	}
	for name, steps := range map[string][]step{
		"never known":          {{0, away, false}},
		"known":                {{0, found(time.Time{}), true}, {time.Minute, away, true}, {tokenOutage - 1, away, true}, {tokenOutage, away, false}},
		"known, and silence":   {{0, found(time.Time{}), true}, {time.Minute, silent, true}},
		"expires meanwhile":    {{0, found(begin.Add(time.Minute)), true}, {time.Minute - 1, away, true}, {time.Minute, away, false}},
		"revoked, then away":   {{0, found(time.Time{}), true}, {1, refused, false}, {2, away, false}},
		"the clock steps back": {{0, found(time.Time{}), true}, {-time.Second, away, false}},
	} {
		t.Run(name, func(t *testing.T) {
			rows := &oneToken{}
			l := newLastingRows(rows, slog.New(slog.DiscardHandler))
			for _, s := range steps {
				rows.answer, l.now = s.says, func() time.Time { return begin.Add(s.after) }
				token, err := l.Authenticate(t.Context(), "secret")
				if (err == nil) != s.in || s.in && token.Name != "ann" {
					t.Errorf("after %v: %+v, %v; want it in: %v", s.after, token, err, s.in)
				}
			}
		})
	}
}

func TestACallerWhoHasGoneIsNotLetIn(t *testing.T) {
	rows := &oneToken{answer: func(context.Context) (pgstore.Token, error) { return pgstore.Token{Name: "ann"}, nil }}
	l := newLastingRows(rows, slog.New(slog.DiscardHandler))
	if _, err := l.Authenticate(t.Context(), "secret"); err != nil {
		t.Fatal(err)
	}
	gone, leave := context.WithCancel(t.Context())
	leave()
	rows.answer = func(ctx context.Context) (pgstore.Token, error) { return pgstore.Token{}, ctx.Err() }
	if _, err := l.Authenticate(gone, "secret"); !errors.Is(err, context.Canceled) {
		t.Errorf("%v, want that the caller has gone", err)
	}
}
