package storetest

import (
	"slices"

	"pgregory.net/rapid"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/calendar"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/limit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
)

// Algorithms holds all algorithms of limits that count tokens.
var Algorithms = []limit.Algorithm{
	limit.TokenBucket, limit.LeakyBucket, limit.FixedWindow, limit.SlidingWindow, limit.SlidingLog,
}

// Every holds all algorithms that a limit can have.
var Every = append(slices.Clone(Algorithms), limit.Concurrency)

// Limits generates limits of the given algorithms ([Algorithms], if none are given) over their whole range: every tick,
// quantities from 1 to 10^12, windows from a second to a year, with and without thresholds.
func Limits(algorithms ...limit.Algorithm) *rapid.Generator[*limit.Limit] {
	if len(algorithms) == 0 {
		algorithms = Algorithms
	}
	return rapid.Custom(func(t *rapid.T) *limit.Limit {
		spec := drawSpec(t, rapid.SampledFrom(algorithms).Draw(t, "algorithm"))
		for {
			l, err := limit.New(spec)
			if err == nil {
				return &l
			}
			if spec.Quantity == 1 && spec.Burst <= 1 {
				t.Fatalf("the smallest limit is invalid: %v", err)
			}
			spec.Quantity, spec.Burst = max(1, spec.Quantity/3), spec.Burst/3
		}
	})
}

// drawSpec draws a spec, which may be invalid.
func drawSpec(t *rapid.T, algorithm limit.Algorithm) limit.Spec {
	spec := limit.Spec{Algorithm: algorithm}
	largest := int64(limit.MaxQuantity)
	switch algorithm {
	case limit.SlidingLog:
		largest = limit.MaxLogQuantity
	case limit.Concurrency: // mostly small ones: only they get full
		spec.Quantity = rapid.SampledFrom([]int64{1, 1, 2, 3, 5, limit.MaxSlots}).Draw(t, "at once")
		spec.Window = limit.Micros(drawSize(t, int64(limit.MaxDuration/limit.Second), "max duration")) * limit.Second
		return spec
	}
	spec.Quantity = drawSize(t, largest, "quantity")
	spec.Window = limit.Micros(drawSize(t, int64(limit.MaxWindow/limit.Second), "window")) * limit.Second
	if algorithm == limit.FixedWindow && rapid.Bool().Draw(t, "with calendar") {
		spec.Calendar, spec.Window = Calendars().Draw(t, "calendar"), 0
	}
	if (algorithm == limit.TokenBucket || algorithm == limit.LeakyBucket) && rapid.Bool().Draw(t, "with burst") {
		spec.Burst = drawSize(t, limit.MaxQuantity, "burst")
	}
	switch rapid.IntRange(0, 4).Draw(t, "thresholds") {
	case 0:
		spec.SoftPct = rapid.Int64Range(1, 1000).Draw(t, "soft")
		spec.HardPct = rapid.Int64Range(max(100, spec.SoftPct), 1000).Draw(t, "hard")
	case 1:
		spec.SoftPct, spec.HardPct = 100, 105
	case 2:
		spec.HardPct = 200 // ignored without a soft threshold
	}
	return spec
}

// Calendars generates calendars of all periods, with and without anchors, in zones whose days differ in length.
func Calendars() *rapid.Generator[*calendar.Calendar] {
	zones := []string{"UTC", "Europe/Berlin", "America/Havana", "Australia/Lord_Howe", "Asia/Kathmandu", "Pacific/Apia"}
	return rapid.Custom(func(t *rapid.T) *calendar.Calendar {
		period := rapid.SampledFrom([]calendar.Period{
			calendar.Day, calendar.Day, calendar.Week, calendar.Month, calendar.Quarter, calendar.Year,
		}).Draw(t, "period")
		var anchor calendar.Anchor
		if rapid.Bool().Draw(t, "with anchor") {
			anchor.Hour = rapid.IntRange(0, 23).Draw(t, "hour")
			switch period {
			case calendar.Day:
			case calendar.Week:
				anchor.Weekday = rapid.IntRange(1, 7).Draw(t, "weekday")
			default:
				anchor.Day = rapid.IntRange(1, 31).Draw(t, "day")
			}
		}
		c, err := calendar.New(period, anchor, rapid.SampledFrom(zones).Draw(t, "zone"))
		if err != nil {
			t.Fatal(err)
		}
		return c
	})
}

