// Package clock provides the clock of the buckets in this process: the time of day at the start, plus the time that has
// passed since. A bucket does not stop when the time of day is set back, and is not full when it is set forward.
//
// Windows are aligned to the Unix epoch, so the clock must follow the time of day in the end. A [Clock] is slewed:
// while it differs from the time of day, it runs faster or slower by one part in a hundred. It corrects a minute in
// less than two hours and an hour in four days, or with the next start, unless that goes on with [Clock.Set]. Meanwhile
// limits are larger or smaller by that part.
//
// Overrides and logs use the time of day itself.
package clock

import (
	"sync/atomic"
	"time"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/limit"
)

const (
	// slew is the divisor of the part by which a clock runs faster or slower.
	slew = 100
	// interval is the least time between two comparisons with the time of day.
	interval = limit.Second
)

// Clock is a clock that never steps. It is safe for concurrent use. Make it with New.
type Clock struct {
	read    func() (wall, elapsed limit.Micros)
	segment atomic.Pointer[segment]
}

// segment describes how a clock runs from one comparison to the next.
type segment struct {
	from limit.Micros // elapsed
	at   limit.Micros // on the clock, at from
	off  limit.Micros // the time of day minus at
}

// New makes a clock that shows the time of day.
func New() *Clock {
	started := time.Now()
	return NewOf(func() (wall, elapsed limit.Micros) {
		now := time.Now()
		return limit.Micros(now.UnixMicro()), limit.Micros(now.Sub(started).Microseconds()) // by the monotonic clock
	})
}

// NewOf makes a clock. read returns the time of day, which may step, and the time since an instant, which may not.
func NewOf(read func() (wall, elapsed limit.Micros)) *Clock {
	c := &Clock{read: read}
	wall, elapsed := read()
	c.segment.Store(&segment{from: elapsed, at: wall})
	return c
}

// Now returns the instant, in microseconds since the Unix epoch.
func (c *Clock) Now() limit.Micros {
	wall, elapsed := c.read()
	s := c.segment.Load()
	now := s.timeAt(elapsed)
	if elapsed-s.from >= interval {
		c.segment.CompareAndSwap(s, &segment{from: elapsed, at: now, off: wall - now})
	}
	return now
}

// Set sets the clock, to go on where the clock of another process has stopped.
func (c *Clock) Set(at limit.Micros) {
	wall, elapsed := c.read()
	c.segment.Store(&segment{from: elapsed, at: at, off: wall - at})
}

// timeAt returns the time on the clock at an elapsed time.
func (s *segment) timeAt(elapsed limit.Micros) limit.Micros {
	passed := max(elapsed-s.from, 0) // another request may have replaced the segment since this one read the time
	bound := passed / slew
	return s.at + passed + min(max(s.off, -bound), bound)
}
