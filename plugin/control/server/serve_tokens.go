package server

import (
	"context"
	"crypto/sha256"
	"errors"
	"time"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/database/rows"
)

const (
	// tokenRenewal is the age at which a used token is looked up again in the background.
	tokenRenewal = 2 * time.Second
	// tokenFresh is the age at which a token is denied until it is looked up again, while look-ups work. The docs promise
	// that a revocation takes effect within five seconds.
	tokenFresh = 4 * time.Second
	// tokenOutage is the age at which a token is denied while look-ups fail. While the database is unavailable, no token
	// can be revoked. If only this process is cut off, a revocation is late by at most this time.
	tokenOutage = 10 * time.Minute

	// tokenTimeout is the time after which a look-up counts as hanging. It is shorter than from tokenRenewal to
	// tokenFresh, so a token in use is not denied before a hanging database is detected.
	tokenTimeout = 500 * time.Millisecond
	// tokenLookUp bounds a look-up in the background, so that a slow database can answer.
	tokenLookUp = 5 * time.Second
	// tokenPause is the time between two look-ups that fail.
	tokenPause = 500 * time.Millisecond
	// tokenQueue bounds the tokens that wait to be looked up again. If it is full, their next request tries again.
	tokenQueue = 256
)

// secretHash identifies a secret in memory.
type secretHash = [sha256.Size]byte

// cachedToken is a token found in the database.
type cachedToken struct {
	token    rows.Token
	at       time.Time // start of the last look-up that found it; it misses later revocations
	renewing bool      // it waits to be looked up again
}

// age returns the time since the look-up of a token, and whether the token is valid at an instant.
func (k cachedToken) age(at time.Time) (age time.Duration, valid bool) {
	age = at.Sub(k.at)
	return age, age >= 0 && age < tokenOutage && (k.token.ExpiresAt.IsZero() || at.Before(k.token.ExpiresAt))
}

// renewal is a token to be looked up again, with its secret until then.
type renewal struct {
	hash   secretHash
	secret string
}

// renew queues a token for a look-up in the background. t.mu is held.
func (t *tokens) renew(hash secretHash, secret string) {
	k, ok := t.cached[hash]
	if !ok || k.renewing {
		return
	}
	select {
	case t.renewals <- renewal{hash, secret}:
		k.renewing = true
		t.cached[hash] = k
	default:
	}
}

// renewAll looks tokens up again, one after the other, until ctx ends. While that fails, it retries the first of them.
func (t *tokens) renewAll(ctx context.Context) {
	for {
		select {
		case r := <-t.renewals:
			for !t.lookUpAgain(ctx, r) {
				select {
				case <-time.After(tokenPause):
				case <-ctx.Done():
					return
				}
			}
		case <-ctx.Done():
			return
		}
	}
}

// lookUpAgain renews a cached token, and reports whether the database answered.
func (t *tokens) lookUpAgain(ctx context.Context, r renewal) bool {
	bounded, cancel := context.WithTimeout(ctx, tokenLookUp)
	defer cancel()
	hanging := time.AfterFunc(tokenTimeout, func() { t.recordFailure(context.DeadlineExceeded) })
	defer hanging.Stop()
	_, err := t.lookUp(bounded, r.hash, r.secret)
	if err != nil && !isTokenDenial(err) {
		if ctx.Err() == nil {
			t.recordFailure(err)
		}
		return false
	}
	return true
}

// lookUp reads the token of a secret from the database, and caches the answer.
func (t *tokens) lookUp(ctx context.Context, hash secretHash, secret string) (rows.Token, error) {
	started := t.now()
	token, err := t.rows.Authenticate(ctx, secret)
	denied := new(rows.TokenError)
	isDenied := errors.As(err, &denied)
	if err != nil && !isDenied {
		return token, err
	}
	if isDenied && denied.Name != "" {
		t.log.Warn("an expired or revoked token was used", "token", denied.Name, "state", denied.State)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.failing {
		t.failing = false
		t.log.Info("token lookups work again")
	}
	if isDenied {
		delete(t.cached, hash)
		t.unknown.add(hash, started)
	} else {
		t.cache(hash, cachedToken{token: token, at: started})
	}
	return token, err
}

// recordFailure records and logs that look-ups fail or hang.
func (t *tokens) recordFailure(err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.failing {
		t.log.Warn("token lookups failed: recently used tokens stay valid for a while", "minutes",
			tokenOutage.Minutes(), "error", err)
	}
	t.failing = true
}