// drawSize draws small numbers as often as large ones, up to largest.
func drawSize(t *rapid.T, largest int64, label string) int64 {
	top := min(largest, rapid.SampledFrom([]int64{3, 20, 100, 3_600, 86_400, 15_000_000, largest}).Draw(t, label+" up to"))
	return rapid.Int64Range(1, top).Draw(t, label)
}

// WithPolicy returns b with another policy, and the bucket that it counts in.
func WithPolicy(b policy.Bound, p *policy.Policy) policy.Bound {
	b.Policy, b.Key.Slots = p, p.Limit.IsConcurrency()
	return b
}

// Gap draws the time between two requests. It often draws multiples and fractions of the window and times within a
// tick, at which limits change. A negative gap is a step back of the clock.
func Gap(t *rapid.T, l *limit.Limit) limit.Micros {
	window, tick := l.Spec().Window, l.Tick()
	switch rapid.IntRange(0, 7).Draw(t, "kind of gap") {
	case 0:
		return 0
	case 1:
		return limit.Micros(rapid.Int64Range(0, 3*int64(tick)).Draw(t, "ticks"))
	case 2:
		return window / limit.Micros(l.Spec().Quantity)
	case 3:
		share, before := rapid.IntRange(1, 10).Draw(t, "share of window"), rapid.IntRange(0, 1).Draw(t, "just before")
		return window/limit.Micros(share) - limit.Micros(before)
	case 4:
		return limit.Micros(rapid.Int64Range(0, 3*int64(window)).Draw(t, "windows"))
	case 5:
		return -limit.Micros(rapid.Int64Range(0, int64(window)).Draw(t, "step back"))
	default:
		return limit.Micros(rapid.Int64Range(0, int64(window)/10).Draw(t, "gap"))
	}
}

// Cost draws the cost of a request: mostly small, sometimes the whole capacity, 0, or more than the capacity. Of a
// concurrency limit it is 1 or 0.
func Cost(t *rapid.T, l *limit.Limit) int64 {
	if l.IsConcurrency() {
		return min(rapid.Int64Range(0, 7).Draw(t, "slot"), 1)
	}
	switch rapid.IntRange(0, 9).Draw(t, "kind of cost") {
	case 0:
		return 0
	case 1:
		return l.Capacity()
	case 2:
		return l.Capacity() + 1
	case 3, 4:
		return rapid.Int64Range(1, max(1, l.Capacity())).Draw(t, "cost")
	case 5, 6, 7:
		return max(1, l.Capacity()/rapid.Int64Range(2, 5).Draw(t, "share of capacity"))
	default:
		return 1
	}
}

// Start is the first instant of timelines. It is within a window of any length, and no round number.
const Start = limit.Micros(1_700_000_000_123_457)

// Settling holds the algorithms whose requests can be settled to more than they reserved.
var Settling = []limit.Algorithm{limit.TokenBucket, limit.LeakyBucket, limit.FixedWindow}

// Actual draws what a request cost that had reserved some tokens: mostly less or some more, sometimes nothing, exactly
// that, far more than the limit, or the most that can be settled.
func Actual(t *rapid.T, l *limit.Limit, reserved int64) int64 {
	switch rapid.IntRange(0, 9).Draw(t, "kind of actual cost") {
	case 0:
		return 0
	case 1:
		return reserved
	case 2:
		return reserved + 1
	case 3:
		return min(reserved+rapid.Int64Range(1, 3).Draw(t, "times the capacity")*l.Capacity(), limit.MaxQuantity)
	case 4:
		if rapid.IntRange(0, 3).Draw(t, "the most") == 0 {
			return limit.MaxQuantity
		}
		return reserved - 1
	case 5, 6:
		return reserved + rapid.Int64Range(0, max(1, l.Capacity()/10)).Draw(t, "excess")
	default:
		return rapid.Int64Range(0, reserved).Draw(t, "actual cost")
	}
}
