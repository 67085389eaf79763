package limit_test

import (
	"errors"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/limit"
)

// faults are the fields that New complains about, sorted.
func faults(err error) []string {
	var fields []string
	collect := func(err error) {
		if fault := new(limit.FieldError); errors.As(err, &fault) {
			fields = append(fields, fault.Field)
		}
	}
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		for _, err := range joined.Unwrap() {
			collect(err)
		}
	} else {
		collect(err)
	}
	slices.Sort(fields)
	return fields
}

func TestNewReportsWhatIsOutOfRangeByTheNameOfItsField(t *testing.T) {
	valid := limit.Spec{Algorithm: limit.TokenBucket, Quantity: 10, Window: second, Burst: 20, SoftPct: 90, HardPct: 110}
	mustNew(t, valid)
	cases := map[string]struct {
		change func(*limit.Spec)
		fields []string
	}{
		"no algorithm":           {func(s *limit.Spec) { s.Algorithm = limit.None }, []string{"algorithm", "burst"}},
		"unknown algorithm":      {func(s *limit.Spec) { s.Algorithm = 99 }, []string{"algorithm", "burst"}},
		"limit 0":                {func(s *limit.Spec) { s.Quantity = 0 }, []string{"limit"}},
		"negative limit":         {func(s *limit.Spec) { s.Quantity = -5 }, []string{"limit"}},
		"limit above 10^12":      {func(s *limit.Spec) { s.Quantity = limit.MaxQuantity + 1 }, []string{"limit"}},
		"window 0":               {func(s *limit.Spec) { s.Window = 0 }, []string{"window_size"}},
		"negative window":        {func(s *limit.Spec) { s.Window = -second }, []string{"window_size"}},
		"half a second":          {func(s *limit.Spec) { s.Window = second / 2 }, []string{"window_size"}},
		"one and a half seconds": {func(s *limit.Spec) { s.Window = second * 3 / 2 }, []string{"window_size"}},
		"window above 366 days":  {func(s *limit.Spec) { s.Window = limit.MaxWindow + second }, []string{"window_size"}},
		"negative burst":         {func(s *limit.Spec) { s.Burst = -1 }, []string{"burst"}},
		"burst above 10^12":      {func(s *limit.Spec) { s.Burst = limit.MaxQuantity + 1 }, []string{"burst"}},
		"burst of a window":      {func(s *limit.Spec) { s.Algorithm = limit.FixedWindow }, []string{"burst"}},
		"log above 10,000": {
			func(s *limit.Spec) { *s = limit.Spec{Algorithm: limit.SlidingLog, Quantity: 10_001, Window: second} },
			[]string{"limit"},
		},
		"negative soft": {func(s *limit.Spec) { s.SoftPct = -1 }, []string{"soft_threshold_pct"}},
		"soft above 1000": {
			func(s *limit.Spec) { s.SoftPct, s.HardPct = 1001, 1000 },
			[]string{"hard_threshold_pct", "soft_threshold_pct"},
		},
		"hard below 100":       {func(s *limit.Spec) { s.SoftPct, s.HardPct = 50, 99 }, []string{"hard_threshold_pct"}},
		"hard above 1000":      {func(s *limit.Spec) { s.HardPct = 1001 }, []string{"hard_threshold_pct"}},
		"negative hard":        {func(s *limit.Spec) { s.HardPct = -1 }, []string{"hard_threshold_pct"}},
		"hard below soft":      {func(s *limit.Spec) { s.SoftPct = 120 }, []string{"hard_threshold_pct"}},
		"soft above 100 alone": {func(s *limit.Spec) { s.SoftPct, s.HardPct = 101, 0 }, []string{"hard_threshold_pct"}},
		"everything at once": {
			func(s *limit.Spec) { *s = limit.Spec{Quantity: -1, Burst: -1, SoftPct: -1, HardPct: -1} },
			[]string{"algorithm", "burst", "hard_threshold_pct", "limit", "soft_threshold_pct", "window_size"},
		},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			spec := valid
			c.change(&spec)
			l, err := limit.New(spec)
			assert.Equal(t, c.fields, faults(err), "New(%+v) = %v: faults in", spec, err)
			assert.True(t, err == nil || l == (limit.Limit{}), "an invalid limit is %+v", l)
		})
	}
}

