package outage

import (
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

const timeout = 50 * time.Millisecond // of calls

// call makes a call that is answered (+), fails (-) or is slow (s).
func call(t *testing.T, b *Breaker, result rune) {
	t.Helper()
	wait, ok := b.Enter()
	require.True(t, ok, "a call is held back for %v", wait)
	took := timeout * 4 / 5
	if result == 's' {
		took++
	}
	b.Leave(took, result == '-')
}

// opened is a breaker that has just opened.
func opened(t *testing.T, breakers *Breakers) *Breaker {
	t.Helper()
	b := breakers.New("main", "a", timeout)
	for range failuresInARow {
		call(t, b, '-')
	}
	return b
}

// probe waits until the breaker lets a call through, and answers how long that took.
func probe(t *testing.T, b *Breaker) time.Duration {
	t.Helper()
	start := time.Now()
	for range 10 {
		wait, ok := b.Enter()
		if ok {
			return time.Since(start)
		}
		require.True(t, wait > 0, "a call that is held back has no wait")
		time.Sleep(wait)
	}
	t.Fatal("no call is let through")
	return 0
}

func TestResultsFromBeforeTheProbeDecideNothing(t *testing.T) {
	for _, failed := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			b := NewBreakers(quiet(), time.Now).New("main", "a", time.Hour)
			for range 4 {
				_, ok := b.Enter()
				require.True(t, ok, "a closed breaker holds a call back")
			}
			entered := time.Now()
			for range 3 {
				b.Leave(0, true)
			}
			probe(t, b)
			time.Sleep(time.Millisecond)
			b.Leave(time.Since(entered), failed) // the fourth, late
			got := b.circuit.state
			require.True(t, got == HalfOpen, "the breaker is %v by the late result of an old call, want half-open", got)
			b.Leave(time.Millisecond, false)
			call(t, b, '+')
		})
	}
}

func TestEachChangeIsLoggedOnceAndNoProbeIs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log strings.Builder
		breakers := NewBreakers(slog.New(slog.NewTextHandler(&log, nil)), time.Now)
		b := breakers.New("main", "a", timeout)
		call(t, b, 's')
		call(t, b, '-')
		call(t, b, '-')
		for range 5 {
			probe(t, b)
			b.Leave(0, true)
		}
		probe(t, b)
		b.Leave(0, false)
		call(t, b, '+')
		lines := strings.Split(strings.TrimSpace(log.String()), "\n")
		if len(lines) != 2 || !strings.Contains(lines[0], "level=WARN") || !strings.Contains(lines[0], "errors=2 slow=1") ||
			!strings.Contains(lines[1], "level=INFO") || !strings.Contains(lines[1], "server=a after=") {
			t.Errorf("logged\n%s\nwant one warning with causes and one line at the end", log.String())
		}
	})
}

func TestBreakersReportForHowLongTheServersOfAStoreAreUnavailable(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		breakers := NewBreakers(quiet(), time.Now)
		breakers.New("main", "b", timeout)
		breakers.New("other", "a", timeout)
		a := opened(t, breakers)
		time.Sleep(3 * time.Second)
		if now, lasting, total := breakers.Degraded("main"); !now || lasting != 3*time.Second || total != 3*time.Second {
			t.Errorf("main: degraded %v for %v, %v in total, want true and 3s", now, lasting, total)
		}
		if now, lasting, total := breakers.Degraded("other"); now || lasting != 0 || total != 0 {
			t.Errorf("other: degraded %v for %v, %v in total, want no", now, lasting, total)
		}
		a.Close()
		a.Close()
		time.Sleep(time.Second)
		if now, lasting, total := breakers.Degraded("main"); now || lasting != 0 || total != 3*time.Second {
			t.Errorf("after the server was removed: degraded %v for %v, %v in total", now, lasting, total)
		}
	})
}

func TestAPassThroughAClosedBreakerAllocatesNothing(t *testing.T) {
	b := NewBreakers(quiet(), time.Now).New("main", "a", timeout)
	if n := testing.AllocsPerRun(1000, func() { call(t, b, '+') }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func TestAServerThatNeverAnswersIsNotKeptAliveByCallersWithLittleTime(t *testing.T) {
	const deadline = timeout / 5 // well below the slow threshold
	synctest.Test(t, func(t *testing.T) {
		b := NewBreakers(quiet(), time.Now).New("main", "a", timeout)
		waited := time.Duration(0)
		for {
			if _, ok := b.Enter(); !ok {
				break
			}
			if waited > 2*timeout {
				t.Fatalf("calls have waited for %v without an answer, and the breaker lets them through", waited)
			}
			time.Sleep(deadline)
			b.Abandon(deadline)
			waited += deadline
		}
		probe(t, b)
		time.Sleep(deadline)
		b.Abandon(deadline)
		if _, ok := b.Enter(); ok {
			t.Error("a probe without an answer has closed the breaker")
		}
	})
}

func TestCallersWithLittleTimeDoNotOpenTheBreakerOfAServerThatAnswers(t *testing.T) {
	const deadline = timeout / 5
	synctest.Test(t, func(t *testing.T) {
		b := NewBreakers(quiet(), time.Now).New("main", "a", timeout)
		for range 100 {
			for range 3 { // at the same time
				_, ok := b.Enter()
				require.True(t, ok, "a call is held back")
			}
			time.Sleep(deadline)
			for range 3 {
				b.Abandon(deadline)
			}
			call(t, b, '+')
		}
	})
}
