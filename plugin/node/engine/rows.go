package engine

import (
	"context"
	"crypto/rand"
	"time"
	_ "time/tzdata" // tenants' time zones, where the system has none

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/database/policysync"
)

// FollowRows makes the engine follow the rows of Postgres while Run runs. The options need no log and no callbacks.
func (e *Engine) FollowRows(o policysync.Options) (err error) {
	// Two processes of one node run while one replaces the other, and each reports for itself.
	o.Node += "/" + rand.Text()[:8]
	o.Log, o.Changed, o.Condition = e.log, e.follow, e.condition
	e.follows = o
	e.candidates = e.newCandidates(o)
	e.Rows, err = policysync.New(o)
	return err
}

// savedWait bounds the wait for the saved rows before the socket opens. It suffices for a hundred thousand rows. More
// rows apply shortly after the first requests, because Kong answers 500 without a socket.
const savedWait = 100 * time.Millisecond

// AwaitSaved reads the rows that an earlier run has saved. It waits for at most savedWait.
func (e *Engine) AwaitSaved(ctx context.Context) {
	if e.Rows == nil {
		return
	}
	read := make(chan struct{})
	go func() {
		defer close(read)
		e.Rows.Load()
	}()
	waitFor(ctx, read, savedWait)
}

// AwaitRows waits for the first rows, if there is a database, for at most limit.
func (e *Engine) AwaitRows(ctx context.Context, limit time.Duration) {
	if e.Rows == nil {
		return
	}
	waitFor(ctx, e.loaded, limit)
}

// waitFor waits until done is closed, for at most limit.
func waitFor(ctx context.Context, done <-chan struct{}, limit time.Duration) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	select {
	case <-done:
	case <-ctx.Done():
	}
}
