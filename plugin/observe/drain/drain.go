// Package drain bounds how long the last work of a process takes at its end.
package drain

import (
	"context"
	"time"
)

// Grace is how long work may take to notice that its context has ended.
const Grace = 100 * time.Millisecond

// Wait waits until done is closed. It calls stop after limit, and waits at most Grace longer.
func Wait(done <-chan struct{}, limit time.Duration, stop context.CancelFunc) {
	ending, cancel := context.WithTimeout(context.Background(), limit+Grace)
	defer cancel()
	defer time.AfterFunc(limit, stop).Stop()
	select {
	case <-done:
	case <-ending.Done():
	}
}
