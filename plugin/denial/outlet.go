package denial

import (
	"context"
	"log/slog"
	"sync"
	"time"
)

const (
	// maxBatch bounds the lines of one Write.
	maxBatch = 500
	// writeTime is how long one Write may take before its context ends.
	writeTime = 10 * time.Second
	// firstPause and maxPause are how long a batch rests after a failure: the first time, and at most.
	firstPause = 100 * time.Millisecond
	maxPause   = 5 * time.Second
)

// outlet is a sink and what waits for it. Each has a queue and a goroutine of its own, so that one that is stuck holds
// up nothing else.
type outlet struct {
	name     string
	sink     Sink
	log      *slog.Logger
	most     int // bytes
	retryFor time.Duration
	wake     chan struct{} // has one element when there may be something to do
	last     chan struct{} // closed: no more lines come
	problem  string        // the last Write's, "" if it had none; the goroutine's alone

	mu        sync.Mutex
	queue     []Line
	bytes     int   // of queue
	waiting   Tally // the queue and the batch that is being written
	abandoned bool  // what waits was counted as dropped
	account   SinkStats
}

func newOutlet(name string, sink Sink, options *Options) *outlet {
	return &outlet{
		name: name, sink: sink, log: options.Log, most: options.QueueBytes, retryFor: options.RetryFor,
		wake: make(chan struct{}, 1), last: make(chan struct{}),
	}
}

// push queues a line, or drops it when the queue is full: the oldest tell how an attack began.
func (o *outlet) push(line Line) {
	o.mu.Lock()
	if o.bytes+len(line.Text) > o.most {
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

// end says that no more lines come.
func (o *outlet) end() { close(o.last) }

func (o *outlet) ending() bool {
	select {
	case <-o.last:
		return true
	default:
		return false
	}
}

// run writes batches until all is written after end, or ctx ends.
func (o *outlet) run(ctx context.Context) {
	for ctx.Err() == nil {
		ending := o.ending() // before the queue is looked at: what was pushed before the end is in it then
		if batch := o.next(); len(batch) > 0 {
			o.deliver(ctx, batch)
			continue
		}
		if ending {
			return
		}
		select {
		case <-ctx.Done():
		case <-o.last:
		case <-o.wake:
		}
	}
}

// next takes a batch out of the queue; an empty one means that it is empty.
func (o *outlet) next() []Line {
	o.mu.Lock()
	defer o.mu.Unlock()
	n := min(len(o.queue), maxBatch)
	batch := o.queue[:n:n]
	for _, line := range batch {
		o.bytes -= len(line.Text)
	}
	if o.queue = o.queue[n:]; len(o.queue) == 0 {
		o.queue = nil // its memory was that of the longest queue
	}
	return batch
}

// deliver writes a batch, again and again until the sink takes it, retryFor is over or ctx ends. In the last case the
// batch goes on waiting, and abandon counts it.
func (o *outlet) deliver(ctx context.Context, batch []Line) {
	giveUp := time.Now().Add(o.retryFor)
	for pause := firstPause; ; pause = min(2*pause, maxPause) {
		attempt, cancel := context.WithTimeout(ctx, writeTime)
		err := o.sink.Write(attempt, batch)
		cancel()
		o.judge(err)
		switch {
		case err == nil:
			o.settle(batch, &o.account.Written)
			return
		case ctx.Err() != nil:
			return
		case time.Now().Add(pause).After(giveUp):
			o.settle(batch, &o.account.Dropped[Refused])
			return
		}
		o.rest(ctx, pause)
		if ctx.Err() != nil {
			return
		}
	}
}

// rest waits before the next try. At the end there is no time for long pauses: the one that is running is cut short, and
// all after it are the first.
func (o *outlet) rest(ctx context.Context, pause time.Duration) {
	last := o.last
	if o.ending() {
		last, pause = nil, firstPause
	}
	timer := time.NewTimer(pause)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-last:
	case <-timer.C:
	}
}

// settle moves a batch from what waits to a tally, unless it was counted as dropped in the meantime.
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

// judge counts a failure, and logs it if the one before was another or none.
func (o *outlet) judge(err error) {
	problem := ""
	if err != nil {
		problem = err.Error()
	}
	o.mu.Lock()
	if o.account.Failing = err != nil; err != nil {
		o.account.Failures++
	}
	dropped := o.account.Dropped[Queue].Denials + o.account.Dropped[Refused].Denials
	o.mu.Unlock()
	if problem == o.problem {
		return
	}
	o.problem = problem
	if err != nil {
		o.log.Warn("writing denial events failed; they are queued, and dropped when the queue is full", "sink", o.name, "error", err)
	} else {
		o.log.Info("denial events are being written again", "sink", o.name, "dropped_so_far", dropped)
	}
}

// abandon counts what still waits as dropped.
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
