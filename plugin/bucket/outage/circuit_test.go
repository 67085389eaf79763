package outage

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

const ms = time.Millisecond

// at returns an instant after the start of a timeline.
func at(after time.Duration) time.Time { return time.Unix(1_700_000_000, 0).Add(after) }

// apply ends a call of a circuit as a breaker does.
func apply(c *circuit, after, took time.Duration, how callEnd) {
	c.inFlight--
	switch now := at(after); c.judge(now, took, took, how) {
	case success:
		c.succeed()
	case failure, slowness:
		c.fail(now, 0)
	}
}

func TestACircuitFollowsTheResultsOfItsCalls(t *testing.T) {
	const slow = 40 * ms
	type step struct {
		after  time.Duration
		enters bool          // a call enters; else one ends
		took   time.Duration // of the call that ends
		how    callEnd
		held   bool // the call that enters is held back
		state  State
	}
	enter := func(after time.Duration, state State) step { return step{after: after, enters: true, state: state} }
	hold := func(after time.Duration, state State) step {
		return step{after: after, enters: true, held: true, state: state}
	}
	end := func(after, took time.Duration, how callEnd, state State) step {
		return step{after: after, took: took, how: how, state: state}
	}
	opening := []step{
		enter(0, Closed), end(1*ms, 1*ms, callFailed, Closed), enter(1*ms, Closed), end(2*ms, 1*ms, callFailed, Closed),
		enter(2*ms, Closed), end(50*ms, 48*ms, callAnswered, Open),
	}
	tests := []struct {
		name  string
		steps []step
	}{
		{"a probe that is answered closes it", []step{
			hold(249*ms, Open), enter(250*ms, HalfOpen), hold(250*ms, HalfOpen), end(260*ms, 10*ms, callAnswered, Closed),
			enter(260*ms, Closed),
		}},
		{"a probe that fails doubles the pause", []step{
			enter(250*ms, HalfOpen), end(260*ms, 10*ms, callFailed, Open), hold(659*ms, Open), enter(660*ms, HalfOpen),
		}},
		{"a probe that is slow doubles the pause", []step{
			enter(250*ms, HalfOpen), end(300*ms, slow+1, callAnswered, Open), hold(699*ms, Open), enter(700*ms, HalfOpen),
		}},
		{"a probe that is abandoned early is sent again at once", []step{
			enter(250*ms, HalfOpen), end(251*ms, 1*ms, callAbandoned, Open), enter(251*ms, HalfOpen),
		}},
		{"a probe that is abandoned late counts as failed", []step{
			enter(250*ms, HalfOpen), end(300*ms, slow+1, callAbandoned, Open), hold(301*ms, Open),
		}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			c := circuit{slow: slow}
			for i, s := range append(slices.Clone(opening), test.steps...) {
				if s.enters {
					if wait, ok := c.enter(at(s.after)); ok == s.held || !ok && wait <= 0 {
						t.Fatalf("step %d: a call enters: %t, else after %v; want it held back: %t", i, ok, wait, s.held)
					}
				} else {
					apply(&c, s.after, s.took, s.how)
				}
				require.Equal(t, s.state, c.state, "step %d: the circuit", i)
			}
		})
	}
}

func TestACircuitOpensAtThreeFailuresInARowOrFiveOfTen(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		c, results := circuit{slow: time.Second}, []bool(nil)
		for i := range rapid.IntRange(1, 60).Draw(rt, "calls") {
			failed := rapid.IntRange(0, 9).Draw(rt, "result") < 4
			if results = append(results, failed); failed {
				c.fail(at(0), 0)
			} else {
				c.succeed()
			}
			recent, inARow := results[max(0, len(results)-10):], len(results) >= 3 && results[len(results)-1] &&
				results[len(results)-2] && results[len(results)-3]
			failures := 0
			for _, failed := range recent {
				if failed {
					failures++
				}
			}
			if want := failed && (inARow || failures >= 5); want != (c.state == Open) {
				rt.Fatalf("call %d of %v: the circuit is %v, want it open: %t", i, results, c.state, want)
			}
			if c.state == Open { // and then a probe is answered
				c.enter(at(time.Hour))
				c.succeed()
				results = nil
			}
		}
	})
}

func TestThePausesOfACircuitGrowToTwoSecondsWithinTheirJitter(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		c, now := circuit{slow: time.Second}, at(0)
		for range failuresInARow {
			c.fail(now, 0)
		}
		c.until = now
		pause := 200 * ms
		for range rapid.IntRange(1, 8).Draw(rt, "probes") {
			_, ok := c.enter(now)
			require.True(rt, ok, "a probe is held back when its pause is over")
			c.fail(now, rapid.Float64Range(-1, 1).Draw(rt, "jitter"))
			pause = min(2*pause, 2*time.Second)
			got := c.until.Sub(now)
			require.True(rt, got >= pause*8/10 && got <= pause*12/10, "the pause is %v, want %v ± 20 %%", got, pause)
			now = c.until
		}
		c.enter(now) // and an answer makes them short again
		c.succeed()
		for range failuresInARow {
			c.fail(now, 0)
		}
		require.Equal(rt, firstPause, c.until.Sub(now), "the pause after a success")
	})
}
