package denial

import (
	"context"
	"sync"
	"time"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/observe/drain"
)

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

// untilNext returns the time until the lines of the second of now are made.
func untilNext(now time.Time) time.Duration {
	return now.Truncate(time.Second).Add(time.Second + grace).Sub(now)
}

// finish makes lines of all finished seconds, and also of the current one if ctx has ended. It encodes without the lock,
// which requests wait for.
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
		for g := range w.all() {
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

// pushLine adds a group's line to the queues of all sinks.
func (r *Recorder) pushLine(g *group) error {
	if len(r.outlets) == 0 {
		return nil
	}
	line, err := r.encode(g)
	if err != nil {
		r.options.Log.Error("a denial event was dropped", "error", err)
		return err
	}
	for _, o := range r.outlets {
		o.push(line)
	}
	return nil
}

// queueLine adds a group to the recent denials, and its line to all queues.
func (r *Recorder) queueLine(g *group) {
	if r.recent != nil {
		r.addRecent(g)
	}
	err := r.pushLine(g)
	r.mu.Lock()
	defer r.mu.Unlock()
	if err == nil {
		r.queued += g.count
	} else {
		r.lost[Queue].add(1, g.count)
	}
}
