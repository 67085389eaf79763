package server

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/control/api"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/database/leadership"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/database/rows"
)

const (
	// tokenRefresh is the time between two reads of the tokens, so a revocation takes effect within it.
	tokenRefresh = time.Second
	// tokenTimeout bounds a read of the tokens, and a write of their use.
	tokenTimeout = 5 * time.Second
	// tokenOutage is how long tokens stay valid while they cannot be read. While the database is unavailable, no token can
	// be revoked. If only this process is cut off, a revocation is late by at most this time.
	tokenOutage = 10 * time.Minute
	// tokenUse is the time between two writes of the use of tokens.
	tokenUse = 20 * time.Second
	// tokenLastUse bounds the last of these writes, at the end of the process.
	tokenLastUse = time.Second
)

// errStopped reports a secret that is not among the tokens when they are not read any more.
var errStopped = errors.New("the process is ending")

// tokenRows reads and writes the tokens of the database.
type tokenRows interface {
	Secrets(ctx context.Context) (rows.Secrets, error)
	Used(ctx context.Context, ago map[int64]time.Duration) error
}

// tokens authenticates callers of the REST API by the tokens of the database, which are in memory. A caller waits for
// the database only if its secret is not among them: then it waits for the next read. While the database is
// unavailable, the tokens stay valid for tokenOutage. It is safe for concurrent use. newTokens makes it, and Run must
// run.
type tokens struct {
	rows tokenRows
	log  *slog.Logger
	last atomic.Pointer[tokenList] // nil: none was read yet

	mu      sync.Mutex
	next    *tokenRead          // the read that begins next; once Run has returned, one that has failed
	used    map[int64]time.Time // the last use of tokens by id, until it is written
	unread  leadership.Fault    // of reads
	useLost leadership.Fault    // of writes of the use; a standby never accepts them
}

// tokenList is the tokens as they were at an instant.
type tokenList struct {
	rows.Secrets
	at     time.Time
	warned sync.Map // the names of tokens whose use is logged, though they are not live
}

// tokenRead is a read of the tokens that requests await.
type tokenRead struct {
	done chan struct{}
	err  error // once done is closed
}

func newTokens(reader tokenRows, log *slog.Logger) *tokens {
	return &tokens{
		rows: reader, log: log, next: newTokenRead(), used: map[int64]time.Time{},
		unread: leadership.Fault{
			Log: log, Level: slog.LevelWarn, Begins: "reading the tokens failed: they stay valid for 10 minutes",
			Ends: "the tokens are read again",
		},
		useLost: leadership.Fault{Log: log, Level: slog.LevelWarn, Begins: "recording the use of tokens failed"},
	}
}

func newTokenRead() *tokenRead { return &tokenRead{done: make(chan struct{})} }

// Authenticate implements api.Authenticator.
func (t *tokens) Authenticate(ctx context.Context, secret string) (api.Caller, error) {
	if !rows.IsSecret(secret) {
		return api.Caller{}, api.ErrUnknownToken
	}
	token, err := t.find(secret)
	if denied := new(rows.TokenError); errors.As(err, &denied) && denied.Name == "" {
		if err := t.await(ctx); err != nil {
			return api.Caller{}, err
		}
		token, err = t.find(secret)
	}
	if err != nil {
		return api.Caller{}, api.ErrUnknownToken
	}
	t.mu.Lock()
	t.used[token.ID] = time.Now()
	t.mu.Unlock()
	return api.Caller{Token: token.Name, Role: api.Role(token.Role), Org: token.Org}, nil
}

// find returns the live token of a secret in memory, or a TokenError.
func (t *tokens) find(secret string) (rows.Token, error) {
	list := t.last.Load()
	if list == nil || time.Since(list.at) >= tokenOutage {
		return rows.Token{}, &rows.TokenError{}
	}
	token, err := list.Token(secret)
	if denied := new(rows.TokenError); errors.As(err, &denied) && denied.Name != "" {
		if _, known := list.warned.LoadOrStore(denied.Name, true); !known {
			t.log.Warn("an expired or revoked token was used", "token", denied.Name, "state", denied.State)
		}
	}
	return token, err
}

// await waits for a read of the tokens that begins after it is called.
func (t *tokens) await(ctx context.Context) error {
	t.mu.Lock()
	read := t.next
	t.mu.Unlock()
	select {
	case <-read.done:
		return read.err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Run reads the tokens and writes their use, from time to time; the use also at the end. It returns when ctx ends.
func (t *tokens) Run(ctx context.Context) error {
	refresh, use := time.NewTicker(tokenRefresh), time.NewTicker(tokenUse)
	defer refresh.Stop()
	defer use.Stop()
	t.read(ctx)
	for {
		select {
		case <-refresh.C:
			t.read(ctx)
		case <-use.C:
			t.writeUse(ctx, tokenTimeout)
		case <-ctx.Done():
			t.next.err = errStopped
			close(t.next.done)
			t.writeUse(context.WithoutCancel(ctx), tokenLastUse)
			return nil
		}
	}
}

// read reads the tokens, for all requests that await it.
func (t *tokens) read(ctx context.Context) {
	reading, cancel := context.WithTimeout(ctx, tokenTimeout)
	defer cancel()
	t.mu.Lock()
	read := t.next
	t.next = newTokenRead()
	t.mu.Unlock()
	begun := time.Now()
	secrets, err := t.rows.Secrets(reading)
	if err == nil {
		t.last.Store(&tokenList{Secrets: secrets, at: begun})
	}
	if ctx.Err() == nil { // the end of the process is no failure
		t.unread.Record(err)
	}
	read.err = err
	close(read.done)
}

// writeUse writes the use of tokens since the last call. If that fails, it keeps them for the next call.
func (t *tokens) writeUse(ctx context.Context, most time.Duration) {
	ctx, cancel := context.WithTimeout(ctx, most)
	defer cancel()
	t.mu.Lock()
	used := t.used
	t.used = map[int64]time.Time{}
	t.mu.Unlock()
	if len(used) == 0 {
		return
	}
	ago := make(map[int64]time.Duration, len(used))
	for id, at := range used {
		ago[id] = time.Since(at)
	}
	err := t.rows.Used(ctx, ago)
	t.useLost.Record(err)
	if err != nil {
		t.mu.Lock()
		defer t.mu.Unlock()
		maps.Copy(used, t.used)
		t.used = used
	}
}
