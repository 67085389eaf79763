package outage

import (
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/failsafe-go/failsafe-go/circuitbreaker"
)

const (
	// failuresOf and recentCalls: so many failures among so many calls open a breaker.
	failuresOf, recentCalls = 5, 10
	// failuresInARow open it too: with little traffic ten calls take too long.
	failuresInARow = 3

	firstPause = 200 * time.Millisecond
	// longestPause is how long a breaker that stays open waits between two probes.
	longestPause = 2 * time.Second
	// pauseJitter is the part of a pause by which it varies, either way: nodes must not probe together.
	pauseJitter = 0.2

	// defaultTimeout is how long a call takes at most, where that is not told.
	defaultTimeout = 50 * time.Millisecond
)

// State is whether calls go through a breaker.
type State uint8

// The states. The zero value lets all calls through.
const (
	Closed   State = iota // all calls go through
	Open                  // none does
	HalfOpen              // one does, as a probe
)

func (s State) String() string { return [...]string{"closed", "open", "half_open"}[s] }

// Breaker keeps calls away from a server that fails or is slow, and lets a single one through from time to time to find
// out whether it is back. It is what the shared store asks before each call: a call that Enter lets through ends with
// exactly one Leave. It is safe for concurrent use; make it with [Breakers.New].
//
// Which results open and close it is failsafe-go's business; how long it stays open is decided here, because a failed
// probe must lengthen the pause.
type Breaker struct {
	store, server string
	slow          time.Duration
	owner         *Breakers
	log           *slog.Logger

	mu       sync.Mutex
	circuit  circuitbreaker.CircuitBreaker[any]
	state    State
	since    time.Time // of the last change between closed and not closed
	until    time.Time // open: the earliest instant of the next probe
	pause    time.Duration
	degraded time.Duration // in all earlier times that it was not closed
	gone     bool

	inFlight int
	// early is how many of the calls in flight entered before the probe. Their results are old news, and tell nothing
	// about whether the server is back.
	early     int
	probeSent time.Time

	inARow       int // failures since the last success
	quiet        int // successes since the last failure
	errors, late int // failures since the last ten successes in a row: by cause

	// silent is how long calls have waited for this server since it last answered, of which none failed by itself, and
	// silentUntil is the end of the last of them. Calls that wait at the same time count once.
	silent      time.Duration
	silentUntil time.Time
}

func newBreaker(owner *Breakers, store, server string, timeout time.Duration) *Breaker {
	if timeout <= 0 {
		timeout = defaultTimeout
	}
	circuit := circuitbreaker.NewBuilder[any]().
		WithFailureThresholdRatio(failuresOf, recentCalls).
		WithSuccessThreshold(1). // and so one permit while half-open
		Build()
	return &Breaker{
		store: store, server: server, slow: slowness(timeout), owner: owner, log: owner.log.With("store", store, "server", server),
		circuit: circuit, since: time.Now(), pause: firstPause,
	}
}

// slowness is from when on a call that takes no longer than timeout counts as failed: at 4/5 of it the server is as good
// as dead, and the timeout itself is always beyond.
func slowness(timeout time.Duration) time.Duration { return timeout * 4 / 5 }

