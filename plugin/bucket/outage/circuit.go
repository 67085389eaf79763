package outage

import (
	"math/bits"
	"time"
)

const (
	// failuresOf failures among recentCalls calls open a circuit.
	failuresOf, recentCalls = 5, 10
	// failuresInARow failures in a row open it too: with little traffic ten calls take too long.
	failuresInARow = 3

	firstPause = 200 * time.Millisecond
	// longestPause is the longest time between two probes of an open circuit.
	longestPause = 2 * time.Second
	// pauseJitter is the part of a pause by which it varies, either way, so that nodes do not probe together.
	pauseJitter = 0.2
)

// State says whether calls go through a breaker.
type State uint8

// The states. The zero value lets all calls through.
const (
	Closed   State = iota // all calls go through
	Open                  // none does
	HalfOpen              // one does, as a probe
)

func (s State) String() string { return [...]string{"closed", "open", "half_open"}[s] }

// callEnd says how a call ended.
type callEnd uint8

const (
	callAnswered callEnd = iota
	callFailed
	callAbandoned
)

// verdict says what the end of a call shows of its server.
type verdict uint8

const (
	nothing verdict = iota
	success
	failure  // the call failed
	slowness // it took too long, or had no answer
)

// circuit is the state machine of a breaker. Instants and durations come with each call: it has no clock, no lock and
// no log. The zero value with a threshold is closed.
type circuit struct {
	slow time.Duration // calls that wait for longer count as failed

	state  State
	until  time.Time     // open: the earliest instant of the next probe
	pause  time.Duration // between the last failure and the next probe
	recent uint16        // whether each of the last calls failed, since the circuit closed: the last is bit 0
	inARow int           // failures since the last success

	inFlight int
	// early counts the calls in flight that entered before the probe. Their results do not show whether the server is
	// back.
	early     int
	probeSent time.Time

	// unanswered is how long calls have waited since the server last answered, of which none failed by itself, and
	// unansweredUntil is the end of the last of them. Calls that wait at the same time count once.
	unanswered      time.Duration
	unansweredUntil time.Time
}

// enter reports whether a call may be sent at now, and counts it. If not, wait is the least time after which the next
// try is worthwhile.
func (c *circuit) enter(now time.Time) (wait time.Duration, ok bool) {
	switch {
	case c.state == Closed:
	case c.state == HalfOpen:
		return c.slow, false // by then the probe has answered, or counts as failed
	case now.Before(c.until):
		return c.until.Sub(now), false
	default:
		c.state, c.early, c.probeSent = HalfOpen, c.inFlight, now
	}
	c.inFlight++
	return 0, true
}

// judge returns what the end of a call at now shows. It took so long since enter, and waited for the server for a part
// of that. An open circuit learns nothing.
func (c *circuit) judge(now time.Time, took, waited time.Duration, how callEnd) verdict {
	switch {
	case c.state == Open:
		return nothing
	case c.early > 0 && took > now.Sub(c.probeSent):
		c.early--
		return nothing
	case waited > c.slow && how != callFailed:
		return slowness
	case how == callAnswered:
		return success
	case how == callFailed && (took <= c.slow || waited > c.slow):
		return failure
	default:
		return c.judgeUnanswered(now, waited)
	}
}

// judgeUnanswered judges a call that ended without an answer or an error of the server. A probe that ends so is
// repeated by the next call.
func (c *circuit) judgeUnanswered(now time.Time, waited time.Duration) verdict {
	c.unanswered += min(waited, now.Sub(c.unansweredUntil))
	c.unansweredUntil = now
	if c.unanswered > c.slow {
		return slowness
	}
	if c.state == HalfOpen {
		c.state, c.until = Open, now
	}
	return nothing
}

// succeed counts a success, and reports whether it closes the circuit.
func (c *circuit) succeed() (closes bool) {
	c.inARow, c.unanswered = 0, 0
	if c.state == Closed {
		c.recent <<= 1
		return false
	}
	c.state, c.recent = Closed, 0
	return true
}

// fail counts a failure at now, and reports whether it opens a closed circuit. Jitter, from -1 to 1, varies the pause.
func (c *circuit) fail(now time.Time, jitter float64) (opens bool) {
	if c.state == Closed {
		c.inARow++
		c.recent = c.recent<<1 | 1
		if c.inARow < failuresInARow && bits.OnesCount16(c.recent&(1<<recentCalls-1)) < failuresOf {
			return false
		}
		c.pause, opens = firstPause, true
	} else {
		c.pause = min(2*c.pause, longestPause)
	}
	c.state, c.inARow = Open, 0
	c.until = now.Add(time.Duration(float64(c.pause) * (1 + pauseJitter*jitter)))
	return opens
}
