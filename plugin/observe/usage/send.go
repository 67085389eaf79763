package usage

import (
	"cmp"
	"context"
	"errors"
	"io/fs"
	"os"
	"slices"
	"time"
)

const (
	// reportTime is how long one call of the sink may take before its context ends.
	reportTime = 10 * time.Second
	// lookEvery is the time between two looks at the folder and the backlog.
	lookEvery = time.Minute
)

// report makes batches of what was counted, and sends those that wait until one fails. When none waits, it also sends
// from time to time what other processes have left, and reads the backlog. It reports whether another try at the end
// could change nothing: the next process sends what is in the folder.
func (r *Reporter) report(ctx context.Context, last bool) (done bool) {
	r.cut()
	var left []string
	isDue := !last && time.Since(r.lookedAt) >= lookEvery
	if isDue {
		r.lookedAt, left = time.Now(), r.left()
	}
	until := time.Now().Add(r.options.Every)
	for len(r.queue) > 0 && time.Now().Before(until) && r.send(ctx, r.queue[0]) {
		r.removeFirst()
	}
	if isDue && len(r.queue) == 0 {
		r.sendLeft(ctx, left, until)
		r.readBacklog(ctx)
	}
	return !slices.ContainsFunc(r.queue, func(w *waiting) bool { return w.file == "" })
}

// send calls the sink once, and reports whether the batch needs to be sent no more.
func (r *Reporter) send(ctx context.Context, w *waiting) (done bool) {
	bounded, cancel := context.WithTimeout(ctx, reportTime)
	defer cancel()
	age := max(time.Since(w.Began), 0) // the clock of this machine may have been set since
	err := r.options.Sink.Report(bounded, w.Node, w.epoch, w.seq, age, w.Payload)
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

func (r *Reporter) removeFirst() {
	w := r.queue[0]
	r.bytes -= w.size()
	r.mu.Lock()
	r.queue[0] = nil // frees its memory
	r.queue = r.queue[1:]
	r.mu.Unlock()
	r.removeFile(w)
}

func (r *Reporter) removeFile(w *waiting) {
	if w.file == "" {
		return
	}
	if err := os.Remove(w.file); err != nil && !errors.Is(err, fs.ErrNotExist) {
		r.options.Log.Warn("removing a batch of usage failed: the next process sends it again", "error", err)
	}
}

// save writes a batch to the folder. If that fails it waits in memory only, which is logged once until it succeeds.
func (r *Reporter) save(w *waiting) {
	if r.options.Dir == "" {
		return
	}
	err := w.save(r.options.Dir)
	if err != nil && !r.unsaved {
		r.options.Log.Warn("usage cannot be saved: what Postgres has not stored is lost when this process ends",
			"error", err)
	}
	r.unsaved = err != nil
}

// abandon drops the batches that are in no file.
func (r *Reporter) abandon() {
	saved := func(w *waiting) bool { return w.file != "" }
	lost := len(slices.DeleteFunc(slices.Clone(r.queue), saved))
	kept := len(r.queue) - lost
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
}
