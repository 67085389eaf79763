package memory_test

import (
	"fmt"
	"testing"

	"pgregory.net/rapid"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/storetest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/bucket/memory"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/limit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
)

func TestASeededBucketHasRefilledSinceItWasSeen(t *testing.T) {
	clock := storetest.NewClock()
	s := memory.New(memory.Options{Now: clock.Now})
	bucket := policyOf(t, "p", limit.Spec{Algorithm: limit.TokenBucket, Quantity: 60, Window: minute})
	seen := clock.Now()
	clock.Advance(10 * limit.Second)
	b := boundOf(bucket, policy.ByTenant, "acme")
	s.Seed(b.Key, &bucket.Limit, 50, seen)
	b.Cost = 0
	if used := take(t, s, b)[0].Used; used != 40 {
		t.Errorf("%d used, want 50 less the 10 that have refilled", used)
	}
}

func TestSeedingOnlyEverRaisesWhatIsSpent(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		clock := storetest.NewClock()
		s := memory.New(memory.Options{Now: clock.Now})
		p := &policy.Policy{Name: "p", Limit: *storetest.Limits().Draw(rt, "limit")}
		b := boundOf(p, policy.ByTenant, "acme")
		used := func() int64 {
			b.Cost = 0
			return take(t, s, b)[0].Used
		}
		for range rapid.IntRange(1, 20).Draw(rt, "steps") {
			clock.Advance(max(0, storetest.Gap(rt, &p.Limit)))
			if rapid.Bool().Draw(rt, "spend") {
				b.Cost = storetest.Cost(rt, &p.Limit)
				take(t, s, b)
				continue
			}
			before, tokens := used(), storetest.Cost(rt, &p.Limit)
			s.Seed(b.Key, &p.Limit, tokens, clock.Now())
			if want := max(before, min(tokens, p.Limit.Capacity())); used() != want {
				rt.Fatalf("%d used after seeding %d, and %d before, want %d", used(), tokens, before, want)
			}
		}
	})
}

func TestSeedsKeepToTheCeiling(t *testing.T) {
	clock := storetest.NewClock()
	s := memory.New(memory.Options{Now: clock.Now, MaxBuckets: 10})
	p := daily(t)
	for i := range 100 {
		s.Seed(boundOf(p, policy.ByTenant, fmt.Sprint(i)).Key, &p.Limit, 1, clock.Now())
	}
	if stats := s.Stats(); stats.Buckets != 10 || stats.Evicted != 90 {
		t.Errorf("%+v, want 10 buckets kept of 100", stats)
	}
}

func TestASeedThatHasExpiredMakesNoBucket(t *testing.T) {
	clock := storetest.NewClock()
	s := memory.New(memory.Options{Now: clock.Now})
	p := daily(t)
	s.Seed(boundOf(p, policy.ByTenant, "acme").Key, &p.Limit, 100, clock.Now()-2*day)
	if stats := s.Stats(); stats.Buckets != 0 {
		t.Errorf("%d buckets, want none", stats.Buckets)
	}
}
