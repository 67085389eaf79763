package engine

import (
	"context"
	"crypto/rand"
	"time"
	_ "time/tzdata" // tenants' time zones, where the system has none

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/metrics"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/policysync"
)

// FollowRows has the engine follow the rows of Postgres while Run runs. The options need no log and no callback.
func (e *Engine) FollowRows(o policysync.Options) (err error) {
	// Two processes of one node live at once while one takes over, and each reports for itself.
	o.Node += "/" + rand.Text()[:8]
	o.Log, o.Changed = e.log, e.follow
	e.Rows, err = policysync.New(o)
	return err
}

// patience is how long the socket stays closed for the rows of an earlier run: long enough for a hundred thousand. More
// of them come into force a moment after the first requests, because without a socket Kong answers 500.
const patience = 100 * time.Millisecond

// AwaitSaved reads the rows that an earlier run has saved, and waits for them no longer than patience.
func (e *Engine) AwaitSaved(ctx context.Context) {
	if e.Rows == nil {
		return
	}
	read := make(chan struct{})
	go func() {
		defer close(read)
		e.Rows.Load()
	}()
	await(ctx, read, patience)
}

// AwaitRows waits for the first rows, if some are followed, no longer than most.
func (e *Engine) AwaitRows(ctx context.Context, most time.Duration) {
	if e.Rows == nil {
		return
	}
	await(ctx, e.loaded, most)
}

// await waits until done is closed, no longer than most.
func await(ctx context.Context, done <-chan struct{}, most time.Duration) {
	ctx, cancel := context.WithTimeout(ctx, most)
	defer cancel()
	select {
	case <-done:
	case <-ctx.Done():
	}
}

func policyNumbers(s policysync.Stats) metrics.Policies {
	return metrics.Policies{
		Connected:          s.Connected,
		Standby:            s.Standby,
		Version:            s.Version,
		AgeSeconds:         s.Age.Seconds(),
		PropagationSeconds: s.Propagation.Seconds(),
		Rows:               s.Rows,
		Faults:             s.FaultCount,
		Loads:              s.Loads,
		CatchUps:           s.CatchUps,
		Saves:              s.Saves,
	}
}
