package outage

import (
	"context"
	"sync"
	"time"
)

const (
	// pulse is how often this process looks whether it runs.
	pulse = 10 * time.Millisecond
	// leastStall is by how much a pulse must be late to count: timers are not exact.
	leastStall = 2 * time.Millisecond
	// recentStalls is how many stalls are remembered. Between two of them lies a pulse at least.
	recentStalls = 128
)

// stalls are the times in which this process could not run: the machine was busy, its CPU quota was used up, or its
// threads were. In such a time no answer of a server is read, whenever it came, so a breaker takes them off how long a
// call took.
//
// They are measured by a goroutine that wakes every pulse and sees how late it is, as any other would have been. What
// is measured falls short of the truth by a pulse at most: a busy process may be taken for a slow server, and never the
// other way round.
//
// The zero value is ready, and knows no stalls.
type stalls struct {
	mu   sync.Mutex
	due  time.Time // of the next pulse; zero: nobody measures
	last [recentStalls]stall
	next int // place in last
}

// stall is a time from one instant to another.
type stall struct{ from, to time.Time }

// measure sends pulses until ctx ends.
func (s *stalls) measure(ctx context.Context) {
	timer := time.NewTimer(pulse)
	defer timer.Stop()
	s.beat(time.Now(), true)
	defer s.rest()
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
			s.beat(time.Now(), false)
			timer.Reset(pulse)
		}
	}
}

// beat takes a pulse at an instant, and remembers a stall if it is late. The first is never late.
func (s *stalls) beat(now time.Time, first bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !first && now.Sub(s.due) >= leastStall {
		s.last[s.next] = stall{s.due, now}
		s.next = (s.next + 1) % len(s.last)
	}
	s.due = now.Add(pulse)
}

func (s *stalls) rest() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.due = time.Time{}
}

// within returns for how long this process stood still from one instant to another, the stall that lasts included.
func (s *stalls) within(from, to time.Time) (total time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, one := range s.last {
		total += one.overlap(from, to)
	}
	if !s.due.IsZero() && to.Sub(s.due) >= leastStall {
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
