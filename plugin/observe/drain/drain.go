// Package drain has what goroutines share that deliver what waits in a queue: how they wait, try again and end.
package drain

import (
	"context"
	"time"
)

const (
	// Grace is how long work may take to notice that its context has ended.
	Grace = 100 * time.Millisecond
	// FirstPause is the pause before a failed delivery is tried again for the first time.
	FirstPause = 100 * time.Millisecond
	// MaxPause is the longest such pause.
	MaxPause = 5 * time.Second
)

// Run runs collect beside deliver, which goes on when ctx has ended. When collect has returned, Run waits for deliver.
// After limit it ends the context of deliver, and waits at most Grace longer.
func Run(ctx context.Context, limit time.Duration, collect, deliver func(context.Context)) {
	delivering, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	done := make(chan struct{})
	go func() {
		defer close(done)
		deliver(delivering)
	}()
	collect(ctx)
	ending, cancel := context.WithTimeout(context.Background(), limit+Grace)
	defer cancel()
	defer time.AfterFunc(limit, stop).Stop()
	select {
	case <-done:
	case <-ending.Done():
	}
}

// Signals wakes and ends the goroutine that delivers.
type Signals struct {
	wake  chan struct{} // has one element if there may be something to deliver
	ended chan struct{} // closed: nothing more comes
}

// NewSignals returns signals that nothing has given.
func NewSignals() Signals { return Signals{make(chan struct{}, 1), make(chan struct{})} }

// Wake signals that there may be something to deliver.
func (s Signals) Wake() {
	select {
	case s.wake <- struct{}{}:
	default: // it is awake
	}
}

// End signals that nothing more comes. Call it once.
func (s Signals) End() { close(s.ended) }

// IsEnding reports whether nothing more comes. Read it before the queue, which then has everything.
func (s Signals) IsEnding() bool {
	select {
	case <-s.ended:
		return true
	default:
		return false
	}
}

// Await waits until there may be something to deliver, or nothing more comes, or ctx ends, and at most for a time (0:
// without a bound).
func (s Signals) Await(ctx context.Context, most time.Duration) {
	if most > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, most)
		defer cancel()
	}
	select {
	case <-ctx.Done():
	case <-s.ended:
	case <-s.wake:
	}
}

// Pause waits before the next try. End ends a running pause, and later ones take at most FirstPause.
func (s Signals) Pause(ctx context.Context, length time.Duration) {
	ended := s.ended
	if s.IsEnding() {
		ended, length = nil, min(length, FirstPause)
	}
	timer := time.NewTimer(length)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-ended:
	case <-timer.C:
	}
}
