package control

import (
	"cmp"
	"context"
	"errors"
	"sync"
	"time"

	"golang.org/x/sync/semaphore"
)

// Why a body finds no room.
var (
	errTokenBudget = errors.New("the token's share is taken")
	errTotalBudget = errors.New("the room of all tokens is taken")
)

// byteBudget bounds how many bytes are in hand at once: in all, and for one token, which cannot take what others need. It is
// safe for concurrent use; make it with newRoom.
type byteBudget struct {
	all      *semaphore.Weighted
	perToken int64         // bytes
	timeout  time.Duration // how long enter waits

	mu     sync.Mutex
	shares map[string]*tokenBudget // of the tokens that use or await room
}

// tokenBudget is what one token has of a room.
type tokenBudget struct {
	*semaphore.Weighted
	users int // requests that hold some of it, or wait for it
}

func newByteBudget(all, perToken int64, patience time.Duration) *byteBudget {
	return &byteBudget{all: semaphore.NewWeighted(all), perToken: perToken, timeout: patience, shares: map[string]*tokenBudget{}}
}

// acquire waits until so many bytes fit, and takes them until leave is called. The error is errShareTaken, errRoomTaken,
// or that of ctx. A token that waits for its own share takes nothing of the others' room meanwhile.
func (r *byteBudget) acquire(ctx context.Context, token string, bytes int64) (leave func(), err error) {
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

// acquireInTime reports whether so many bytes of a semaphore were had, at once or within r.patience.
func (r *byteBudget) acquireInTime(ctx context.Context, of *semaphore.Weighted, bytes int64) bool {
	if of.TryAcquire(bytes) {
		return true
	}
	ctx, cancel := context.WithTimeout(ctx, r.timeout)
	defer cancel()
	return of.Acquire(ctx, bytes) == nil
}

// budgetOf returns the share of a token, which stays until part was called as often.
func (r *byteBudget) budgetOf(token string) *tokenBudget {
	r.mu.Lock()
	defer r.mu.Unlock()
	own := r.shares[token]
	if own == nil {
		own = &tokenBudget{Weighted: semaphore.NewWeighted(r.perToken)}
		r.shares[token] = own
	}
	own.users++
	return own
}

func (r *byteBudget) releaseBudget(token string, own *tokenBudget) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if own.users--; own.users == 0 {
		delete(r.shares, token)
	}
}
