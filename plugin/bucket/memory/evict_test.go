package memory_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/soak"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/storetest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/bucket/memory"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/limit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
)

// ofUser is a bound of one user's bucket.
func ofUser(p *policy.Policy, tenant, user string) policy.Bound {
	b := boundOf(p, policy.ByTenant, tenant)
	b.Key.Kind, b.Key.Subject = policy.KindUser, user
	return b
}

// spent are bounds whose limits are used up.
func spent(t *testing.T, s *memory.Store, bounds []policy.Bound) {
	t.Helper()
	for i := range bounds {
		bounds[i].Cost = bounds[i].Policy.Limit.Capacity()
		require.True(t, take(t, s, bounds[i])[0].Admits(), "bound %d is denied at first", i)
		bounds[i].Cost = 1
	}
}

func TestSoakNamesThatAreMadeUpEvictNoUsedUpQuota(t *testing.T) {
	ceiling := soak.Count(5000, 20_000)
	victims := ceiling / 10
	made := map[string]func(p *policy.Policy, i int) policy.Bound{
		"users of one tenant": func(p *policy.Policy, i int) policy.Bound { return ofUser(p, "evil", fmt.Sprint("u", i)) },
		"users of ten tenants": func(p *policy.Policy, i int) policy.Bound {
			return ofUser(p, fmt.Sprint("evil-", i%10), fmt.Sprint("u", i))
		},
		"addresses": func(p *policy.Policy, i int) policy.Bound { return boundOf(p, policy.ByIP, ip(i)) },
		"addresses of one tenant": func(p *policy.Policy, i int) policy.Bound {
			b := boundOf(p, policy.ByTenant, "evil")
			b.Key.Kind, b.Key.Subject = policy.KindIP, ip(i)
			return b
		},
	}
	for name, bound := range made {
		t.Run(name, func(t *testing.T) {
			clock := storetest.NewClock()
			s := memory.New(memory.Options{Now: clock.Now, MaxBuckets: ceiling})
			quota := daily(t)
			var honest []policy.Bound
			for i := range victims / 2 {
				tenant := fmt.Sprint("tenant-", i)
				honest = append(honest, boundOf(quota, policy.ByTenant, tenant), ofUser(quota, tenant, "alice"))
			}
			spent(t, s, honest)
			for i := range 4 * ceiling {
				take(t, s, bound(quota, i))
				clock.Advance(1)
			}
			lost := 0
			for _, b := range honest {
				if take(t, s, b)[0].Admits() {
					lost++
				}
			}
			assert.True(t, lost == 0, "%d of %d used up quotas of a day are given out again", lost, victims)
		})
	}
}

func TestSoakTenantsThatAreMadeUpEvictNoNearlySpentLimit(t *testing.T) {
	ceiling := soak.Count(5000, 20_000)
	for name, users := range map[string]bool{"tenants": false, "tenants with a user each": true} {
		t.Run(name, func(t *testing.T) {
			clock := storetest.NewClock()
			s := memory.New(memory.Options{Now: clock.Now, MaxBuckets: ceiling})
			quota := daily(t)
			honest := make([]policy.Bound, ceiling/20)
			for i := range honest {
				if honest[i] = ofUser(quota, fmt.Sprint("tenant-", i), "alice"); i%2 == 1 {
					honest[i] = boundOf(quota, policy.ByTenant, fmt.Sprint("tenant-", i))
				}
				honest[i].Cost = quota.Limit.Capacity() * int64(80+i%11) / 100
				take(t, s, honest[i])
			}
			for i := range 4 * ceiling {
				tenant := fmt.Sprint("made up ", i)
				bounds := []policy.Bound{boundOf(quota, policy.ByTenant, tenant), ofUser(quota, tenant, "u")}
				if !users {
					bounds = bounds[:1]
				}
				take(t, s, bounds...)
				clock.Advance(1)
			}
			lost := 0
			for _, b := range honest {
				if b.Cost = 0; take(t, s, b)[0].Used == 0 {
					lost++
				}
			}
			assert.True(t, lost == 0, "%d of %d limits that are spent by 80 to 90 %% start again", lost, len(honest))
		})
	}
}

func TestACrowdThatSpendsAllOfItsNamesEvictsNoMoreThanItsPart(t *testing.T) {
	const ceiling = 4000
	clock := storetest.NewClock()
	s := memory.New(memory.Options{Now: clock.Now, MaxBuckets: ceiling})
	quota := daily(t)
	honest := make([]policy.Bound, ceiling)
	for i := range honest {
		honest[i] = ofUser(quota, fmt.Sprint("tenant-", i%100), fmt.Sprint("u", i))
	}
	spent(t, s, honest)
	for i := range 4 * ceiling {
		b := ofUser(quota, "evil", fmt.Sprint("u", i))
		b.Cost = 100
		take(t, s, b)
	}
	lost := 0
	for _, b := range honest {
		if b.Cost = 0; take(t, s, b)[0].Used == 0 {
			lost++
		}
	}
	if most := ceiling * 45 / 100; lost > most { // a quarter, and what did not fit into full shards at first
		t.Errorf("%d of %d used up quotas are lost, at most %d may be", lost, ceiling, most)
	}
}

func TestATenantsOwnBucketIsEvictedByNoUserOrAddressButByAnotherTenants(t *testing.T) {
	clock := storetest.NewClock()
	s := memory.New(memory.Options{Now: clock.Now, MaxBuckets: 31}) // one shard
	quota, short := daily(t), policyOf(t, "short", limit.Spec{Algorithm: limit.TokenBucket, Quantity: 10, Window: minute})
	tenants := make([]policy.Bound, 30)
	for i := range tenants {
		tenants[i] = boundOf(short, policy.ByTenant, fmt.Sprint("tenant-", i))
		take(t, s, tenants[i])
	}
	kept := func() (n int) {
		for _, b := range tenants {
			if b.Cost = 0; take(t, s, b)[0].Used == 1 {
				n++
			}
		}
		return n
	}
	used := func(b policy.Bound) int64 {
		b.Cost = 0
		return take(t, s, b)[0].Used
	}
	alice, address := ofUser(quota, "acme", "alice"), boundOf(quota, policy.ByIP, ip(1))
	spent(t, s, []policy.Bound{alice})
	take(t, s, address)
	if n := kept(); n != 30 || used(alice) != 0 || used(address) != 1 {
		t.Errorf("an address's bucket has made room among %d of 30 tenants' own and a user's with %d used", n, used(alice))
	}
	take(t, s, boundOf(short, policy.ByTenant, "one more"))
	if n := kept(); n != 29 || used(address) != 1 {
		t.Errorf("another tenant's bucket has left %d of 30 tenants' own, and an address's with %d used", n, used(address))
	}
}

func TestASeededBucketHasRefilledSinceItWasSeen(t *testing.T) {
	clock := storetest.NewClock()
	s := memory.New(memory.Options{Now: clock.Now})
	bucket := policyOf(t, "p", limit.Spec{Algorithm: limit.TokenBucket, Quantity: 60, Window: minute})
	seen := clock.Now()
	clock.Advance(10 * limit.Second)
	b := boundOf(bucket, policy.ByTenant, "acme")
	s.Seed(b.Key, &bucket.Limit, 50, seen)
	b.Cost = 0
	used := take(t, s, b)[0].Used
	assert.True(t, used == 40, "%d used, want 50 less the 10 that have refilled", used)
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
