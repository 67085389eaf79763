package memory_test

import (
	"context"
	"fmt"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/leaktest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/soak"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/storetest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/bucket/memory"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/bucket/store"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/decision"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/limit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
)

const (
	minute = 60 * limit.Second
	day    = 24 * 60 * minute
)

// policyOf is a policy with a limit and nothing else that a store reads.
func policyOf(t testing.TB, name string, spec limit.Spec) *policy.Policy {
	t.Helper()
	l, err := limit.New(spec)
	require.NoError(t, err, "compile the limit of %s", name)
	return &policy.Policy{Name: name, Limit: l, Cost: -1}
}

func perIP(t testing.TB) *policy.Policy {
	return policyOf(t, "per-ip", limit.Spec{Algorithm: limit.TokenBucket, Quantity: 60, Window: minute})
}

func daily(t testing.TB) *policy.Policy {
	return policyOf(t, "daily", limit.Spec{Algorithm: limit.FixedWindow, Quantity: 100, Window: day})
}

// boundOf returns a bound of one group's bucket.
func boundOf(p *policy.Policy, group policy.Group, id string) policy.Bound {
	key := policy.Key{Namespace: "default", Policy: p.Name, Group: group, GroupID: id}
	return policy.Bound{Policy: p, Key: key, Cost: 1}
}

func take(t testing.TB, s *memory.Store, bounds ...policy.Bound) []decision.Status {
	t.Helper()
	statuses := make([]decision.Status, len(bounds))
	require.NoError(t, s.Take(context.Background(), bounds, statuses), "take %d bounds", len(bounds))
	return statuses
}

func ip(i int) string { return fmt.Sprintf("10.%d.%d.%d", i>>16&255, i>>8&255, i&255) }

// heap is the memory in use, after a garbage collection.
func heap() uint64 {
	runtime.GC()
	runtime.GC() // the first one may have found pools and finalizers still holding on
	var stats runtime.MemStats
	runtime.ReadMemStats(&stats)
	return stats.HeapInuse
}

func TestSoakIdleBucketsAreNoLeak(t *testing.T) {
	buckets := soak.Count(100_000, 1_000_000)
	clock := storetest.NewClock()
	s := memory.New(memory.Options{Now: clock.Now, MaxBuckets: 2 * buckets})
	p := perIP(t)
	before := heap()
	for i := range buckets {
		take(t, s, boundOf(p, policy.ByIP, ip(i)))
	}
	full := heap()
	require.Equal(t, memory.Stats{Buckets: buckets}, s.Stats(), "after %d addresses", buckets)
	each := (full - before) / uint64(buckets)
	t.Logf("a bucket takes %d bytes", each)
	assert.True(t, each <= 350, "a bucket takes %d bytes; Options says about 320", each)
	clock.Advance(limit.Second - 1)
	s.Sweep(clock.Now())
	got := s.Stats()
	require.True(t, got.Buckets == buckets, "a microsecond before a token is back: %+v", got)
	clock.Advance(limit.Second) // a bucket may be dropped a second later at most
	s.Sweep(clock.Now())
	require.Equal(t, (memory.Stats{Expired: uint64(buckets)}), s.Stats(), "when all are full again")
	if after := heap(); after > before+(full-before)/20 {
		t.Errorf("heap is %d MiB, was %d before and %d at the most", after>>20, before>>20, full>>20)
	}
	runtime.KeepAlive(s)
}

func TestBucketsInUseSurviveASweep(t *testing.T) {
	clock := storetest.NewClock()
	s := memory.New(memory.Options{Now: clock.Now})
	long, short := daily(t), perIP(t)
	for i := range 10_000 {
		take(t, s, boundOf(short, policy.ByIP, ip(i)))
		if i%100 == 0 {
			take(t, s, boundOf(long, policy.ByTenant, ip(i)))
		}
	}
	clock.Advance(minute)
	s.Sweep(clock.Now())
	require.Equal(t, memory.Stats{Buckets: 100, Expired: 10_000}, s.Stats(), "after a minute")
	for i := 0; i < 10_000; i += 100 {
		got := take(t, s, boundOf(long, policy.ByTenant, ip(i)))[0].Used
		require.True(t, got == 2, "tenant %d has used %d of its day, want 2", i, got)
	}
}

func TestDeniedRequestsAndReadsKeepNoBuckets(t *testing.T) {
	clock := storetest.NewClock()
	s := memory.New(memory.Options{Now: clock.Now})
	short, long := perIP(t), daily(t)
	empty := boundOf(long, policy.ByTenant, "acme")
	empty.Cost = 100
	take(t, s, empty)
	read := boundOf(short, policy.ByIP, "reader")
	read.Cost = 0
	for i := range 1000 {
		take(t, s, empty, boundOf(short, policy.ByIP, ip(i)))
		take(t, s, read)
	}
	assert.Equal(t, 1, s.Stats().Buckets, "buckets are kept, want the one that was spent from")
}

