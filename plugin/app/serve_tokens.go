package app

import (
	"context"
	"crypto/sha256"
	"errors"
	"log/slog"
	"maps"
	"sync"
	"time"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/pgstore"
)

const (
	// tokenOutage is how long a token lets somebody in that cannot be looked up. Nobody can revoke one either where the
	// database is away; where only this process is cut off, a revocation is late by so much at most.
	tokenOutage = 10 * time.Minute
	// tokenPatience is how long a token that was known lately waits for the database.
	tokenPatience = 500 * time.Millisecond
)

// lastingRows are the tokens of the database, and while it is away those that were found in it lately: decisions need it
// for nothing else, and callers should not be refused for want of it. It is safe for concurrent use.
type lastingRows struct {
	tokenRows
	log *slog.Logger
	now func() time.Time

	mu    sync.Mutex
	found map[[sha256.Size]byte]foundToken // by the hash of the secret
	away  bool                             // the last look-up failed, and that was logged
}

// foundToken is a token that was in the database at an instant.
type foundToken struct {
	token pgstore.Token
	at    time.Time
}

func newLastingRows(rows tokenRows, log *slog.Logger) *lastingRows {
	return &lastingRows{tokenRows: rows, log: log, now: time.Now, found: map[[sha256.Size]byte]foundToken{}}
}

// Authenticate implements tokenRows.
func (l *lastingRows) Authenticate(ctx context.Context, secret string) (pgstore.Token, error) {
	hash, asked := sha256.Sum256([]byte(secret)), l.now()
	last, known := l.recall(hash, asked)
	looking := ctx
	if known {
		var cancel context.CancelFunc
		looking, cancel = context.WithTimeout(ctx, tokenPatience)
		defer cancel()
	}
	token, err := l.tokenRows.Authenticate(looking, secret)
	l.mu.Lock()
	defer l.mu.Unlock()
	switch refused := new(pgstore.TokenError); {
	case err == nil:
		l.away = false
		l.keep(hash, foundToken{token, asked})
		return token, nil
	case errors.As(err, &refused):
		l.away = false
		delete(l.found, hash)
	case known && ctx.Err() == nil:
		if !l.away {
			l.log.Warn("tokens cannot be looked up: those that were known lately let in for a while", "minutes", tokenOutage.Minutes(), "error", err)
		}
		l.away = true
		return last, nil
	}
	return token, err
}

// recall is the token of a secret, if it was found lately and has not expired since.
func (l *lastingRows) recall(hash [sha256.Size]byte, at time.Time) (pgstore.Token, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	f, ok := l.found[hash]
	return f.token, ok && f.holds(at)
}

// holds tells whether the token lets in at an instant although it cannot be looked up.
func (f foundToken) holds(at time.Time) bool {
	age := at.Sub(f.at)
	return age >= 0 && age < tokenOutage && (f.token.ExpiresAt.IsZero() || at.Before(f.token.ExpiresAt))
}

// keep keeps a token, if there is room. l.mu is held.
func (l *lastingRows) keep(hash [sha256.Size]byte, f foundToken) {
	if len(l.found) >= tokenMemory {
		maps.DeleteFunc(l.found, func(_ [sha256.Size]byte, old foundToken) bool { return !old.holds(f.at) })
	}
	if _, there := l.found[hash]; there || len(l.found) < tokenMemory {
		l.found[hash] = f
	}
}
