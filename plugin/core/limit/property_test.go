package limit_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/storetest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/limit"
)

// perAlgorithm checks a property of each algorithm by itself, so that none hides behind the others.
func perAlgorithm(t *testing.T, property func(t *rapid.T, l *limit.Limit)) {
	for _, algorithm := range storetest.Algorithms {
		t.Run(algorithm.String(), func(t *testing.T) {
			rapid.Check(t, func(t *rapid.T) { property(t, storetest.Limits(algorithm).Draw(t, "limit")) })
		})
	}
}

// history draws a state with a past, and the instant at which it was last read.
func history(t *rapid.T, l *limit.Limit) (limit.State, limit.Micros) {
	var s limit.State
	now := storetest.Start
	for range rapid.IntRange(0, 25).Draw(t, "requests") {
		now += storetest.Gap(t, l)
		take(l, &s, now, storetest.Cost(t, l))
	}
	l.Advance(&s, now)
	return s, now
}

func TestWaitingExactlyAsReportedAdmitsAndOneMicrosecondLessDoesNot(t *testing.T) {
	perAlgorithm(t, func(t *rapid.T, l *limit.Limit) {
		s, now := history(t, l)
		cost := storetest.Cost(t, l)
		wait := l.Wait(&s, now, cost)
		if (wait == limit.Never) != (cost > l.Capacity()) {
			t.Fatalf("cost %d of at most %d waits %d", cost, l.Capacity(), wait)
		}
		if wait == 0 || wait == limit.Never {
			return
		}
		early := limit.Micros(rapid.Int64Range(0, int64(wait)-1).Draw(t, "early"))
		for _, after := range []limit.Micros{early, wait - 1} {
			if again, _ := take(l, new(clone(s)), now+after, cost); again != wait-after {
				t.Fatalf("must wait %d; after %d it must wait %d more", wait, after, again)
			}
		}
		if again, _ := take(l, new(clone(s)), now+wait, cost); again != 0 {
			t.Fatalf("must wait %d; after that it must wait %d more", wait, again)
		}
	})
}

func TestAStatusTellsAWaitThatIsNeverTooLongAndShortByATickAtMost(t *testing.T) {
	perAlgorithm(t, func(t *rapid.T, l *limit.Limit) {
		s, now := history(t, l)
		cost, status := storetest.Cost(t, l), l.Status(&s, now)
		exact, derived := l.Wait(&s, now, cost), l.WaitAfter(&status, now, cost)
		if spec := l.Spec(); derived == 0 && (l.Units().Kind > limit.FixedWindow || spec.HardPct > 100) {
			return // none follows
		}
		if derived > exact || exact-derived > l.Tick() {
			t.Fatalf("cost %d waits %d; %d follows from %+v", cost, exact, derived, status)
		}
	})
}

func TestNothingWaitsForALimitThatOnlyWarns(t *testing.T) {
	l, err := limit.New(limit.Spec{Algorithm: limit.FixedWindow, Quantity: 10, Window: 60 * limit.Second, SoftOnly: true})
	require.NoError(t, err)
	s := limit.State{Algorithm: limit.FixedWindow, Spent: 20}
	status := l.Status(&s, 0)
	if wait, derived := l.Wait(&s, 0, 11), l.WaitAfter(&status, 0, 11); wait != 0 || derived != 0 {
		t.Errorf("a cost above its capacity waits %d, and %d follows from its status", wait, derived)
	}
}

func TestNoIntervalSeesMoreThanTheBound(t *testing.T) {
	perAlgorithm(t, func(t *rapid.T, l *limit.Limit) {
		var s limit.State
		var admissions []limit.Admission
		now, latest := storetest.Start, limit.Micros(0)
		for range 40 {
			now += storetest.Gap(t, l)
			if s.At > now+limit.StepBack {
				admissions, latest = nil, 0 // the bound is of what is between two such steps
			}
			latest = max(latest, now)
			cost := storetest.Cost(t, l)
			wait, _ := take(l, &s, now, cost)
			if rapid.Bool().Draw(t, "waits as reported") && wait != limit.Never {
				now += wait
				latest = max(latest, now)
				wait, _ = take(l, &s, now, cost)
			}
			if wait == 0 && cost > 0 {
				admissions = append(admissions, limit.Admission{At: latest, Cost: cost})
			}
		}
		require.NoError(t, (storetest.Bound{Limit: l}).Check(admissions))
	})
}

