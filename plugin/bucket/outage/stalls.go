package outage

import (
	"context"
	"sync"
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
// may count as slowness of the server, never the reverse.
//
// The zero value is ready, and has no stalls.
type stalls struct {
	mu   sync.Mutex
	due  time.Time // of the next pulse; zero: nothing measures
	last [recentStalls]stall
	next int // place in last
}

// stall is a time from one instant to another.
type stall struct{ from, to time.Time }

// measure sends pulses until ctx ends.
func (s *stalls) measure(ctx context.Context) {
	ticker := time.NewTicker(pulse)
	defer ticker.Stop()
	s.setDue(time.Now().Add(pulse))
	defer s.setDue(time.Time{})
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			s.beat(time.Now())
		}
	}
}

func (s *stalls) setDue(at time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.due = at
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
