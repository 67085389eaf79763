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
	errShareTaken = errors.New("the token's share is taken")
	errRoomTaken  = errors.New("the room of all tokens is taken")
)

// room bounds how many bytes are in hand at once: in all, and for one token, which cannot take what others need. It is
// safe for concurrent use; make it with newRoom.
type room struct {
	all      *semaphore.Weighted
	perToken int64         // bytes
	patience time.Duration // how long enter waits

	mu     sync.Mutex
	shares map[string]*share // of the tokens that use or await room
}

// share is what one token has of a room.
type share struct {
	*semaphore.Weighted
	users int // requests that hold some of it, or wait for it
}

func newRoom(all, perToken int64, patience time.Duration) *room {
	return &room{all: semaphore.NewWeighted(all), perToken: perToken, patience: patience, shares: map[string]*share{}}
}

// enter waits until so many bytes fit, and takes them until leave is called. The error is errShareTaken, errRoomTaken,
// or that of ctx. A token that waits for its own share takes nothing of the others' room meanwhile.
func (r *room) enter(ctx context.Context, token string, bytes int64) (leave func(), err error) {
	own := r.join(token)
	if !r.acquire(ctx, own.Weighted, bytes) {
		r.part(token, own)
		return nil, cmp.Or(ctx.Err(), errShareTaken)
	}
	if !r.acquire(ctx, r.all, bytes) {
		own.Release(bytes)
		r.part(token, own)
		return nil, cmp.Or(ctx.Err(), errRoomTaken)
	}
	return func() {
		r.all.Release(bytes)
		own.Release(bytes)
		r.part(token, own)
	}, nil
}

// acquire reports whether so many bytes of a semaphore were had, at once or within r.patience.
func (r *room) acquire(ctx context.Context, of *semaphore.Weighted, bytes int64) bool {
	if of.TryAcquire(bytes) {
		return true
	}
	ctx, cancel := context.WithTimeout(ctx, r.patience)
	defer cancel()
	return of.Acquire(ctx, bytes) == nil
}

// join returns the share of a token, which stays until part was called as often.
func (r *room) join(token string) *share {
	r.mu.Lock()
	defer r.mu.Unlock()
	own := r.shares[token]
	if own == nil {
		own = &share{Weighted: semaphore.NewWeighted(r.perToken)}
		r.shares[token] = own
	}
	own.users++
	return own
}

func (r *room) part(token string, own *share) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if own.users--; own.users == 0 {
		delete(r.shares, token)
	}
}
