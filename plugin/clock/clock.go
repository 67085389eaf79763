// Package clock is the time by which buckets in this process are kept: the time of day as it was at the start, and the
// time that has passed since. A bucket must not stand still because somebody set the time of day back, nor be full
// again because it was set forward.
//
// A clock that never followed the time of day would leave windows, which are aligned to the Unix epoch, where a wrong
// clock at the start has put them. So it is slewed: while the two differ, a [Clock] runs faster or slower by one part
// in a hundred. A minute of error is gone after less than two hours, an hour's after four days, or with the next start.
// Meanwhile limits are that much larger or smaller, and windows end by this clock.
//
// What must follow the time of day at once does not live here: overrides hold by it, and logs tell it.
package clock

import (
	"sync/atomic"
	"time"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/limit"
)

const (
	// slew is the part by which a clock runs faster or slower while it differs from the time of day: one in so many.
	slew = 100
	// look is how often, at most, a clock looks by how much it differs.
	look = limit.Second
)

// Clock never steps. It is safe for concurrent use. Make it with New.
type Clock struct {
	read    func() (wall, elapsed limit.Micros)
	segment atomic.Pointer[segment]
}

// segment is how a clock runs from an instant on, until it looks again.
type segment struct {
	from limit.Micros // elapsed
	at   limit.Micros // what the clock shows then
	off  limit.Micros // the time of day less at
}

// New makes a clock that shows the time of day.
func New() *Clock {
	started := time.Now()
	return newClock(func() (wall, elapsed limit.Micros) {
		now := time.Now()
		return limit.Micros(now.UnixMicro()), limit.Micros(now.Sub(started).Microseconds()) // by the monotonic clock
	})
}

// newClock makes a clock from what reads the time of day, which may step, and the time since some instant, which does
// not.
func newClock(read func() (wall, elapsed limit.Micros)) *Clock {
	c := &Clock{read: read}
	wall, elapsed := read()
	c.segment.Store(&segment{from: elapsed, at: wall})
	return c
}

// Now returns the instant, in microseconds since the Unix epoch.
func (c *Clock) Now() limit.Micros {
	wall, elapsed := c.read()
	s := c.segment.Load()
	now := s.now(elapsed)
	if elapsed-s.from >= look {
		c.segment.CompareAndSwap(s, &segment{from: elapsed, at: now, off: wall - now})
	}
	return now
}

// now is what the clock shows when so much time has passed.
func (s *segment) now(elapsed limit.Micros) limit.Micros {
	passed := max(elapsed-s.from, 0) // another request may have looked since this one read the time
	most := passed / slew
	return s.at + passed + min(max(s.off, -most), most)
}
