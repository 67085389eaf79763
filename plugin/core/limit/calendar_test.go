package limit_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/storetest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/calendar"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/limit"
)

// perPeriod returns a limit of 10 per period of a zone.
func perPeriod(t testing.TB, period calendar.Period, anchor calendar.Anchor, zone string) *limit.Limit {
	t.Helper()
	c, err := calendar.New(period, anchor, zone)
	require.NoError(t, err)
	return mustNew(t, limit.Spec{Algorithm: limit.FixedWindow, Quantity: 10, Calendar: c})
}

// at returns an instant of a text such as 2026-10-31T22:59:59Z.
func at(t testing.TB, text string) limit.Micros {
	t.Helper()
	instant, err := time.Parse(time.RFC3339Nano, text)
	require.NoError(t, err)
	return limit.Micros(instant.UnixMicro())
}

// What a bucket counts is carried over by each change of its definition, as long as it counts.
func TestAChangedCalendarEmptiesNoBucketThatStillCounts(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var s limit.State
		now, spent, ends := storetest.Start, int64(0), limit.Micros(0)
		for range 20 {
			spec := limit.Spec{Algorithm: limit.FixedWindow, Quantity: limit.MaxQuantity}
			spec.Calendar = storetest.Calendars().Draw(t, "calendar")
			l, err := limit.New(spec)
			require.NoError(t, err)
			now += limit.Micros(rapid.Int64Range(0, int64(30*hour)).Draw(t, "gap"))
			if now >= ends {
				spent = 0
			}
			cost := rapid.Int64Range(1, 10).Draw(t, "cost")
			left := ends - now
			_, status := take(&l, &s, now, cost)
			next := status.Used == cost && left <= 3*hour // the next period of the same definition has begun
			if spent += cost; next {
				spent = cost
			}
			require.True(t, status.Used == spent, "%d used, want %d", status.Used, spent)
			_, end := l.PeriodAt(now)
			require.True(t, status.Reset >= end, "it resets at %d, before the period ends at %d", status.Reset, end)
			ends = status.Reset
		}
	})
}

func TestOtherZoneDataEmptiesNoBucketAndProlongsNone(t *testing.T) {
	l := perPeriod(t, calendar.Day, calendar.Anchor{}, "Europe/Berlin")
	now := at(t, "2026-05-05T12:00:00Z")
	start, end := l.PeriodAt(now)
	_, next := l.PeriodAt(end)
	fresh := limit.State{}
	l.Advance(&fresh, now)
	for name, test := range map[string]struct {
		at, length limit.Micros // of the state that other data left
		now        limit.Micros
		used       int64
		reset      limit.Micros
	}{
		"its period began earlier":            {start - hour, day, now, 3, end},
		"its period began later":              {start + hour, day, now, 3, end + hour},
		"its period began later and is short": {start + hour, day - 2*hour, now, 3, end},
		"its period is longer":                {start, day + hour, now, 3, end},
		"its period has not ended":            {start, day + hour, end, 0, next},
		"its period has ended":                {start, day - hour, end - 1, 0, end},
	} {
		s := fresh
		s.At, s.Length, s.Spent = test.at, test.length, 3
		l.Advance(&s, test.now)
		if status := l.Status(&s, test.now); status.Used != test.used || status.Reset != test.reset {
			t.Errorf("%s: %d used until %d, want %d until %d", name, status.Used, status.Reset, test.used, test.reset)
		}
	}
}

func TestACalendarIsForFixedWindowsWithoutALengthOfTheirOwn(t *testing.T) {
	month, err := calendar.New(calendar.Month, calendar.Anchor{}, "")
	require.NoError(t, err)
	_, err = limit.New(limit.Spec{Algorithm: limit.SlidingWindow, Quantity: 1, Window: day, Calendar: month})
	assert.Equal(t, []string{"algorithm", "period"}, faults(err))
	l := mustNew(t, limit.Spec{Algorithm: limit.FixedWindow, Quantity: 1, Calendar: month})
	spec := l.Spec()
	spec.Burst = 0
	assert.Equal(t, l, mustNew(t, spec), "a compiled spec compiles again")
	_, err = limit.New(limit.Spec{Algorithm: limit.CalendarWindow, Quantity: 1, Window: day})
	assert.Equal(t, []string{"algorithm"}, faults(err))
	_, err = limit.ParseAlgorithm("calendar_window")
	assert.Error(t, err)
}

func TestACalendarsLimitIsCountedWithoutAllocations(t *testing.T) {
	l := perPeriod(t, calendar.Month, calendar.Anchor{}, "Europe/Berlin")
	var s limit.State
	now := at(t, "2026-05-05T12:00:00Z")
	take(l, &s, now, 1)
	assert.Zero(t, testing.AllocsPerRun(100, func() { now++; take(l, &s, now, 1) }))
}
