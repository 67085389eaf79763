package controlserver

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
	// tokenMemory is how many tokens are kept at once, more than are in use anywhere.
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

// tokens are the callers of the REST API, by the rows of the database. A token that was found is believed in for a
// moment and looked up again while requests go on with it, so a busy caller never waits for the database, also when it
// hangs; while it is away, what was known lately lets in. What was not found is not asked for again for a moment: see
// unknownSecrets. It is safe for concurrent use; make it with newTokens, and have Run run.
type tokens struct {
	rows     tokenRows
	isSecret func(text string) bool // what is none is not looked up
	log      *slog.Logger
	now      func() time.Time
	renewals chan renewal

	mu      sync.Mutex
	known   map[secretHash]knownToken // the secrets themselves are not kept
	unknown unknownSecrets
	used    map[int64]time.Time // when a token was used last, by its id, until that is noted
	unnoted bool                // the last try to note that failed, and that was logged; Run's alone
	away    bool                // look-ups fail, or hang, and Run tries until one does not
}

func newTokens(rows tokenRows, log *slog.Logger) *tokens {
	return &tokens{
		rows: rows, isSecret: pgstore.IsSecret, log: log, now: time.Now, renewals: make(chan renewal, tokenQueue),
		known: map[secretHash]knownToken{}, used: map[int64]time.Time{},
	}
}

// Authenticate implements control.Authenticator.
func (t *tokens) Authenticate(ctx context.Context, secret string, mayLook func() bool) (control.Caller, error) {
	if !t.isSecret(secret) {
		return control.Caller{}, control.ErrUnknownToken
	}
	hash := sha256.Sum256([]byte(secret))
	token, err := t.find(ctx, hash, secret, mayLook)
	if isTokenDenial(err) {
		return control.Caller{}, control.ErrUnknownToken
	}
	if err != nil {
		return control.Caller{}, err
	}
	t.mu.Lock()
	t.used[token.ID] = t.now()
	t.mu.Unlock()
	return control.Caller{Token: token.Name, Role: control.Role(token.Role), Org: token.Org}, nil
}

// isTokenDenial reports whether an error is the database's answer that a secret is of no live token.
func isTokenDenial(err error) bool { return errors.As(err, new(*pgstore.TokenError)) }

// find returns the token of a secret: from memory where that may be believed, else from the database. mayLook is called
// for a secret that is not in memory.
func (t *tokens) find(ctx context.Context, hash secretHash, secret string, mayLook func() bool) (pgstore.Token, error) {
	last, holds, believed := t.recall(hash, secret)
	switch {
	case believed:
		return last, nil
	case holds:
	case t.isUnknown(hash):
		return pgstore.Token{}, &pgstore.TokenError{}
	case !mayLook():
		return pgstore.Token{}, control.ErrNotLookedUp
	}
	looking := ctx
	if holds {
		var cancel context.CancelFunc
		looking, cancel = context.WithTimeout(ctx, tokenPatience)
		defer cancel()
	}
	token, err := t.look(looking, hash, secret)
	if err == nil || isTokenDenial(err) || !holds || ctx.Err() != nil {
		return token, err
	}
	t.lose(err)
	t.mu.Lock()
	defer t.mu.Unlock()
	t.renew(hash, secret)
	return last, nil
}

// recall returns the token of a secret, and whether it holds: if not, it is denied. One that is believed lets in at
// once; when it is no longer new, it is looked up again meanwhile.
func (t *tokens) recall(hash secretHash, secret string) (token pgstore.Token, holds, believed bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	k, known := t.known[hash]
	if !known {
		return pgstore.Token{}, false, false
	}
	age, holds := k.age(t.now())
	if !holds {
		delete(t.known, hash)
		return pgstore.Token{}, false, false
	}
	if believed = age < tokenBelief || t.away; believed && age >= tokenRenewal {
		t.renew(hash, secret)
	}
	return k.token, true, believed
}

// keep keeps a token, if there is room. t.mu is held.
func (t *tokens) keep(hash secretHash, k knownToken) {
	if len(t.known) >= tokenMemory {
		maps.DeleteFunc(t.known, func(_ secretHash, old knownToken) bool { _, holds := old.age(k.at); return !holds })
	}
	if _, there := t.known[hash]; there || len(t.known) < tokenMemory {
		t.known[hash] = k
	}
}

// Run looks tokens up again before they are old, and notes from time to time, and at the end, which were used. It
// returns when ctx ends.
func (t *tokens) Run(ctx context.Context) error {
	var beside sync.WaitGroup
	beside.Go(func() { t.renewAll(ctx) })
	defer beside.Wait()
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
	err := t.rows.Used(ctx, ago)
	if failed := err != nil; failed != t.unnoted {
		if t.unnoted = failed; failed { // once: a standby takes no notes at all
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
