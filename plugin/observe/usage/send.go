package usage

import (
	"cmp"
	"context"
	"slices"
	"time"
)

const (
	// reportTime is how long one call of the sink may take before its context ends.
	reportTime = 10 * time.Second
	// sweepEvery is the time between two looks for what ended processes have left in the folder.
	sweepEvery = time.Minute
)

// report makes batches of what was counted, and sends those that wait until one fails. If none waits, it looks from
// time to time for what ended processes have left. It reports whether another try at the end could change nothing: the
// next process sends what is in the folder.
func (r *Reporter) report(ctx context.Context, last bool) (done bool) {
	r.cut()
	for began := time.Now(); len(r.queue) > 0 && time.Since(began) <= r.options.Every; {
		w := r.queue[0]
		if !r.send(ctx, r.options.Node, r.epoch, w.seq, time.Since(w.began), w.payload) {
			break
		}
		r.removeFirst()
	}
	if len(r.queue) == 0 && !last {
		r.lookBack(ctx)
	}
	return !slices.ContainsFunc(r.queue, func(w *waiting) bool { return !w.saved })
}

// lookBack looks for what ended processes have left, and reads the backlog, if that is due.
func (r *Reporter) lookBack(ctx context.Context) {
	if time.Since(r.swept) < sweepEvery {
		return
	}
	r.swept = time.Now()
	r.sweep(ctx)
	r.readBacklog(ctx)
}

// send calls the sink once, and reports whether the batch needs to be sent no more.
func (r *Reporter) send(
	ctx context.Context, node, epoch string, seq int64, age time.Duration, payload []byte,
) (done bool) {
	bounded, cancel := context.WithTimeout(ctx, reportTime)
	defer cancel()
	err := r.options.Sink.Report(bounded, node, epoch, seq, age, payload)
	if err == nil || ctx.Err() == nil {
		r.recordResult(err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case err == nil:
		r.account.Stored++
	case IsRejection(err):
		r.account.Dropped[Rejected]++
	default:
		r.account.Failed++
		return false
	}
	return true
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

// enqueue adds a batch to the queue, and drops the oldest ones if there is no room for all.
func (r *Reporter) enqueue(w *waiting) {
	r.mu.Lock()
	r.queue = append(r.queue, w)
	r.mu.Unlock()
	for r.bytes += w.size(); r.bytes > r.options.MaxBytes && len(r.queue) > 1; r.removeFirst() {
		if r.drop(Room) == 1 {
			r.options.Log.Error("batches of usage are dropped: too many wait for Postgres", "bytes", r.options.MaxBytes)
		}
	}
}

// removeFirst removes the oldest batch of the queue, and its file.
func (r *Reporter) removeFirst() {
	w := r.queue[0]
	r.bytes -= w.size()
	r.mu.Lock()
	r.queue[0] = nil // frees its memory
	r.queue = r.queue[1:]
	r.mu.Unlock()
	if w.saved {
		if err := r.folder.remove(w.seq); err != nil {
			r.options.Log.Warn("removing a batch of usage failed: the next process sends it again", "error", err)
		}
	}
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
	lost, kept := 0, 0
	for _, w := range r.queue {
		if w.saved {
			kept++
		} else {
			lost++
		}
	}
	r.mu.Lock()
	r.queue = nil
	r.account.Dropped[Shutdown] += uint64(lost)
	r.mu.Unlock()
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
