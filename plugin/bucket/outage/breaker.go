package outage

import (
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/failsafe-go/failsafe-go/circuitbreaker"
)

const (
	// failuresOf failures among recentCalls calls open a breaker.
	failuresOf, recentCalls = 5, 10
	// failuresInARow failures in a row open it too: with little traffic ten calls take too long.
	failuresInARow = 3

	firstPause = 200 * time.Millisecond
	// longestPause is the longest time between two probes of an open breaker.
	longestPause = 2 * time.Second
	// pauseJitter is the part of a pause by which it varies, either way, so that nodes do not probe together.
	pauseJitter = 0.2

	// defaultTimeout is the timeout of calls where none is given.
	defaultTimeout = 50 * time.Millisecond
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

// Breaker keeps calls away from a server that fails or is slow, and lets single calls through to find out whether it is
// back. The shared store calls Enter before each call; a call that Enter lets through ends with exactly one Leave or
// Abandon. It is safe for concurrent use; make it with [Breakers.New].
//
// failsafe-go counts the results that open and close the circuit. The pauses are ours, because a failed probe must
// lengthen them.
type Breaker struct {
	store, server string
	slow          time.Duration
	set           *Breakers
	log           *slog.Logger

	mu       sync.Mutex
	circuit  circuitbreaker.CircuitBreaker[any]
	state    State
	since    time.Time // of the last change between closed and not closed
	until    time.Time // open: the earliest instant of the next probe
	pause    time.Duration
	degraded time.Duration // the total of earlier times that it was not closed
	removed  bool

	inFlight int
	// early counts the calls in flight that entered before the probe. Their results say nothing about whether the
	// server is back.
	early     int
	probeSent time.Time

	failuresNow     int // failures since the last success
	successesInARow int // successes since the last failure
	errors, late    int // failures since the last ten successes in a row: by cause

	// unanswered is how long calls have waited for this server since it last answered, of which none failed by itself, and
	// silentUntil is the end of the last of them. Calls that wait at the same time count once.
	unanswered      time.Duration
	unansweredUntil time.Time
}

func newBreaker(set *Breakers, store, server string, timeout time.Duration) *Breaker {
	if timeout <= 0 {
		timeout = defaultTimeout
	}
	circuit := circuitbreaker.NewBuilder[any]().
		WithFailureThresholdRatio(failuresOf, recentCalls).
		WithSuccessThreshold(1). // and so one permit while half-open
		Build()
	return &Breaker{
		store:   store,
		server:  server,
		slow:    slowThreshold(timeout),
		set:     set,
		log:     set.log.With("store", store, "server", server),
		circuit: circuit,
		since:   set.now(),
		pause:   firstPause,
	}
}

// slowThreshold returns the duration from which a call with a timeout counts as failed: 4/5 of it, so that a timeout is
// always beyond it.
func slowThreshold(timeout time.Duration) time.Duration { return timeout * 4 / 5 }

// Enter reports whether a call may be sent. If not, wait is the least time after which asking again is worthwhile.
func (b *Breaker) Enter() (wait time.Duration, ok bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.state == Closed {
		b.inFlight++
		return 0, true
	}
	now := b.set.now()
	if b.state == Open && !now.Before(b.until) {
		b.circuit.HalfOpen()
		b.state, b.early, b.probeSent = HalfOpen, b.inFlight, now
		b.circuit.TryAcquirePermit()
		b.inFlight++
		return 0, true
	}
	if b.state == HalfOpen {
		return b.slow, false // by then the probe has answered, or counts as failed
	}
	return b.until.Sub(now), false
}

// Leave ends a call that the server answered, or that failed: its duration since Enter, and whether it failed. A call
// that took longer than the slow threshold counts as failed, without the time in which this process could not run: see
// [stalls].
func (b *Breaker) Leave(took time.Duration, failed bool) {
	if failed {
		b.end(took, callFailed)
	} else {
		b.end(took, callAnswered)
	}
}

// Abandon ends a call whose caller ran out of time. It is neither a success nor, by itself, a failure. Once calls have
// waited for longer than the slow threshold without any answer between, each counts as failed.
func (b *Breaker) Abandon(took time.Duration) { b.end(took, callAbandoned) }

// callEnd says how a call ended.
type callEnd uint8

const (
	callAnswered callEnd = iota
	callFailed
	callAbandoned
)

func (b *Breaker) end(took time.Duration, how callEnd) {
	if b.count(took, how) {
		b.set.notify(b.store)
	}
}

// count counts a call that has ended, and reports whether that closed the breaker.
func (b *Breaker) count(took time.Duration, how callEnd) (closed bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.inFlight--
	if b.removed || b.state == Open {
		return false
	}
	if how == callAnswered && took <= b.slow && b.early == 0 {
		return b.succeed()
	}
	now := b.set.now()
	if b.early > 0 && took > now.Sub(b.probeSent) {
		b.early--
		return false
	}
	waited := took - b.set.stalls.within(now.Add(-took), now)
	switch {
	case waited > b.slow:
		b.fail(how == callFailed)
	case how == callAnswered:
		return b.succeed()
	case how == callFailed && took <= b.slow:
		b.fail(true)
	default:
		b.recordUnanswered(waited, now)
	}
	return false
}

// recordUnanswered counts a call that ended without an answer or an error. A probe that ends so is repeated by the next
// call.
func (b *Breaker) recordUnanswered(waited time.Duration, now time.Time) {
	b.unanswered += min(waited, now.Sub(b.unansweredUntil))
	b.unansweredUntil = now
	if b.unanswered > b.slow {
		b.fail(false)
	} else if b.state == HalfOpen {
		b.circuit.Open()
		b.state, b.until = Open, now
	}
}

// succeed counts a success, and reports whether it has closed the breaker.
func (b *Breaker) succeed() (closed bool) {
	b.successesInARow++
	b.failuresNow, b.unanswered = 0, 0
	b.circuit.RecordSuccess()
	if b.state == Closed {
		return false
	}
	b.log.Info("Redis answers again", "after", roundedText(b.close(b.set.now())))
	return true
}

// roundedText returns a duration as people read it: in JSON it would be a number of nanoseconds.
func roundedText(d time.Duration) string { return d.Round(time.Millisecond).String() }

// close ends an outage and returns its duration.
func (b *Breaker) close(now time.Time) time.Duration {
	lasted := now.Sub(b.since)
	b.degraded += lasted
	b.state, b.since, b.pause = Closed, now, firstPause
	b.errors, b.late = 0, 0
	return lasted
}

func (b *Breaker) fail(failed bool) {
	if b.successesInARow >= recentCalls {
		b.errors, b.late = 0, 0
	}
	b.successesInARow = 0
	b.failuresNow++
	if failed {
		b.errors++
	} else {
		b.late++
	}
	b.circuit.RecordFailure()
	if b.state == Closed && b.failuresNow >= failuresInARow {
		b.circuit.Open()
	}
	if !b.circuit.IsOpen() {
		return
	}
	now := b.set.now()
	if b.state == Closed {
		b.since = now
		b.log.Warn(
			"Redis does not answer: its limits use their fail modes",
			"errors",
			b.errors,
			"slow",
			b.late,
			"slow_means",
			roundedText(b.slow),
		)
	} else {
		b.pause = min(2*b.pause, longestPause)
	}
	b.state, b.failuresNow = Open, 0
	b.until = now.Add(time.Duration(float64(b.pause) * (1 + pauseJitter*(2*rand.Float64()-1))))
}

// Close ends the breaker: its server does not belong to the store any more.
func (b *Breaker) Close() {
	if degraded, first := b.markRemoved(); first {
		b.set.remove(b, degraded)
		b.set.notify(b.store)
	}
}

// markRemoved marks the server as removed. It returns the total time that it was unavailable, and false if it was
// removed already.
func (b *Breaker) markRemoved() (degraded time.Duration, first bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.removed {
		return 0, false
	}
	b.removed = true
	if b.state != Closed {
		b.log.Info("a Redis server that did not answer was removed from the cluster",
			"after", roundedText(b.close(b.set.now())))
	}
	return b.degraded, true
}

// status returns what metrics show of the breaker.
func (b *Breaker) status(now time.Time) ServerStatus {
	b.mu.Lock()
	defer b.mu.Unlock()
	s := ServerStatus{Store: b.store, Server: b.server, State: b.state, Since: b.since, Degraded: b.degraded}
	if b.state != Closed {
		s.Degraded += now.Sub(b.since)
	}
	return s
}