func TestNewReportsWhatCannotBeCountedExactly(t *testing.T) {
	year := limit.MaxWindow
	cases := map[string]struct {
		spec limit.Spec
		ok   bool
	}{
		"the largest fixed window": {
			limit.Spec{Algorithm: limit.FixedWindow, Quantity: limit.MaxQuantity, Window: year}, true,
		},
		"the largest fixed window at 1000 %": {
			limit.Spec{Algorithm: limit.FixedWindow, Quantity: limit.MaxQuantity, Window: year, SoftPct: 100, HardPct: 1000},
			true,
		},
		"the largest bucket whose fraction reduces": {
			limit.Spec{Algorithm: limit.TokenBucket, Quantity: limit.MaxQuantity, Window: second}, true,
		},
		"a bucket of 5×10^11 a year": {
			limit.Spec{Algorithm: limit.TokenBucket, Quantity: limit.MaxQuantity / 2, Window: year}, true,
		},
		"a bucket of 10^12 a year": {
			limit.Spec{Algorithm: limit.TokenBucket, Quantity: limit.MaxQuantity, Window: year}, false,
		},
		"a bucket of a prime near 10^12 a year": {
			limit.Spec{Algorithm: limit.TokenBucket, Quantity: 999_999_999_989, Window: year}, false,
		},
		"a bucket that takes centuries to fill": {
			limit.Spec{Algorithm: limit.TokenBucket, Quantity: 1, Window: year, Burst: 1_000}, false,
		},
		"a bucket that takes a century to fill": {
			limit.Spec{Algorithm: limit.TokenBucket, Quantity: 1, Window: year, Burst: 100}, true,
		},
		"a sliding window of 10^8 a year": {
			limit.Spec{Algorithm: limit.SlidingWindow, Quantity: 100_000_000, Window: year}, true,
		},
		"a sliding window of 10^9 a year": {
			limit.Spec{Algorithm: limit.SlidingWindow, Quantity: 1_000_000_000, Window: year}, false,
		},
		"a sliding window that only fits at 100 %": {
			limit.Spec{Algorithm: limit.SlidingWindow, Quantity: 100_000_000, Window: year, SoftPct: 100, HardPct: 200}, false,
		},
		"a soft-only limit remembers twice its limit": {
			limit.Spec{Algorithm: limit.SlidingWindow, Quantity: 100_000_000, Window: year, SoftOnly: true}, false,
		},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			_, err := limit.New(c.spec)
			assert.Equal(t, c.ok, err == nil, "New(%+v): %v", c.spec, err)
			if err != nil && !slices.Equal(faults(err), []string{"limit"}) {
				t.Errorf("the fault is in %q, want limit", faults(err))
			}
		})
	}
}

func TestTicksGetCoarserAsNumbersGrow(t *testing.T) {
	bucket := func(quantity int64, window limit.Micros) limit.Spec {
		return limit.Spec{Algorithm: limit.TokenBucket, Quantity: quantity, Window: window}
	}
	for _, c := range []struct {
		spec limit.Spec
		tick limit.Micros
	}{
		{bucket(1_000_000, day), 1},
		{bucket(1_000_003, day), ms}, // no common factor with the window: 1000003 × 86400000000 is too much
		{bucket(1_000_000_007, day), second},
		{limit.Spec{Algorithm: limit.SlidingWindow, Quantity: 10_000, Window: day}, 1},
		{limit.Spec{Algorithm: limit.SlidingWindow, Quantity: 1_000_000, Window: day}, ms},
		{limit.Spec{Algorithm: limit.FixedWindow, Quantity: limit.MaxQuantity, Window: day}, 1},
	} {
		got := mustNew(t, c.spec).Tick()
		assert.True(t, got == c.tick, "%+v ticks in %d µs, want %d", c.spec, got, c.tick)
	}
}

