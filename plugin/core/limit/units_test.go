package limit_test

import (
	"testing"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/limit"
)

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
			if got != c.want {
				t.Errorf("\n got %+v\nwant %+v", got, c.want)
			}
		})
	}
}