// Enter asks whether a call may be sent. If not, wait is how long it is not worth asking again.
func (b *Breaker) Enter() (wait time.Duration, ok bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.state == Closed {
		b.inFlight++
		return 0, true
	}
	now := time.Now()
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

// Leave ends a call that the server answered, or that failed: how long it took since Enter, and whether it failed. One
// that took longer than the slow threshold counts as failed, but for as long as this process itself could not run: see
// [stalls].
func (b *Breaker) Leave(took time.Duration, failed bool) {
	if failed {
		b.end(took, callFailed)
	} else {
		b.end(took, callAnswered)
	}
}

// Abandon ends a call whose caller had no more time after it took so long. It is neither a success nor, by itself, a
// failure. Once calls have waited for longer than the slow threshold without any answer between, each counts as failed.
func (b *Breaker) Abandon(took time.Duration) { b.end(took, callAbandoned) }

// callEnd is how a call ended.
type callEnd uint8

const (
	callAnswered callEnd = iota
	callFailed
	callAbandoned
)

func (b *Breaker) end(took time.Duration, how callEnd) {
	if b.count(took, how) {
		b.owner.changed(b.store)
	}
}

// count counts a call that has ended, and reports whether that closed the breaker.
func (b *Breaker) count(took time.Duration, how callEnd) (closed bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.inFlight--
	if b.gone || b.state == Open {
		return false
	}
	if how == callAnswered && took <= b.slow && b.early == 0 {
		return b.succeed()
	}
	now := time.Now()
	if b.early > 0 && took > now.Sub(b.probeSent) {
		b.early--
		return false
	}
	waited := took - b.owner.stalls.within(now.Add(-took), now)
	switch {
	case waited > b.slow:
		b.fail(how == callFailed)
	case how == callAnswered:
		return b.succeed()
	case how == callFailed && took <= b.slow:
		b.fail(true)
	default:
		b.waitInVain(waited, now)
	}
	return false
}

// waitInVain counts a call that says nothing about the server but that it did not answer for so long. A probe that says
// nothing is sent again by the next call.
func (b *Breaker) waitInVain(waited time.Duration, now time.Time) {
	b.silent += min(waited, now.Sub(b.silentUntil))
	b.silentUntil = now
	if b.silent > b.slow {
		b.fail(false)
	} else if b.state == HalfOpen {
		b.circuit.Open()
		b.state, b.until = Open, now
	}
}

// succeed counts a success, and tells whether it has closed the breaker.
func (b *Breaker) succeed() (closed bool) {
	b.quiet++
	b.inARow, b.silent = 0, 0
	b.circuit.RecordSuccess()
	if b.state == Closed {
		return false
	}
	b.log.Info("Redis answers again", "after", told(b.close(time.Now())))
	return true
}

// told is a time as people read it: in JSON a duration would be a number of nanoseconds.
func told(d time.Duration) string { return d.Round(time.Millisecond).String() }

// close ends an outage and answers how long it was.
func (b *Breaker) close(now time.Time) time.Duration {
	lasted := now.Sub(b.since)
	b.degraded += lasted
	b.state, b.since, b.pause = Closed, now, firstPause
	b.errors, b.late = 0, 0
	return lasted
}

func (b *Breaker) fail(failed bool) {
	if b.quiet >= recentCalls {
		b.errors, b.late = 0, 0
	}
	b.quiet = 0
	b.inARow++
	if failed {
		b.errors++
	} else {
		b.late++
	}
	b.circuit.RecordFailure()
	if b.state == Closed && b.inARow >= failuresInARow {
		b.circuit.Open()
	}
	if !b.circuit.IsOpen() {
		return
	}
	now := time.Now()
	if b.state == Closed {
		b.since = now
		b.log.Warn("Redis does not answer: its limits use their fail modes", "errors", b.errors, "slow", b.late, "slow_means", told(b.slow))
	} else {
		b.pause = min(2*b.pause, longestPause)
	}
	b.state, b.inARow = Open, 0
	b.until = now.Add(time.Duration(float64(b.pause) * (1 + pauseJitter*(2*rand.Float64()-1))))
}

// Close ends the breaker: its server is not part of the store any more.
func (b *Breaker) Close() {
	if degraded, first := b.leaveStore(); first {
		b.owner.forget(b, degraded)
		b.owner.changed(b.store)
	}
}

// leaveStore marks the server as gone. It returns how long it was away altogether, and false if it was gone already.
func (b *Breaker) leaveStore() (degraded time.Duration, first bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.gone {
		return 0, false
	}
	b.gone = true
	if b.state != Closed {
		b.log.Info("a Redis server that did not answer was removed from the cluster",
			"after", told(b.close(time.Now())))
	}
	return b.degraded, true
}

// status is what the breaker tells metrics.
func (b *Breaker) status(now time.Time) ServerStatus {
	b.mu.Lock()
	defer b.mu.Unlock()
	s := ServerStatus{Store: b.store, Server: b.server, State: b.state, Since: b.since, Degraded: b.degraded}
	if b.state != Closed {
		s.Degraded += now.Sub(b.since)
	}
	return s
}
