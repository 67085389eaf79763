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

// enqueue adds a batch to the queue, and drops the oldest ones if there is no room for all. The batch that is being
// sent stays.
func (r *Reporter) enqueue(w *waiting) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.queue = append(r.queue, w)
	r.bytes += sizeOf(int64(len(w.payload)))
	first, dropped := 0, 0
	if r.sending {
		first = 1
	}
	for r.bytes > r.options.MaxBytes && len(r.queue) > first+1 {
		r.removeAt(first)
		dropped++
	}
	r.account.Dropped[Room] += uint64(dropped)
	if dropped > 0 && r.account.Dropped[Room] == uint64(dropped) {
		r.options.Log.Error("batches of usage are dropped: too many wait for Postgres", "bytes", r.options.MaxBytes)
	}
	r.signals.Wake()
}

// removeAt removes a batch of the queue, and its file. r.mu is held.
func (r *Reporter) removeAt(i int) {
	w := r.queue[i]
	r.bytes -= sizeOf(int64(len(w.payload)))
	copy(r.queue[i:], r.queue[i+1:])
	r.queue[len(r.queue)-1] = nil
	if r.queue = r.queue[:len(r.queue)-1]; len(r.queue) == 0 {
		r.queue = nil // frees the memory of the longest queue
	}
	if w.saved {
		if err := r.folder.remove(w.seq); err != nil {
			r.options.Log.Warn("removing a batch of usage failed: the next process sends it again", "error", err)
		}
	}
}

// first returns the oldest batch, which stays in the queue until sent is called; nil: none waits.
func (r *Reporter) first() *waiting {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.sending = len(r.queue) > 0; !r.sending {
		return nil
	}
	return r.queue[0]
}

// sent removes the oldest batch if it needs to be sent no more, and counts it.
func (r *Reporter) sent(err error) (done bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.sending = false
	if len(r.queue) == 0 || !r.count(err) { // abandon may have emptied the queue
		return false
	}
	r.removeAt(0)
	return true
}

// count counts the result of a call of the sink, and reports whether its batch needs to be sent no more. r.mu is held.
func (r *Reporter) count(err error) bool {
	switch {
	case err == nil:
		r.account.Stored++
		return true
	case IsRejection(err):
		r.account.Dropped[Rejected]++
		return true
	}
	r.account.Failed++
	return false
}

// openFolder opens the folder of this process. Without it batches wait in memory only.
func (r *Reporter) openFolder() {
	if r.options.Dir == "" {
		return
	}
	f, err := openFolder(r.options.Dir, r.epoch, r.options.Node)
	if err != nil {
		r.options.Log.Warn("usage cannot be saved: what Postgres has not stored is lost when this process ends",
			"error", err)
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.folder = f
}

// save writes a batch to the folder. If that fails it waits in memory only, which is logged once
// until it succeeds.
func (r *Reporter) save(w *waiting) {
	if r.folder == nil {
		return
	}
	if err := r.folder.save(w); err != nil {
		if !r.unsaved {
			r.options.Log.Warn("saving a batch of usage failed: it waits in memory only", "error", err)
		}
		r.unsaved = true
		return
	}
	r.unsaved, w.saved = false, true
}

// abandon drops the batches that are in no file, and closes the folder.
func (r *Reporter) abandon() {
	r.mu.Lock()
	defer r.mu.Unlock()
	lost, kept := 0, 0
	for _, w := range r.queue {
		if w.saved {
			kept++
		} else {
			lost++
		}
	}
	r.queue, r.bytes = nil, 0
	r.account.Dropped[Shutdown] += uint64(lost)
	if lost > 0 {
		r.options.Log.Warn("usage was dropped at shutdown: Postgres did not store it", "batches", lost)
	}
	if kept > 0 {
		r.options.Log.Info("usage waits for the next process: Postgres did not store it", "batches", kept)
	}
	if r.folder != nil {
		if err := r.folder.close(kept == 0); err != nil {
			r.options.Log.Warn("closing the folder of usage failed", "error", err)
		}
	}
}
