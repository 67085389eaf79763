package policy_test

import (
	"testing"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/limit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
)

func TestOnlyBucketsAndFixedWindowsWithRoomForTheirCostAreLeasable(t *testing.T) {
	bucket := limit.Spec{Algorithm: limit.TokenBucket, Quantity: 1000, Window: limit.Second}
	using := func(algorithm limit.Algorithm) limit.Spec {
		return limit.Spec{Algorithm: algorithm, Quantity: 1000, Window: limit.Second}
	}
	with := func(edit func(*limit.Spec)) limit.Spec {
		spec := bucket
		edit(&spec)
		return spec
	}
	doubled := with(func(s *limit.Spec) { s.SoftPct, s.HardPct = 80, 200 })
	for name, test := range map[string]struct {
		spec     limit.Spec
		accuracy policy.Accuracy
		cost     int64
		want     bool
	}{
		"a token bucket":                       {bucket, policy.Leased, -1, true},
		"a fixed window":                       {using(limit.FixedWindow), policy.Leased, -1, true},
		"a leaky bucket":                       {using(limit.LeakyBucket), policy.Leased, -1, false},
		"a sliding window":                     {using(limit.SlidingWindow), policy.Leased, -1, false},
		"a sliding log":                        {using(limit.SlidingLog), policy.Leased, -1, false},
		"an exact token bucket":                {bucket, policy.Exact, -1, false},
		"an exact fixed window":                {using(limit.FixedWindow), policy.Exact, -1, false},
		"a free one":                           {bucket, policy.Leased, 0, true},
		"a cost that a lease leaves room for":  {bucket, policy.Leased, 950, true},
		"a cost that a lease may not leave":    {bucket, policy.Leased, 951, false},
		"all of a window":                      {using(limit.FixedWindow), policy.Leased, 1000, false},
		"all of a small burst":                 {with(func(s *limit.Spec) { s.Burst = 10 }), policy.Leased, 10, false},
		"little of a large burst":              {with(func(s *limit.Spec) { s.Burst = 2000 }), policy.Leased, 1000, true},
		"all below a hard threshold of double": {doubled, policy.Leased, 1000, true},
	} {
		l, err := limit.New(test.spec)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		p := policy.Policy{Name: "p", Scope: policy.Tenant, Limit: l, Accuracy: test.accuracy, Cost: test.cost}
		if got := p.Leasable(); got != test.want {
			t.Errorf("%s: leasable is %v, want %v", name, got, test.want)
		}
	}
}
