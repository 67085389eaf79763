package server

import (
	"context"
	"crypto/sha256"
	"errors"
	"log/slog"
	"maps"
	"sync"
	"time"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/control/api"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/database/rows"
)

const (
	// tokenMemory bounds the cached tokens, well above the number in use.
	tokenMemory = 4096
	// tokenUse is the time between two writes of the use of tokens.
	tokenUse = 20 * time.Second
	// tokenLastUse bounds the last of these writes, at the end of the process.
	tokenLastUse = time.Second
)

// tokenRows reads and writes the tokens of the database.
type tokenRows interface {
	Authenticate(ctx context.Context, secret string) (rows.Token, error)
	Used(ctx context.Context, ago map[int64]time.Duration) error
}

// tokens authenticates callers of the REST API by the rows of the database. It caches a found token for a short time
// and looks it up again in the background, so a busy caller never waits for the database, even if it hangs. While the
// database is unavailable, recently found tokens stay valid. unknownSecrets caches secrets without a token. It is safe
// for concurrent use. newTokens makes it, and Run must run.
type tokens struct {
	rows     tokenRows
	isSecret func(text string) bool // other texts are not looked up
	log      *slog.Logger
	now      func() time.Time
	renewals chan renewal

	mu        sync.Mutex
	cached    map[secretHash]cachedToken // without the secrets themselves
	unknown   unknownSecrets
	used      map[int64]time.Time // the last use of tokens by id, until it is written
	useFailed bool                // the last write of the use failed, and that was logged; only Run uses it
	failing   bool                // look-ups fail or hang; Run retries until one succeeds
}

func newTokens(reader tokenRows, log *slog.Logger) *tokens {
	return &tokens{
		rows: reader, isSecret: rows.IsSecret, log: log, now: time.Now, renewals: make(chan renewal, tokenQueue),
		cached: map[secretHash]cachedToken{}, used: map[int64]time.Time{},
	}
}

// Authenticate implements api.Authenticator.
func (t *tokens) Authenticate(ctx context.Context, secret string, mayLook func() bool) (api.Caller, error) {
	if !t.isSecret(secret) {
		return api.Caller{}, api.ErrUnknownToken
	}
	hash := sha256.Sum256([]byte(secret))
	token, err := t.find(ctx, hash, secret, mayLook)
	if isTokenDenial(err) {
		return api.Caller{}, api.ErrUnknownToken
	}
	if err != nil {
		return api.Caller{}, err
	}
	t.mu.Lock()
	t.used[token.ID] = t.now()
	t.mu.Unlock()
	return api.Caller{Token: token.Name, Role: api.Role(token.Role), Org: token.Org}, nil
}

// isTokenDenial reports whether an error is the answer of the database that no live token has the secret.
func isTokenDenial(err error) bool { return errors.As(err, new(*rows.TokenError)) }

// find returns the token of a secret from the cache while it is fresh, else from the database. It calls mayLook for a
// secret that is not cached.
func (t *tokens) find(ctx context.Context, hash secretHash, secret string, mayLook func() bool) (rows.Token, error) {
	last, valid, fresh := t.recall(hash, secret)
	switch {
	case fresh:
		return last, nil
	case valid:
	case t.isUnknown(hash):
		return rows.Token{}, &rows.TokenError{}
	case !mayLook():
		return rows.Token{}, api.ErrNotLookedUp
	}
	bounded := ctx
	if valid {
		var cancel context.CancelFunc
		bounded, cancel = context.WithTimeout(ctx, tokenTimeout)
		defer cancel()
	}
	token, err := t.lookUp(bounded, hash, secret)
	if err == nil || isTokenDenial(err) || !valid || ctx.Err() != nil {
		return token, err
	}
	t.recordFailure(err)
	t.mu.Lock()
	defer t.mu.Unlock()
	t.renew(hash, secret)
	return last, nil
}

// recall returns the cached token of a secret. A token that is not valid is denied. A fresh one authenticates at once;
// if it is no longer new, it is looked up again in the background.
func (t *tokens) recall(hash secretHash, secret string) (token rows.Token, valid, fresh bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	k, ok := t.cached[hash]
	if !ok {
		return rows.Token{}, false, false
	}
	age, valid := k.age(t.now())
	if !valid {
		delete(t.cached, hash)
		return rows.Token{}, false, false
	}
	if fresh = age < tokenFresh || t.failing; fresh && age >= tokenRenewal {
		t.renew(hash, secret)
	}
	return k.token, true, fresh
}

// cache caches a token if there is room. t.mu is held.
func (t *tokens) cache(hash secretHash, k cachedToken) {
	if len(t.cached) >= tokenMemory {
		maps.DeleteFunc(t.cached, func(_ secretHash, old cachedToken) bool { _, valid := old.age(k.at); return !valid })
	}
	if _, ok := t.cached[hash]; ok || len(t.cached) < tokenMemory {
		t.cached[hash] = k
	}
}

// Run renews cached tokens and writes their use, from time to time and at the end. It returns when ctx ends.
func (t *tokens) Run(ctx context.Context) error {
	var renewing sync.WaitGroup
	renewing.Go(func() { t.renewAll(ctx) })
	defer renewing.Wait()
	tick := time.NewTicker(tokenUse)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			t.writeUse(ctx)
		case <-ctx.Done():
			last, cancel := context.WithTimeout(context.WithoutCancel(ctx), tokenLastUse)
			defer cancel()
			t.writeUse(last)
			return nil
		}
	}
}

// writeUse writes the use of tokens since the last call. If that fails, it keeps them for the next call.
func (t *tokens) writeUse(ctx context.Context) {
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
	err := t.rows.Used(ctx, ago)
	if failed := err != nil; failed != t.useFailed {
		if t.useFailed = failed; failed { // logged once, because a standby never accepts it
			t.log.Warn("recording the use of tokens failed", "error", err)
		}
	}
	if err != nil {
		t.mu.Lock()
		defer t.mu.Unlock()
		maps.Copy(used, t.used)
		t.used = used
	}
}
