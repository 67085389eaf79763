package outage

import (
	"context"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// pulse is the interval in which this process checks that it runs.
	pulse = 10 * time.Millisecond
	// minStall is the least delay of a pulse that counts: timers are not exact.
	minStall = 2 * time.Millisecond
	// recentStalls is the number of stalls that are kept. There is at least a pulse between two of them.
	recentStalls = 128
)

// stalls records the times in which this process could not run: the machine was busy, its CPU quota was used up, or its
// threads were. In such a time no answer of a server is read, so a breaker subtracts it from the duration of a call.
//
// A goroutine wakes every pulse and measures its delay. A measured stall is at most one pulse too short. So a stall
// may count as slowness of the server, never the reverse. Between calls there are no pulses, which would wake an idle
// process.
//
// The zero value is ready, and has no stalls.
type stalls struct {
	calls  atomic.Int64 // under way
	paused atomic.Bool  // measure waits for a call; changed under mu

	mu      sync.Mutex
	resumed chan struct{} // there is a call again; made by start
	due     time.Time     // of the next pulse; zero: nothing measures
	last    [recentStalls]stall
	next    int // place in last
}

// stall is a time from one instant to another.
type stall struct{ from, to time.Time }

// measure sends pulses while there are calls, until ctx ends.
func (s *stalls) measure(ctx context.Context) {
	timer := time.NewTimer(pulse)
	defer timer.Stop()
	s.start(time.Now())
	defer s.stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.resumed:
			timer.Reset(s.untilDue()) // at once if this goroutine was late
		case <-timer.C:
			s.beat(time.Now())
			if !s.pause() {
				timer.Reset(pulse)
			}
		}
	}
}

func (s *stalls) start(now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.resumed = make(chan struct{}, 1)
	s.due = now.Add(pulse)
}

func (s *stalls) untilDue() time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	return time.Until(s.due)
}

// begin counts a call that begins, and resumes the pulses if they are paused.
func (s *stalls) begin() {
	s.calls.Add(1)
	if !s.paused.Load() { // a pause from now on finds the call, and does not pause
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.paused.Swap(false) {
		s.due = time.Now().Add(pulse)
		s.resumed <- struct{}{} // has room: measure has taken the one before
	}
}

// end counts a call that has ended.
func (s *stalls) end() { s.calls.Add(-1) }

// pause pauses the pulses, unless there are calls. It reports whether it did.
func (s *stalls) pause() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.paused.Store(true)
	if s.calls.Load() > 0 {
		s.paused.Store(false)
		return false
	}
	s.due = time.Time{}
	return true
}

// beat records a pulse, and a stall if it is late.
func (s *stalls) beat(now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if now.Sub(s.due) >= minStall {
		s.last[s.next] = stall{s.due, now}
		s.next = (s.next + 1) % len(s.last)
	}
	s.due = now.Add(pulse)
}

func (s *stalls) stop() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.due = time.Time{}
	s.paused.Store(false)
}

// within returns the time between two instants in which this process could not run, the present stall included.
func (s *stalls) within(from, to time.Time) (total time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, one := range s.last {
		total += one.overlap(from, to)
	}
	if !s.due.IsZero() && to.Sub(s.due) >= minStall {
		total += stall{s.due, to}.overlap(from, to)
	}
	return total
}

// overlap returns how much of a stall lies between two instants.
func (s stall) overlap(from, to time.Time) time.Duration {
	if s.from.Before(from) {
		s.from = from
	}
	if s.to.After(to) {
		s.to = to
	}
	return max(s.to.Sub(s.from), 0)
}
