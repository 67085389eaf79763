package app

import (
	"context"
	"crypto/sha256"
	"errors"
	"log/slog"
	"maps"
	"sync"
	"time"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/control"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/pgstore"
)

const (
	// tokenBelief is how long a token that was found is believed in. A revoked one opens nothing after that.
	tokenBelief = 3 * time.Second
	// tokenMemory is how many tokens are believed in at once. Nobody has so many; a bound costs nothing.
	tokenMemory = 4096
	// tokenUse is how long lies between two notes of which tokens were used.
	tokenUse = 20 * time.Second
	// tokenLastUse is how long the last note may take when the process ends.
	tokenLastUse = time.Second
)

// tokenRows are the tokens of the database.
type tokenRows interface {
	Authenticate(ctx context.Context, secret string) (pgstore.Token, error)
	Used(ctx context.Context, ago map[int64]time.Duration) error
}

// tokens are the callers of the REST API, by the rows of the database. What was found is believed for a moment, so that a
// busy caller costs a query every few seconds and not one with each request; what was not found is asked for again, so
// that guessing fills no memory. It is safe for concurrent use; make it with newTokens.
type tokens struct {
	rows tokenRows
	log  *slog.Logger
	now  func() time.Time

	mu    sync.Mutex
	known map[[sha256.Size]byte]knownToken // by the hash of the secret, which itself is not kept
	used  map[int64]time.Time              // when a token was used last, by its id, until that is noted
}

// knownToken is a token that was found in the database.
type knownToken struct {
	token pgstore.Token
	until time.Time // it is believed in before this instant
}

func newTokens(rows tokenRows, log *slog.Logger) *tokens {
	return &tokens{
		rows: rows, log: log, now: time.Now,
		known: map[[sha256.Size]byte]knownToken{}, used: map[int64]time.Time{},
	}
}

// Authenticate implements control.Authenticator.
func (t *tokens) Authenticate(ctx context.Context, secret string) (control.Caller, error) {
	hash := sha256.Sum256([]byte(secret))
	asked := t.now() // a revocation after this instant may be missed, so the belief begins here
	token, known := t.recall(hash, asked)
	if !known {
		var err error
		token, err = t.rows.Authenticate(ctx, secret)
		if refused := new(pgstore.TokenError); errors.As(err, &refused) {
			if refused.Name != "" {
				t.log.Warn("a token that lets nobody in was used", "token", refused.Name, "state", refused.State)
			}
			return control.Caller{}, control.ErrUnknownToken
		}
		if err != nil {
			return control.Caller{}, err
		}
		t.believe(hash, token, asked)
	}
	return control.Caller{Token: token.Name, Role: control.Role(token.Role), Org: token.Org}, nil
}

// recall is the token of a secret, if it is believed in at an instant; then it is used.
func (t *tokens) recall(hash [sha256.Size]byte, at time.Time) (pgstore.Token, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	k, ok := t.known[hash]
	if !ok || !at.Before(k.until) {
		delete(t.known, hash)
		return pgstore.Token{}, false
	}
	t.used[k.token.ID] = at
	return k.token, true
}

// believe keeps a token that was found, asked for at an instant; then it is used.
func (t *tokens) believe(hash [sha256.Size]byte, token pgstore.Token, at time.Time) {
	until := at.Add(tokenBelief)
	if !token.ExpiresAt.IsZero() && token.ExpiresAt.Before(until) {
		until = token.ExpiresAt
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.used[token.ID] = at
	if len(t.known) >= tokenMemory {
		maps.DeleteFunc(t.known, func(_ [sha256.Size]byte, k knownToken) bool { return !at.Before(k.until) })
	}
	if len(t.known) < tokenMemory {
		t.known[hash] = knownToken{token, until}
	}
}

// Run notes from time to time, and at the end, which tokens were used. It returns when ctx ends.
func (t *tokens) Run(ctx context.Context) error {
	tick := time.NewTicker(tokenUse)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			t.note(ctx)
		case <-ctx.Done():
			last, cancel := context.WithTimeout(context.WithoutCancel(ctx), tokenLastUse)
			defer cancel()
			t.note(last)
			return nil
		}
	}
}

// note writes which tokens were used since the last time. What cannot be written is kept for the next time.
func (t *tokens) note(ctx context.Context) {
	t.mu.Lock()
	used := t.used
	t.used = map[int64]time.Time{}
	t.mu.Unlock()
	if len(used) == 0 {
		return
	}
	now, ago := t.now(), make(map[int64]time.Duration, len(used))
	for id, at := range used {
		ago[id] = now.Sub(at)
	}
	if err := t.rows.Used(ctx, ago); err != nil {
		t.log.Warn("the use of tokens could not be noted", "error", err)
		t.mu.Lock()
		defer t.mu.Unlock()
		maps.Copy(used, t.used)
		t.used = used
	}
}
