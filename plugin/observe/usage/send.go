package usage

import (
	"cmp"
	"context"
	"math/rand/v2"
	"time"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/observe/drain"
)

const (
	// reportTime is how long one call of the sink may take before its context ends.
	reportTime = 10 * time.Second
	// sweepEvery is the time between two looks for what ended processes have left in the folder.
	sweepEvery = time.Minute
)

// send sends batches until ctx ends, or until all are stored after the last one was made.
func (r *Reporter) send(ctx context.Context) {
	for failures := 0; ctx.Err() == nil; {
		ending := r.signals.IsEnding()
		w := r.first()
		switch {
		case w != nil && !r.deliver(ctx, w):
			if failures++; ending && w.saved {
				return // the next process sends it
			}
			most := min(drain.MaxPause, drain.FirstPause<<min(failures-1, 10))
			r.signals.Pause(ctx, most/2+rand.N(most/2+1)) // nodes do not come back at the same instant
			continue
		case w == nil && ending:
			return
		case w == nil && time.Since(r.swept) >= sweepEvery:
			r.swept = time.Now()
			r.sweep(ctx)
			r.readBacklog(ctx)
			continue
		case w == nil:
			r.signals.Await(ctx, sweepEvery)
		}
		failures = 0
	}
}

// deliver sends a batch of the queue, and reports whether it needs to be sent no more.
func (r *Reporter) deliver(ctx context.Context, w *waiting) bool {
	err := r.report(ctx, r.options.Node, r.epoch, w.seq, time.Since(w.began), w.payload)
	return r.sent(err)
}

// report calls the sink once.
func (r *Reporter) report(
	ctx context.Context, node, epoch string, seq int64, age time.Duration, payload []byte,
) error {
	bounded, cancel := context.WithTimeout(ctx, reportTime)
	defer cancel()
	err := r.options.Sink.Report(bounded, node, epoch, seq, age, payload)
	if err == nil || ctx.Err() == nil {
		r.recordResult(err)
	}
	return err
}

// readBacklog reads how long the reports of all nodes have been waiting. Why it cannot is logged once.
func (r *Reporter) readBacklog(ctx context.Context) {
	bounded, cancel := context.WithTimeout(ctx, reportTime)
	defer cancel()
	backlog, err := r.options.Sink.Backlog(bounded)
	if ctx.Err() != nil {
		return
	}
	if err != nil && !r.blind {
		r.options.Log.Warn("how long reported usage waits to be unpacked cannot be read: "+
			cmp.Or(adviceOf(err), "Postgres does not answer"), "error", err)
	}
	r.blind = err != nil
	r.mu.Lock()
	defer r.mu.Unlock()
	r.account.Backlog = backlog
}

// recordResult logs when the sink begins to fail, fails for another reason, and works again.
func (r *Reporter) recordResult(err error) {
	problem := ""
	if err != nil {
		problem = cmp.Or(adviceOf(err), "Postgres does not store it")
	}
	if problem == r.problem {
		return
	}
	before := r.problem
	switch r.problem = problem; {
	case err == nil:
		r.options.Log.Info("usage is reported again")
	case IsRejection(err):
		r.problem = before // the next batch may be stored
		r.options.Log.Error("a batch of usage was dropped: Postgres rejects it", "error", err)
	default:
		r.options.Log.Warn("usage is not reported, and waits: "+problem, "error", err)
	}
}
