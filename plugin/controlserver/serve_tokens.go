package controlserver

import (
	"context"
	"crypto/sha256"
	"errors"
	"time"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/pgstore"
)

const (
	// tokenRenewal is the age at which a token that is used is looked up again, beside the request that uses it.
	tokenRenewal = 2 * time.Second
	// tokenBelief is the age from which a token is denied until it was looked up again, while look-ups work. A revoked
	// one opens nothing after that: five seconds are promised.
	tokenBelief = 4 * time.Second
	// tokenOutage is the age from which a token is denied although look-ups fail. No token can be revoked either where the
	// database is away; where only this process is cut off, a revocation is late by so much at most.
	tokenOutage = 10 * time.Minute

	// tokenPatience is how long a look-up may take before it is taken for one that hangs: shorter than from tokenRenewal
	// to tokenBelief, so that a token in use does not grow old before that is known.
	tokenPatience = 500 * time.Millisecond
	// tokenLook is how long a look-up beside requests may take in all: a database that is slow is listened to as well.
	tokenLook = 5 * time.Second
	// tokenPause lies between two look-ups that fail.
	tokenPause = 500 * time.Millisecond
	// tokenQueue is how many tokens wait to be looked up again. For those that find no room their next request asks.
	tokenQueue = 256
)

// secretHash is by what a secret is remembered.
type secretHash = [sha256.Size]byte

// knownToken is a token that was found in the database.
type knownToken struct {
	token   pgstore.Token
	at      time.Time // when the last look-up that found it began; what was revoked later it has missed
	renewed bool      // it is about to be looked up again
}

// age returns how old the knowledge is at an instant. holds is false for a token that is denied.
func (k knownToken) age(at time.Time) (age time.Duration, holds bool) {
	age = at.Sub(k.at)
	return age, age >= 0 && age < tokenOutage && (k.token.ExpiresAt.IsZero() || at.Before(k.token.ExpiresAt))
}

// renewal is a token to be looked up again. Its secret is kept until that is done.
type renewal struct {
	hash   secretHash
	secret string
}

// renew has a token looked up beside the requests. t.mu is held.
func (t *tokens) renew(hash secretHash, secret string) {
	k, known := t.known[hash]
	if !known || k.renewed {
		return
	}
	select {
	case t.renewals <- renewal{hash, secret}:
		k.renewed = true
		t.known[hash] = k
	default:
	}
}

// renewAll looks tokens up again, one after the other, until ctx ends. While that fails, it is one token that finds out
// when the database is back.
func (t *tokens) renewAll(ctx context.Context) {
	for {
		select {
		case r := <-t.renewals:
			for !t.lookAgain(ctx, r) {
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

// lookAgain looks a token up for the requests to come, and reports whether the database answered.
func (t *tokens) lookAgain(ctx context.Context, r renewal) bool {
	looking, cancel := context.WithTimeout(ctx, tokenLook)
	defer cancel()
	hanging := time.AfterFunc(tokenPatience, func() { t.lose(context.DeadlineExceeded) })
	defer hanging.Stop()
	_, err := t.look(looking, r.hash, r.secret)
	if err != nil && !isTokenDenial(err) {
		if ctx.Err() == nil {
			t.lose(err)
		}
		return false
	}
	return true
}

// look asks the database for the token of a secret, and remembers what it says.
func (t *tokens) look(ctx context.Context, hash secretHash, secret string) (pgstore.Token, error) {
	asked := t.now()
	token, err := t.rows.Authenticate(ctx, secret)
	denied := new(pgstore.TokenError)
	isDenied := errors.As(err, &denied)
	if err != nil && !isDenied {
		return token, err
	}
	if isDenied && denied.Name != "" {
		t.log.Warn("an expired or revoked token was used", "token", denied.Name, "state", denied.State)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.away {
		t.away = false
		t.log.Info("token lookups work again")
	}
	if isDenied {
		delete(t.known, hash)
		t.unknown.add(hash, asked)
	} else {
		t.keep(hash, knownToken{token: token, at: asked})
	}
	return token, err
}

// lose notes that look-ups fail, or hang.
func (t *tokens) lose(err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.away {
		t.log.Warn(
			"token lookups failed: recently used tokens stay valid for a while",
			"minutes",
			tokenOutage.Minutes(),
			"error",
			err,
		)
	}
	t.away = true
}
