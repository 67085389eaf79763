package denial

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"time"
)

const (
	// maxBatch bounds the lines of one Write.
	maxBatch = 500
	// writeTime is how long one Write may take before its context ends.
	writeTime = 10 * time.Second
	// retryEvery is the time after which a batch is tried again, if no further line wakes the outlet.
	retryEvery = 5 * time.Second
)

// outlet writes the lines that wait for one sink. Each outlet has a queue and a goroutine, so that a stuck sink delays
// no other.
type outlet struct {
	name     string
	sink     Sink
	log      *slog.Logger
	maxBytes int // of queue
	retryFor time.Duration
	wake     chan struct{} // has one element if there may be a line to write

	// The next fields belong to the goroutine of round.
	batch   []Line    // that is being written
	giveUp  time.Time // when the batch is dropped
	problem string    // the error of the last Write, or ""

	mu        sync.Mutex
	queue     []Line
	bytes     int   // of queue
	waiting   Tally // the queue and batch
	abandoned bool  // waiting was counted as dropped
	account   SinkStats
}

func newOutlet(name string, sink Sink, options *Options) *outlet {
	return &outlet{
		name: name, sink: sink, log: options.Log, maxBytes: options.QueueBytes, retryFor: options.RetryFor,
		wake: make(chan struct{}, 1),
	}
}

// push queues a line, or drops it if the queue is full: the oldest lines show how an attack began.
func (o *outlet) push(line Line) {
	o.mu.Lock()
	if o.bytes+len(line.Text) > o.maxBytes {
		o.account.Dropped[Queue].add(1, line.Denials)
	} else {
		o.queue = append(o.queue, line)
		o.bytes += len(line.Text)
		o.waiting.add(1, line.Denials)
	}
	o.mu.Unlock()
	select {
	case o.wake <- struct{}{}:
	default: // it is awake
	}
}

// round writes batches until the queue is empty, or the sink fails, or ctx ends.
func (o *outlet) round(ctx context.Context, _ bool) (done bool) {
	for ctx.Err() == nil {
		if len(o.batch) == 0 {
			o.batch, o.giveUp = o.takeBatch(), time.Now().Add(o.retryFor)
		}
		if len(o.batch) == 0 {
			return true
		}
		if o.write(ctx); len(o.batch) > 0 {
			return false
		}
	}
	return false
}

// takeBatch removes a batch from the queue. The batch is empty if the queue is.
func (o *outlet) takeBatch() []Line {
	o.mu.Lock()
	defer o.mu.Unlock()
	n := min(len(o.queue), maxBatch)
	batch := o.queue[:n:n]
	for _, line := range batch {
		o.bytes -= len(line.Text)
	}
	if o.queue = o.queue[n:]; len(o.queue) == 0 {
		o.queue = nil // frees the memory of the longest queue
	}
	return batch
}

// write writes the batch once, and keeps what is to be tried again. If ctx ends the batch stays in waiting, and abandon
// counts it.
func (o *outlet) write(ctx context.Context) {
	attempt, cancel := context.WithTimeout(ctx, writeTime)
	err := o.sink.Write(attempt, o.batch)
	cancel()
	o.recordResult(err)
	left, mayArrive := o.settleResult(o.batch, err)
	if mayArrive {
		o.giveUp = time.Now().Add(o.retryFor)
	}
	if ctx.Err() == nil && time.Now().Add(retryEvery).After(o.giveUp) {
		o.settle(left, &o.account.Dropped[SinkFailed])
		left = nil
	}
	o.batch = left
}

// settleResult counts the lines that a Write has stored, and those that the sink rejects. It returns the others, and
// whether the sink may still store some of them.
func (o *outlet) settleResult(batch []Line, err error) (left []Line, mayArrive bool) {
	var partial Partial
	switch {
	case err == nil:
		o.settle(batch, &o.account.Written)
		return nil, false
	case !errors.As(err, &partial):
		return batch, false
	}
	retry, rejected := partial.Left()
	var stored, lost []Line
	for i, line := range batch {
		if _, again := slices.BinarySearch(retry, i); again {
			left = append(left, line)
		} else if _, never := slices.BinarySearch(rejected, i); never {
			lost = append(lost, line)
		} else {
			stored = append(stored, line)
		}
	}
	o.settle(stored, &o.account.Written)
	o.settle(lost, &o.account.Dropped[Rejected])
	return left, partial.MayArrive()
}

// settle moves a batch from waiting to a tally, unless abandon has counted it.
func (o *outlet) settle(batch []Line, to *Tally) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.abandoned {
		return
	}
	for _, line := range batch {
		o.waiting.Lines--
		o.waiting.Denials -= line.Denials
		to.add(1, line.Denials)
	}
}

// recordResult counts an error, and logs it if the previous Write had another one or none.
func (o *outlet) recordResult(err error) {
	problem := ""
	if err != nil {
		problem = err.Error()
	}
	o.mu.Lock()
	if o.account.Failing = err != nil; err != nil {
		o.account.Failures++
	}
	dropped := o.account.Dropped[Queue].Denials + o.account.Dropped[SinkFailed].Denials +
		o.account.Dropped[Rejected].Denials
	o.mu.Unlock()
	if problem == o.problem {
		return
	}
	o.problem = problem
	if err != nil {
		o.log.Warn("writing denial events failed; they are queued, and dropped when the queue is full",
			"sink", o.name, "error", err)
	} else {
		o.log.Info("denial events are being written again", "sink", o.name, "dropped_so_far", dropped)
	}
}

// abandon counts the waiting lines as dropped.
func (o *outlet) abandon() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.abandoned = true
	lost := o.waiting
	if lost.Lines == 0 {
		return
	}
	o.queue, o.bytes, o.waiting = nil, 0, Tally{}
	o.account.Dropped[Shutdown].add(lost.Lines, lost.Denials)
	o.log.Warn("denial events were dropped at shutdown", "sink", o.name, "lines", lost.Lines, "denials", lost.Denials)
}

func (o *outlet) stats() SinkStats {
	o.mu.Lock()
	defer o.mu.Unlock()
	stats := o.account
	stats.Name, stats.Queued = o.name, o.waiting
	return stats
}
