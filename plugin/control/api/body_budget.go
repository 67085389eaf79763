package api

import (
	"cmp"
	"context"
	"errors"
	"sync"
	"time"

	"golang.org/x/sync/semaphore"
)

// Errors of [byteBudget.acquire].
var (
	errTokenBudget = errors.New("the token's budget is spent")
	errTotalBudget = errors.New("the budget of all tokens is spent")
)

// byteBudget bounds the bytes in progress, in total and per token, so that one token cannot take all of them. It is
// safe for concurrent use. Create it with newByteBudget.
type byteBudget struct {
	all      *semaphore.Weighted
	perToken int64         // bytes
	timeout  time.Duration // how long acquire waits for each of them

	mu      sync.Mutex
	budgets map[string]*tokenBudget // of the tokens with requests in progress
}

// tokenBudget is the part of a byteBudget that one token may use.
type tokenBudget struct {
	*semaphore.Weighted
	users int // requests that hold budget, or wait for it
}

// newByteBudget returns a budget of which all bytes are free.
func newByteBudget(all, perToken int64, timeout time.Duration) *byteBudget {
	return &byteBudget{
		all:      semaphore.NewWeighted(all),
		perToken: perToken,
		timeout:  timeout,
		budgets:  map[string]*tokenBudget{},
	}
}

// acquire waits until so many bytes are free, and takes them until release is called. The error is errTokenBudget,
// errTotalBudget, or that of ctx. A token that waits for its own budget takes nothing of the total meanwhile.
func (r *byteBudget) acquire(ctx context.Context, token string, bytes int64) (release func(), err error) {
	own := r.budgetOf(token)
	if !r.acquireInTime(ctx, own.Weighted, bytes) {
		r.releaseBudget(token, own)
		return nil, cmp.Or(ctx.Err(), errTokenBudget)
	}
	if !r.acquireInTime(ctx, r.all, bytes) {
		own.Release(bytes)
		r.releaseBudget(token, own)
		return nil, cmp.Or(ctx.Err(), errTotalBudget)
	}
	return func() {
		r.all.Release(bytes)
		own.Release(bytes)
		r.releaseBudget(token, own)
	}, nil
}

// acquireInTime reports whether it could take so many bytes of a semaphore at once or within the timeout.
func (r *byteBudget) acquireInTime(ctx context.Context, of *semaphore.Weighted, bytes int64) bool {
	if of.TryAcquire(bytes) {
		return true
	}
	ctx, cancel := context.WithTimeout(ctx, r.timeout)
	defer cancel()
	return of.Acquire(ctx, bytes) == nil
}

// budgetOf returns the budget of a token. Each call must be followed by one of releaseBudget.
func (r *byteBudget) budgetOf(token string) *tokenBudget {
	r.mu.Lock()
	defer r.mu.Unlock()
	own := r.budgets[token]
	if own == nil {
		own = &tokenBudget{Weighted: semaphore.NewWeighted(r.perToken)}
		r.budgets[token] = own
	}
	own.users++
	return own
}

// releaseBudget drops the budget of a token once no request uses it.
func (r *byteBudget) releaseBudget(token string, own *tokenBudget) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if own.users--; own.users == 0 {
		delete(r.budgets, token)
	}
}
