// Package drain runs goroutines that deliver what waits in a queue.
package drain

import (
	"context"
	"time"
)

// retryEvery is the time between two tries at the end of [Run].
const retryEvery = 100 * time.Millisecond

// Run calls round every so often, and when wake has a signal, until ctx ends. Then it calls round as the last one, and
// again until that is done. The context of round ends a time limit after ctx, and Run with it.
func Run(
	ctx context.Context, every, limit time.Duration, wake <-chan struct{},
	round func(ctx context.Context, last bool) (done bool),
) {
	delivering, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	defer context.AfterFunc(ctx, func() { time.AfterFunc(limit, stop) })()
	ticker := time.NewTicker(every)
	defer ticker.Stop()
	for ctx.Err() == nil {
		select {
		case <-ctx.Done():
			continue
		case <-ticker.C:
		case <-wake:
		}
		round(delivering, false)
	}
	for !round(delivering, true) && delivering.Err() == nil {
		select {
		case <-delivering.Done():
		case <-time.After(retryEvery):
		}
	}
}