func TestSoakCeilingHoldsUnderAFloodOfAddressesAndADailyQuotaSurvives(t *testing.T) {
	for _, ceiling := range []int{1000, soak.Count(10_000, 50_000)} {
		t.Run(fmt.Sprint(ceiling), func(t *testing.T) {
			clock := storetest.NewClock()
			s := memory.New(memory.Options{Now: clock.Now, MaxBuckets: ceiling})
			short, long := perIP(t), daily(t)
			quota := boundOf(long, policy.ByTenant, "acme")
			quota.Cost = 100
			take(t, s, quota)
			for i := range 4 * ceiling {
				take(t, s, boundOf(short, policy.ByIP, ip(i)))
				clock.Advance(1)
				if i%1000 == 0 && s.Stats().Buckets > ceiling {
					t.Fatalf("%d buckets, with a ceiling of %d", s.Stats().Buckets, ceiling)
				}
			}
			got := s.Stats()
			if got.Buckets > ceiling || got.Buckets < ceiling*9/10 {
				t.Errorf("%d buckets after the flood, with a ceiling of %d", got.Buckets, ceiling)
			}
			want := uint64(4*ceiling + 1 - got.Buckets)
			assert.True(t, got.Evicted+got.Expired == want && got.Evicted != 0, "%+v: want %d dropped", got, want)
			assert.False(t, take(t, s, quota)[0].Admits(), "the flood has given a tenant its daily quota back")
		})
	}
}

func TestAnExpiredBucketGoesBeforeOneInUse(t *testing.T) {
	clock := storetest.NewClock()
	s := memory.New(memory.Options{Now: clock.Now, MaxBuckets: 2})
	p := daily(t)
	take(t, s, boundOf(perIP(t), policy.ByIP, "10.0.0.1"))
	take(t, s, boundOf(p, policy.ByTenant, "acme"))
	clock.Advance(minute)
	take(t, s, boundOf(p, policy.ByTenant, "other"))
	got := s.Stats()
	assert.True(t, got == (memory.Stats{Buckets: 2, Expired: 1}), "%+v: want nothing evicted", got)
	clock.Advance(-minute)
	if now := take(t, s, boundOf(p, policy.ByTenant, "acme"))[0].Now; now != clock.Now()+minute {
		t.Errorf("the address's bucket is gone, and the clock may still step back %d before that", clock.Now()+minute-now)
	}
}

func TestARequestDoesNotEvictItsOwnBuckets(t *testing.T) {
	clock := storetest.NewClock()
	s := memory.New(memory.Options{Now: clock.Now, MaxBuckets: 2})
	p := daily(t)
	bounds := []policy.Bound{
		boundOf(p, policy.ByTenant, "a"), boundOf(p, policy.ByTenant, "b"), boundOf(p, policy.ByTenant, "c"),
	}
	for range 3 {
		take(t, s, bounds...)
	}
	for i, status := range take(t, s, bounds...) {
		assert.EqualValues(t, 4, status.Used, "bound %d has used", i)
	}
}

func TestAForgottenBucketStaysForgottenWhenTheClockStepsBack(t *testing.T) {
	clock := storetest.NewClock()
	s := memory.New(memory.Options{Now: clock.Now})
	quota := boundOf(daily(t), policy.ByTenant, "acme")
	quota.Cost = 100
	take(t, s, quota)
	clock.Advance(day)
	s.Sweep(clock.Now())
	clock.Advance(-day) // back in the day whose quota was spent
	status := take(t, s, quota)[0]
	if !status.Admits() || status.Now != clock.Now()+day {
		t.Errorf("%+v: want it decided at the instant at which the bucket was dropped", status)
	}
	wait := take(t, s, quota)[0].Wait
	assert.True(t, wait > 0, "the next day's quota is spent, and wait is %d", wait)
	clock.Advance(day)
	assert.False(t, take(t, s, quota)[0].Admits(), "the same day's quota was given out twice")
}

func TestAnExpiredBucketMeansNothingBeforeItIsSwept(t *testing.T) {
	clock := storetest.NewClock()
	s := memory.New(memory.Options{Now: clock.Now})
	before, after := daily(t), policyOf(t, "daily", limit.Spec{Algorithm: limit.TokenBucket, Quantity: 100, Window: day})
	spent := boundOf(before, policy.ByTenant, "acme")
	spent.Cost = 100
	take(t, s, spent)
	clock.Advance(2 * day)
	got := take(t, s, boundOf(after, policy.ByTenant, "acme"))[0].Used
	assert.True(t, got == 1, "under another algorithm, a quota of two days ago counts %d", got-1)
}

// A name may be cut out of a header of a megabyte, which must not stay in memory with it.
func TestKeysDoNotHoldOnToTheTextsTheyWereCutFrom(t *testing.T) {
	clock := storetest.NewClock()
	s := memory.New(memory.Options{Now: clock.Now})
	p := daily(t)
	before := heap()
	for i := range 64 {
		header := strings.Repeat("x", 1<<20) + ip(i)
		take(t, s, boundOf(p, policy.ByTenant, header[1<<20:]))
	}
	grown := int64(heap()) - int64(before)
	assert.True(t, grown <= 16<<20, "64 short names hold on to %d MiB", grown>>20)
	runtime.KeepAlive(s)
}

func TestRunForgetsWhatExpiresAndEndsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memory.New(memory.Options{Now: func() limit.Micros { return limit.Micros(time.Now().UnixMicro()) }})
		p := perIP(t)
		for i := range 1000 {
			take(t, s, boundOf(p, policy.ByIP, ip(i)))
		}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- s.Run(ctx) }()
		time.Sleep(20 * time.Second) // of the bubble's clock: two rounds over all shards
		synctest.Wait()
		assert.Equal(t, memory.Stats{Expired: 1000}, s.Stats(), "twenty seconds later")
		cancel()
		synctest.Wait()
		select {
		case err := <-ended:
			assert.NoError(t, err, "Run")
		default:
			t.Error("Run has not ended with its context")
		}
	})
}

func TestMain(m *testing.M) { leaktest.Main(m) }

func TestMemstoreKeepsTheStoresPromises(t *testing.T) {
	storetest.Run(t, func(*testing.T) (store.Store, storetest.Clock) {
		clock := storetest.NewClock()
		return memory.New(memory.Options{Now: clock.Now}), clock
	})
}
