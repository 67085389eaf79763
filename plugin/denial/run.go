package denial

import (
	"context"
	"sync"
	"time"
)

const (
	// grace is how long after the end of a second its lines are made: timers are not exact.
	grace = 50 * time.Millisecond
	// lastLook is how long after FlushTime a sink may take to see that its context has ended.
	lastLook = 100 * time.Millisecond
	// stretch is how many lines are made at a stretch, in well under a millisecond; after it, requests have their turn,
	// which in a process with one thread they would otherwise wait for.
	stretch = 100
	rest    = time.Millisecond
)

// Run makes lines of the seconds that are over and writes them to the sinks, until ctx ends; then it writes what is
// left, if the sinks take it in FlushTime, and counts the rest as dropped. It is called once. It is not an error that
// ctx ends, nor that a sink fails.
//
// A sink whose Write does not return although its context has ended is left alone in it; Run does not wait.
func (r *Recorder) Run(ctx context.Context) error {
	writing, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	var outlets sync.WaitGroup
	for _, o := range r.outlets {
		outlets.Go(func() { o.run(writing) })
	}
	r.collect(ctx)
	r.finish(true)
	for _, o := range r.outlets {
		o.end()
	}

	done := make(chan struct{})
	go func() {
		outlets.Wait()
		close(done)
	}()
	if !within(done, r.options.FlushTime) {
		stop()
		within(done, lastLook)
	}
	for _, o := range r.outlets {
		o.abandon()
	}
	return nil
}

// within waits for done, and tells whether it came in time.
func within(done <-chan struct{}, most time.Duration) bool {
	timer := time.NewTimer(most)
	defer timer.Stop()
	select {
	case <-done:
		return true
	case <-timer.C:
		return false
	}
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
			r.finish(false)
			timer.Reset(untilNext(time.Now()))
		}
	}
}

// untilNext is how long it is until the lines of the second of now are made.
func untilNext(now time.Time) time.Duration {
	return now.Truncate(time.Second).Add(time.Second + grace).Sub(now)
}

// finish makes lines of all seconds that are over, and at the end of the one that is not. Nothing is encoded under the
// lock, which requests wait for.
func (r *Recorder) finish(end bool) {
	r.mu.Lock()
	if r.window != nil && (end || r.window.second != time.Now().Unix()) {
		r.closeWindow()
	}
	windows := r.finished
	r.finished, r.ended = nil, end
	r.mu.Unlock()
	made := 0
	for _, w := range windows {
		for _, g := range w.groups {
			r.hand(g)
			if made++; made%stretch == 0 && !end {
				time.Sleep(rest)
			}
		}
	}
}

// hand gives a group's line to all queues.
func (r *Recorder) hand(g *group) {
	line, err := r.line(g)
	if err == nil {
		for _, o := range r.outlets {
			o.push(line)
		}
	} else {
		r.options.Log.Error("a denial event was dropped", "error", err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if err == nil {
		r.handed += g.count
	} else {
		r.lost[Queue].add(1, g.count)
	}
}
