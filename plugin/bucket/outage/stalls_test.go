package outage

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
)

// stalled are breakers of a process that could not run for the last d.
func stalled(d time.Duration) *Breakers {
	breakers := NewBreakers(quiet(), time.Now)
	breakers.stalls.setDue(time.Now().Add(-d))
	breakers.stalls.beat(time.Now())
	return breakers
}

func TestABusyProcessIsNoSlowServer(t *testing.T) {
	const took = 2 * timeout
	ends := map[string]func(*Breaker){
		"answered late":          func(b *Breaker) { b.Leave(took, false) },
		"failed after a timeout": func(b *Breaker) { b.Leave(took, true) },
		"out of time":            func(b *Breaker) { b.Abandon(took) },
	}
	for name, end := range ends {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				for _, starved := range []bool{true, false} {
					breakers := NewBreakers(quiet(), time.Now)
					if starved {
						breakers = stalled(took)
					}
					b := breakers.New("main", "a", timeout)
					for range failuresInARow {
						if _, ok := b.Enter(); !ok {
							t.Fatal("a closed breaker holds a call back")
						}
					}
					for range failuresInARow {
						end(b)
					}
					if _, ok := b.Enter(); ok != starved {
						t.Errorf("starved: %v, lets calls through: %v", starved, ok)
					}
				}
			})
		})
	}
}

func TestAStallThatLastsCountsBeforeItsPulse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		breakers := NewBreakers(quiet(), time.Now)
		breakers.stalls.setDue(time.Now().Add(pulse))
		b := breakers.New("main", "a", timeout)
		for range failuresInARow {
			b.Enter()
		}
		time.Sleep(timeout) // no pulse comes: what reads answers wakes first
		for range failuresInARow {
			b.Abandon(timeout)
		}
		_, ok := b.Enter()
		assert.True(t, ok, "the breaker has opened for a stall of its own process")
	})
}

func TestABusyProcessStillFindsOutThatAServerIsUnavailable(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		breakers := stalled(timeout)
		b := breakers.New("main", "a", timeout)
		for range failuresInARow {
			call(t, b, '-') // failed at once, whatever this process does
		}
		if _, ok := b.Enter(); ok {
			t.Error("failed connections do not open the breaker")
		}
		b = breakers.New("main", "b", timeout)
		for range failuresInARow {
			b.Enter()
			b.Abandon(2 * timeout) // of which half is this process's own
		}
		if _, ok := b.Enter(); ok {
			t.Error("a server that is slow beside a stall does not open the breaker")
		}
	})
}

func TestAProcessThatRunsHasNoStalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		breakers := NewBreakers(quiet(), time.Now)
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- breakers.Run(ctx) }()
		began := time.Now()
		time.Sleep(time.Second)
		if got := breakers.stalls.within(began, time.Now()); got != 0 {
			t.Errorf("stalled for %v of a second in which every timer was exact", got)
		}
		cancel()
		assert.NoError(t, <-ended)
		time.Sleep(time.Second)
		if got := breakers.stalls.within(began, time.Now()); got != 0 {
			t.Errorf("stalled for %v when nothing measures any more", got)
		}
	})
}

func TestStallsAreCountedWhereTheyOverlap(t *testing.T) {
	at := func(ms int) time.Time { return time.Unix(1000, 0).Add(time.Duration(ms) * time.Millisecond) }
	var s stalls
	s.setDue(at(10))
	s.beat(at(50))  // due at 10
	s.beat(at(61))  // due at 60: timers are not exact
	s.beat(at(100)) // due at 71
	for _, test := range []struct{ from, to, want int }{
		{0, 105, 69}, {0, 10, 0}, {20, 40, 20}, {40, 80, 19}, {100, 111, 0}, {100, 120, 10},
	} {
		if got := s.within(at(test.from), at(test.to)); got != time.Duration(test.want)*time.Millisecond {
			t.Errorf("from %d to %d ms: %v, want %d ms", test.from, test.to, got, test.want)
		}
	}
}
