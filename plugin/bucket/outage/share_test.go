package outage

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/storetest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/limit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
)

func TestEveryLimitHasAShareAndNoneIsLargerThanItsPart(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		whole := storetest.Limits().Draw(rt, "limit").Spec()
		pct, live := rapid.Int64Range(1, 100).Draw(rt, "percent"),
			rapid.SampledFrom([]int64{1, 2, 3, 7, 64, 10_000}).Draw(rt, "nodes")
		l, err := localLimit(whole, pct, live)
		require.NoError(rt, err, "%d %% of %+v for one of %d", pct, whole, live)
		share := l.Spec()
		if rate := max(whole.Quantity*pct/100/live, 1); share.Quantity > rate || share.Quantity*10 < rate {
			rt.Fatalf("%d per window, want at most %d and at least its first digit", share.Quantity, rate)
		}
		capacity := max(whole.Burst*pct/100/live, 1)
		require.True(rt, share.Burst <= capacity && share.Burst >= 1, "capacity %d, want at most %d", share.Burst, capacity)
		share.Quantity, share.Burst = whole.Quantity, whole.Burst
		require.Equal(rt, whole, share, "the share of %+v is %+v", whole, l.Spec())
	})
}

func TestAShareThatCannotBeCountedExactlyIsRoundedDown(t *testing.T) {
	tests := []struct {
		name                  string
		spec                  limit.Spec
		leastRate, mostRate   int64
		leastBurst, mostBurst int64
	}{
		{
			// 10^12 per 10^6 s reduces to one per tick; a third of 70 % of it hardly reduces at all.
			"its rate",
			limit.Spec{Quantity: 1e12, Window: 1e6 * limit.Second, Burst: 1e12},
			233_330_000_000, 233_333_333_332, 233_333_333_333, 233_333_333_333,
		},
		{
			// Nothing but a multiple of a prime window reduces.
			"its burst",
			limit.Spec{Quantity: 31_607_999, Window: 31_607_999 * limit.Second, Burst: 4e9},
			7_000_000, 7_375_199, 1e8 / 2, 1e8 * 2,
		},
	}
	for _, test := range tests {
		test.spec.Algorithm = limit.TokenBucket
		compiled(t, test.spec)
		l, err := localLimit(test.spec, 70, 3)
		require.NoError(t, err, "%s", test.name)
		got := l.Spec()
		if got.Quantity < test.leastRate || got.Quantity > test.mostRate || got.Burst < test.leastBurst ||
			got.Burst > test.mostBurst {
			t.Errorf("%s: the share is %+v", test.name, got)
		}
	}
}

func TestTheLatestSightingIsReturnedOnce(t *testing.T) {
	s := newSightings(100, nil)
	key := policy.Key{Policy: "daily", GroupID: "acme"}
	if _, _, ok := s.takeOnce(&key); ok {
		t.Error("a bucket that was never seen is recalled")
	}
	for again := range 2 {
		s.remember(&key, 7, 1000)
		s.remember(&key, 5, limit.Micros(2000+again))
		if used, at, ok := s.takeOnce(&key); !ok || used != 5 || at != limit.Micros(2000+again) {
			t.Errorf("recalls %d at %d, %v", used, at, ok)
		}
		if _, _, ok := s.takeOnce(&key); ok {
			t.Error("recalled twice")
		}
	}
}

func TestSightingsAreBoundedAndForgetTheOldest(t *testing.T) {
	const most = 64
	s := newSightings(most, nil)
	key := func(i int) *policy.Key { return &policy.Key{GroupID: fmt.Sprint(i)} }
	for i := range 10 * most {
		s.remember(key(i), 1, limit.Micros(i+1))
	}
	kept, latest := 0, 0
	for i := range 10 * most {
		if _, _, ok := s.takeOnce(key(i)); ok {
			kept++
			if i >= 9*most {
				latest++
			}
		}
	}
	// A set of eight forgets its own oldest, so not all that are left are the latest.
	if kept == 0 || kept > most || latest < kept/2 {
		t.Errorf("%d kept of at most %d, %d of them from the last %d", kept, most, latest, most)
	}
	if _, _, ok := s.takeOnce(key(10*most - 1)); ok {
		t.Error("the last one was recalled already")
	}
}