func TestAlgorithmNamesRoundTrip(t *testing.T) {
	for a := limit.TokenBucket; a <= limit.SlidingLog; a++ {
		if got, err := limit.ParseAlgorithm(a.String()); got != a || err != nil {
			t.Errorf("ParseAlgorithm(%q) = %v, %v", a.String(), got, err)
		}
	}
	for _, name := range []string{"", "none", "TOKEN_BUCKET", "gcra"} {
		if got, err := limit.ParseAlgorithm(name); err == nil {
			t.Errorf("ParseAlgorithm(%q) = %v, want an error", name, got)
		}
	}
	assert.Equal(t, "algorithm(77)", limit.Algorithm(77).String(), "an unknown algorithm is called")
}

func TestSecondsRoundUp(t *testing.T) {
	for m, want := range map[limit.Micros]int64{
		0: 0, 1: 1, second - 1: 1, second: 1, second + 1: 2, limit.MaxWindow: 366 * 86_400, limit.Never: 9_223_372_036_855,
	} {
		got := m.Seconds()
		assert.True(t, got == want, "%d µs are %d s, want %d", m, got, want)
	}
}

func TestUnitsAreTheNumbersOfTheArithmetic(t *testing.T) {
	cases := map[string]struct {
		spec limit.Spec
		want limit.Units
	}{
		"a token bucket's rate and base are a reduced fraction": {
			limit.Spec{Algorithm: limit.TokenBucket, Quantity: 1000, Window: minute, Burst: 50},
			limit.Units{
				Kind: limit.TokenBucket, Tick: 1, Ticks: 60_000_000, Rate: 1, Base: 60_000, Hard: 50 * 60_000, Step: 60_000,
				Ceiling: limit.MaxProduct,
			},
		},
		"a leaky bucket is kept as a token bucket": {
			limit.Spec{Algorithm: limit.LeakyBucket, Quantity: 10, Window: second},
			limit.Units{
				Kind: limit.TokenBucket, Tick: 1, Ticks: 1_000_000, Rate: 1, Base: 100_000, Hard: 100_000, Step: 100_000,
				Ceiling: limit.MaxProduct,
			},
		},
		"a fixed window counts tokens": {
			limit.Spec{Algorithm: limit.FixedWindow, Quantity: 10, Window: minute, SoftPct: 50, HardPct: 120},
			limit.Units{
				Kind: limit.FixedWindow, Tick: 1, Ticks: 60_000_000, Base: 1, Hard: 12, Ceiling: limit.MaxProduct,
			},
		},
		"a sliding window counts ticks of tokens": {
			limit.Spec{Algorithm: limit.SlidingWindow, Quantity: 10, Window: minute},
			limit.Units{
				Kind: limit.SlidingWindow, Tick: 1, Ticks: 60_000_000, Base: 60_000_000, Hard: 600_000_000,
				Ceiling: limit.MaxProduct,
			},
		},
		"a limit that only warns remembers twice its size": {
			limit.Spec{Algorithm: limit.SlidingLog, Quantity: 10, Window: second, SoftOnly: true},
			limit.Units{
				Kind: limit.SlidingLog, Tick: 1, Ticks: 1_000_000, Base: 1, Hard: 20, Ceiling: limit.MaxProduct,
			},
		},
		"a bucket that only warns owes no more than that": {
			limit.Spec{Algorithm: limit.LeakyBucket, Quantity: 10, Window: second, SoftOnly: true},
			limit.Units{
				Kind: limit.TokenBucket, Tick: 1, Ticks: 1_000_000, Rate: 1, Base: 100_000, Hard: 200_000, Step: 100_000,
				Ceiling: 200_000,
			},
		},
		"a slow bucket owes no more than a wait can be": {
			limit.Spec{Algorithm: limit.TokenBucket, Quantity: 499, Window: 30 * 24 * hour, Burst: 2000},
			limit.Units{
				Kind: limit.TokenBucket, Tick: 1_000, Ticks: 2_592_000_000, Rate: 499, Base: 2_592_000_000,
				Hard: 2000 * 2_592_000_000, Step: 5_194_389, Ceiling: limit.MaxProduct / 1_000 * 499,
			},
		},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			got := mustNew(t, c.spec).Units()
			got.Tag = 0 // any
			assert.Equal(t, c.want, got)
		})
	}
}