func TestClockSteppingBackNeverAdmitsMore(t *testing.T) {
	perAlgorithm(t, func(t *rapid.T, l *limit.Limit) {
		s, now := history(t, l)
		cost := storetest.Cost(t, l)
		earlier := max(now-limit.Micros(rapid.Int64Range(1, 3*int64(l.Spec().Window)).Draw(t, "step back")),
			s.At-limit.StepBack)
		back := clone(s)
		l.Advance(&back, earlier)
		if l.Wait(&back, earlier, cost) == 0 && l.Wait(&s, now, cost) != 0 {
			t.Fatalf("cost %d is denied, and admitted once the clock has stepped back %d", cost, now-earlier)
		}
	})
}

func TestRemainingIsWhatCanBeSpentAtOnceBelowTheSoftThreshold(t *testing.T) {
	perAlgorithm(t, func(t *rapid.T, l *limit.Limit) {
		s, now := history(t, l)
		status := l.Status(&s, now)
		if status.Remaining > 0 && l.Wait(&s, now, status.Remaining) != 0 {
			t.Fatalf("%d tokens remain, and cannot be spent: %+v", status.Remaining, s)
		}
		noSoftZone := l.Spec().SoftPct == 0
		if noSoftZone && l.Wait(&s, now, status.Remaining+1) == 0 {
			t.Fatalf("%d tokens remain, and one more can be spent: %+v", status.Remaining, s)
		}
	})
}

func TestAStateAtItsExpiryMeansNothingAnyMore(t *testing.T) {
	perAlgorithm(t, func(t *rapid.T, l *limit.Limit) {
		s, now := history(t, l)
		at := max(l.Expiry(&s, now), now) + limit.Micros(rapid.Int64Range(0, int64(l.Spec().Window)).Draw(t, "later"))
		var fresh limit.State
		for range 10 {
			cost := storetest.Cost(t, l)
			wait, status := take(l, &s, at, cost)
			freshWait, freshStatus := take(l, &fresh, at, cost)
			if wait != freshWait || status != freshStatus {
				t.Fatalf("expired: %d %+v; fresh: %d %+v", wait, status, freshWait, freshStatus)
			}
			at += max(0, storetest.Gap(t, l))
		}
	})
}

// A store may forget a state at its expiry and not before, or what is still owed would be forgiven.
func TestAStateStillMeansSomethingJustBeforeItsExpiry(t *testing.T) {
	for _, algorithm := range storetest.Algorithms {
		t.Run(algorithm.String(), func(t *testing.T) {
			l := mustNew(t, limit.Spec{Algorithm: algorithm, Quantity: 7, Window: minute})
			var s limit.State
			take(l, &s, noon+second, l.Capacity())
			before := l.Expiry(&s, noon+second) - second
			if algorithm == limit.SlidingWindow {
				before -= minute // until a whole window later it weighs less and less, and less than a token at the end
			}
			wait, _ := take(l, &s, before, l.Capacity())
			assert.True(t, wait != 0, "the whole capacity can be spent again before the state expires")
		})
	}
}

// While a clock has stepped back, even an empty state holds an instant that must not be forgotten.
func TestAStateThatIsAheadOfTheClockDoesNotExpire(t *testing.T) {
	for _, algorithm := range storetest.Algorithms {
		l := mustNew(t, limit.Spec{Algorithm: algorithm, Quantity: 7, Window: minute})
		var s limit.State
		take(l, &s, noon, 0)
		l.Advance(&s, noon-hour)
		got := l.Expiry(&s, noon-hour)
		assert.True(t, got >= noon, "%s: a state of noon expires %d µs before", algorithm, noon-got)
	}
}

func TestAskingChangesNothing(t *testing.T) {
	perAlgorithm(t, func(t *rapid.T, l *limit.Limit) {
		s, now := history(t, l)
		later := now + max(0, storetest.Gap(t, l))
		observed := clone(s)
		for range 5 {
			at := max(now+limit.Micros(rapid.Int64Range(0, int64(later-now)).Draw(t, "observed at")), observed.At-limit.StepBack)
			l.Advance(&observed, at)
			l.Wait(&observed, at, storetest.Cost(t, l))
			l.Status(&observed, at)
			l.Spend(&observed, at, 0)
		}
		cost := storetest.Cost(t, l)
		wait, status := take(l, &s, later, cost)
		if gotWait, gotStatus := take(l, &observed, later, cost); gotWait != wait || gotStatus != status {
			t.Fatalf("observed in between: %d %+v; not observed: %d %+v", gotWait, gotStatus, wait, status)
		}
	})
}
