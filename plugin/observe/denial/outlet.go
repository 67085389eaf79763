package denial

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/observe/drain"
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
	name    string
	sink    Sink
	options *Options
	wake    chan struct{} // has one element if there may be a line to write

	// The next fields belong to the goroutine of round.
	giveUp  time.Time // when the batch is dropped
	problem string    // the error of the last Write, or ""

	mu        sync.Mutex
	queue     []Line
	bytes     int    // of queue
	batch     []Line // that is being written: only the goroutine of round changes it
	abandoned bool   // queue and batch were counted as dropped
	written   uint64 // lines
	dropped   [reasons]uint64
	failing   bool
}

// push queues a line, or drops it if the queue is full: the oldest lines show how an attack began.
func (o *outlet) push(line Line) {
	o.mu.Lock()
	if o.bytes+len(line.Text) > o.options.QueueBytes {
		o.dropped[Queue] += line.Denials
	} else {
		o.queue = append(o.queue, line)
		o.bytes += len(line.Text)
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
			o.takeBatch()
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

// takeBatch moves lines from the queue to the batch, which is empty if the queue is.
func (o *outlet) takeBatch() {
	o.mu.Lock()
	defer o.mu.Unlock()
	n := min(len(o.queue), maxBatch)
	o.batch, o.giveUp = o.queue[:n:n], time.Now().Add(o.options.RetryFor)
	for _, line := range o.batch {
		o.bytes -= len(line.Text)
	}
	if o.queue = o.queue[n:]; len(o.queue) == 0 {
		o.queue = nil // frees the memory of the longest queue
	}
}

// write writes the batch once, and keeps what is to be tried again. If ctx ends, abandon counts that.
func (o *outlet) write(ctx context.Context) {
	attempt, cancel := context.WithTimeout(ctx, writeTime)
	err := o.sink.Write(attempt, o.batch)
	cancel()
	o.recordResult(err)
	left, rejected, mayArrive := sortOut(o.batch, err)
	if mayArrive {
		o.giveUp = time.Now().Add(o.options.RetryFor)
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.abandoned {
		return
	}
	o.written += uint64(len(o.batch) - len(left) - len(rejected))
	o.dropped[Rejected] += denialsIn(rejected)
	if ctx.Err() == nil && time.Now().Add(retryEvery).After(o.giveUp) {
		o.dropped[SinkFailed] += denialsIn(left)
		left = nil
	}
	o.batch = left
}

// sortOut returns which lines of a batch are to be tried again after a Write, and which the sink rejects. The others
// are stored. mayArrive reports whether the sink may still store some of those that are left.
func sortOut(batch []Line, err error) (left, rejected []Line, mayArrive bool) {
	var partial Partial
	switch {
	case err == nil:
		return nil, nil, false
	case !errors.As(err, &partial):
		return batch, nil, false
	}
	retry, never := partial.Left()
	for _, i := range retry {
		left = append(left, batch[i])
	}
	for _, i := range never {
		rejected = append(rejected, batch[i])
	}
	return left, rejected, partial.MayArrive()
}

func denialsIn(lines []Line) (n uint64) {
	for _, line := range lines {
		n += line.Denials
	}
	return n
}

// recordResult records an error, and logs it if the previous Write had another one or none.
func (o *outlet) recordResult(err error) {
	problem := ""
	if err != nil {
		problem = err.Error()
	}
	o.mu.Lock()
	o.failing = err != nil
	dropped := o.dropped[Queue] + o.dropped[SinkFailed] + o.dropped[Rejected]
	o.mu.Unlock()
	if problem == o.problem {
		return
	}
	o.problem = problem
	if err != nil {
		o.options.Log.Warn("writing denial events failed; they are queued, and dropped when the queue is full",
			"sink", o.name, "error", err)
	} else {
		o.options.Log.Info("denial events are being written again", "sink", o.name, "dropped_so_far", dropped)
	}
}

func (o *outlet) abandon() {
	o.mu.Lock()
	defer o.mu.Unlock()
	lines, denials := len(o.queue)+len(o.batch), denialsIn(o.queue)+denialsIn(o.batch)
	o.abandoned, o.queue, o.bytes = true, nil, 0
	if lines == 0 {
		return
	}
	o.dropped[Shutdown] += denials
	o.options.Log.Warn("denial events were dropped at shutdown", "sink", o.name, "lines", lines, "denials", denials)
}

// stats returns the numbers of the sink. lost are the denials of which no line has reached it.
func (o *outlet) stats(lost [reasons]uint64) SinkStats {
	o.mu.Lock()
	defer o.mu.Unlock()
	s := SinkStats{Name: o.name, Written: o.written, Dropped: map[Reason]uint64{}, Failing: o.failing}
	if !o.abandoned {
		s.Queued = len(o.queue) + len(o.batch)
	}
	for why := range reasons {
		s.Dropped[why] = o.dropped[why] + lost[why]
	}
	return s
}

const (
	// grace is the time from the end of a second until its lines are made: timers are not exact.
	grace = 50 * time.Millisecond
	// burst is how many lines are made without a pause, in well under a millisecond. In a process with one thread
	// requests would have to wait for more.
	burst = 100
	pause = time.Millisecond
	// endGrace is how long a sink may take to notice that its context has ended.
	endGrace = 100 * time.Millisecond
)

// Run makes lines of finished seconds and writes them to the sinks until ctx ends. Then it writes the other lines for
// at most FlushTime, and counts those that are left as dropped. It must be called once. It returns nil: neither the end
// of ctx nor the failure of a sink is an error.
//
// Run does not wait for a sink whose Write goes on although its context has ended.
func (r *Recorder) Run(ctx context.Context) error {
	writing, end := context.WithCancel(context.WithoutCancel(ctx))
	defer end()
	written := make(chan struct{})
	go func() {
		defer close(written)
		var outlets sync.WaitGroup
		for _, o := range r.outlets {
			outlets.Go(func() { drain.Run(writing, retryEvery, r.options.FlushTime, o.wake, o.round) })
		}
		outlets.Wait()
	}()
	r.collect(ctx)
	r.finish(ctx)
	end()
	select {
	case <-written:
	case <-time.After(r.options.FlushTime + endGrace):
	}
	for _, o := range r.outlets {
		o.abandon()
	}
	return nil
}

// collect makes the lines of each second shortly after its end.
func (r *Recorder) collect(ctx context.Context) {
	timer := time.NewTimer(untilNext(time.Now()))
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
			r.finish(ctx)
			timer.Reset(untilNext(time.Now()))
		}
	}
}

func untilNext(now time.Time) time.Duration {
	return now.Truncate(time.Second).Add(time.Second + grace).Sub(now)
}

// finish makes lines of all finished seconds, and also of the current one if ctx has ended. It encodes without the
// lock, which requests wait for.
func (r *Recorder) finish(ctx context.Context) {
	end := ctx.Err() != nil
	r.mu.Lock()
	if r.window != nil && (end || r.window.second != time.Now().Unix()) {
		r.closeWindow()
	}
	windows := r.finished
	r.finished, r.ended = nil, end
	r.mu.Unlock()
	made := 0
	for _, w := range windows {
		for _, g := range w.all {
			r.queueLine(g)
			if made++; made%burst > 0 {
				continue
			}
			select {
			case <-ctx.Done():
			case <-time.After(pause):
			}
		}
	}
}

// queueLine adds a group to the recent denials, and its line to the queues of all sinks.
func (r *Recorder) queueLine(g *group) {
	if r.recent != nil {
		r.addRecent(g)
	}
	if len(r.outlets) == 0 {
		return
	}
	line, err := r.encode(g)
	if err != nil {
		r.options.Log.Error("a denial event was dropped", "error", err)
		r.mu.Lock()
		r.lost[Queue] += g.count
		r.mu.Unlock()
		return
	}
	for _, o := range r.outlets {
		o.push(line)
	}
}
