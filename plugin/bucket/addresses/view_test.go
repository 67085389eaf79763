package addresses

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/storetest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/bucket/store"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/decision"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/limit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
)

func TestANewAddressAboveTheBudgetIsCountedByItsPrefix(t *testing.T) {
	w, p := newWorld(t, 1000, 1), perMinute(t, 100)
	for i := range burst + 2 {
		w.take(ofAddress(p, fmt.Sprintf("192.0.2.%d", i)))
	}
	want := map[string]int{"192.0.2.0/24": 2}
	for i := range burst {
		want[fmt.Sprintf("192.0.2.%d", i)] = 1
	}
	assert.Equal(t, want, w.subjects(), "taken from")
}

func TestAnAddressThatIsKnownKeepsItsBucketInAFlood(t *testing.T) {
	w, p := newWorld(t, 1000, 1), perMinute(t, 1_000_000)
	w.take(ofAddress(p, "192.0.2.1"))
	for i := range 200 {
		w.take(ofAddress(p, fmt.Sprintf("192.0.2.%d", 2+i)))
		w.take(ofAddress(p, "192.0.2.1"))
	}
	got := w.takes[ofAddress(p, "192.0.2.1").Key]
	assert.True(t, got == 201, "the bucket of the address was taken from %d times, want 201", got)
	status, _ := w.take(ofAddress(p, "192.0.2.1"))
	assert.True(t, status[0].Used == 202, "%d of its limit are used, want the 202 that it spent itself", status[0].Used)
}

func TestAboveTheBudgetOfPrefixesAnAddressIsCountedInThisProcess(t *testing.T) {
	w, p := newWorld(t, 1000, 1), perMinute(t, 1)
	for i := range 2*burst + 1 {
		w.take(ofAddress(p, fmt.Sprintf("192.0.%d.1", i)))
	}
	stats := w.budget.Stats()
	if stats.Apart != burst || stats.Prefix != burst || stats.Local != 1 {
		t.Errorf("%+v: want %d of each kind and 1 in this process", stats, burst)
	}
	assert.Len(t, w.takes, 2*burst, "buckets were taken from")
	if statuses, admitted := w.take(ofAddress(p, fmt.Sprintf("192.0.%d.1", 2*burst))); admitted ||
		statuses[0].Source != decision.Local {
		t.Errorf("%+v: want its second request denied in this process", statuses[0])
	}
}

func TestANodeStartsWithAllThatItsPaceCanSaveUp(t *testing.T) {
	for _, now := range []limit.Micros{0, 1, limit.Second, 1000 * limit.Second} {
		p, allowed := newPace(1000), 0
		for range 2000 * burst {
			if p.AllowN(time.UnixMicro(int64(now)), 1) {
				allowed++
			}
		}
		if allowed != 1000*burst || !p.AllowN(time.UnixMicro(int64(now+limit.Second)), 1) {
			t.Errorf("%d events are allowed at %d µs, want %d, and one more a second later", allowed, now, 1000*burst)
		}
	}
}

func TestATableThatIsFullMakesRoomWhenItsKeysHaveExpired(t *testing.T) {
	w, p := newWorld(t, places, -1), perMinute(t, 100)
	for i := range 10 * places {
		w.take(ofAddress(p, fmt.Sprintf("10.0.0.%d", i)))
	}
	if stats := w.budget.Stats(); stats.Apart != places || stats.Kept != places || stats.Most != places {
		t.Errorf("%+v: want %d addresses with a bucket of their own", stats, places)
	}
	w.clock.Advance(minute + slack + 1)
	if stats := w.budget.Stats(); stats.Kept != 0 {
		t.Errorf("%d addresses are kept after their keys have expired", stats.Kept)
	}
	w.take(ofAddress(p, "10.0.1.1"))
	if w.takes[ofAddress(p, "10.0.1.1").Key] != 1 {
		t.Errorf("taken from %v, want a bucket of its own for an address", w.subjects())
	}
}

func TestWhatAnAddressSpentAsPartOfItsPrefixCountsWhenItIsCountedApart(t *testing.T) {
	w, p := newWorld(t, 1000, 1), perMinute(t, 3)
	for i := range burst {
		w.take(ofAddress(p, fmt.Sprintf("198.51.100.%d", i)))
	}
	for range 3 {
		if _, admitted := w.take(ofAddress(p, "192.0.2.1")); !admitted {
			t.Fatal("a request within the limit is denied")
		}
	}
	w.clock.Advance(limit.Second) // one more is counted apart
	if statuses, admitted := w.take(ofAddress(p, "192.0.2.1")); admitted {
		t.Errorf("%+v: want a fourth request in a minute denied", statuses[0])
	}
	w.clock.Advance(minute + slack)
	w.takes = map[policy.Key]int{}
	if w.take(ofAddress(p, "192.0.2.1")); w.subjects()["192.0.2.0/24"] != 0 {
		t.Errorf("taken from %v, want the prefix dropped", w.subjects())
	}
}

func TestNoAddressIsAdmittedMoreThanItsLimitWhicheverWayItIsCounted(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		w := newWorld(t, rapid.IntRange(1, 3*places).Draw(rt, "most"), rapid.IntRange(1, 3).Draw(rt, "rate"))
		w.view.local = denies{}
		l := storetest.Limits(limit.TokenBucket, limit.FixedWindow, limit.SlidingWindow, limit.SlidingLog).Draw(rt, "limit")
		p := &policy.Policy{Name: "p", Limit: *l}
		admitted := map[string][]limit.Admission{}
		for range rapid.IntRange(20, 200).Draw(rt, "requests") {
			w.clock.Advance(max(0, storetest.Gap(rt, l)))
			address := fmt.Sprintf("192.0.%d.%d",
				rapid.IntRange(0, 2).Draw(rt, "prefix"), rapid.IntRange(0, 20).Draw(rt, "address"))
			b := ofAddress(p, address)
			b.Cost = storetest.Cost(rt, l)
			if _, ok := w.take(b); ok {
				admitted[address] = append(admitted[address], limit.Admission{At: w.clock.Now(), Cost: b.Cost})
			}
		}
		for address, all := range admitted {
			require.NoError(rt, (storetest.Bound{Limit: l}).Check(all), "%s", address)
		}
	})
}

// denies is a process that denies all.
type denies struct{ store.Store }

func (denies) Take(_ context.Context, _ []policy.Bound, statuses []decision.Status) error {
	for i := range statuses {
		statuses[i] = decision.Status{Source: decision.Local, Wait: limit.Second}
	}
	return nil
}

func (denies) Settle(context.Context, []policy.Bound, []decision.Status, []int64) error { return nil }

func TestARequestThatIsDeniedSpendsNothingInThisProcess(t *testing.T) {
	w, p := newWorld(t, 1000, 1), perMinute(t, 2)
	none := perMinute(t, 1)
	w.take(ofTenant(none, "acme"))
	for i := range 2 * burst {
		w.take(ofAddress(p, fmt.Sprintf("192.0.%d.1", i)))
	}
	address := ofAddress(p, "203.0.113.1")
	statuses, admitted := w.take(ofTenant(none, "acme"), address)
	if admitted || statuses[1].Charged || statuses[1].Used != 0 {
		t.Errorf("%+v: want a request of an exhausted tenant denied, and nothing spent", statuses)
	}
	if statuses, _ := w.take(address); statuses[0].Source != decision.Local || statuses[0].Used != 1 {
		t.Errorf("%+v: want one token used", statuses[0])
	}
	w.take(address)
	before := len(w.takes)
	statuses, admitted = w.take(ofTenant(perMinute(t, 100), "other"), address)
	if admitted || len(w.takes) != before || statuses[0].Source != decision.Unanswered ||
		statuses[0].Failure != decision.NoFailure {
		t.Errorf("%+v: want a request that this process denies to ask for nothing else", statuses)
	}
}

func TestUsersAndTenantsAreNotCountedAsAddresses(t *testing.T) {
	w, p := newWorld(t, 1, 1), perMinute(t, 10)
	for i := range 5 * burst {
		user := ofTenant(p, "acme")
		user.Key.Kind, user.Key.Subject = policy.KindUser, fmt.Sprint("u", i)
		credential := user
		credential.Key.Kind = policy.KindCredential
		w.take(ofTenant(p, fmt.Sprint("t", i)), user, credential)
	}
	if len(w.takes) != 15*burst || w.budget.Stats().Kept != 0 {
		t.Errorf("%d buckets were taken from, want %d; %+v", len(w.takes), 15*burst, w.budget.Stats())
	}
}

func TestAllLimitsOfAnAddressAreCountedInOneWay(t *testing.T) {
	w, p := newWorld(t, 1000, 1), perMinute(t, 10)
	hourly := policyOf(t, "hour", limit.Spec{Algorithm: limit.TokenBucket, Quantity: 100, Window: 60 * minute})
	for i := range burst {
		w.take(ofAddress(p, fmt.Sprintf("192.0.2.%d", i)), ofAddress(hourly, fmt.Sprintf("192.0.2.%d", i)))
	}
	w.take(ofAddress(p, "192.0.2.99"), ofAddress(hourly, "192.0.2.99"))
	if got := w.subjects(); got["192.0.2.9"] != 2 || got["192.0.2.0/24"] != 2 || len(got) != burst+1 {
		t.Errorf("taken from %v, want %d addresses and a prefix, each with two limits", got, burst)
	}
	stats := w.budget.Stats()
	assert.True(t, stats.Apart == burst && stats.Prefix == 1, "%+v: want each address counted once", stats)
}

func TestAKnownAddressCostsNoMemory(t *testing.T) {
	w, p := newWorld(t, 1000, 10), perMinute(t, 1_000_000)
	w.view.next = answers{}
	bounds, statuses := []policy.Bound{ofTenant(p, "acme"), ofAddress(p, "2001:db8::/64")}, make([]decision.Status, 2)
	if n := testing.AllocsPerRun(1000, func() {
		require.NoError(t, w.view.Take(context.Background(), bounds, statuses))
	}); n != 0 {
		t.Errorf("%v allocations, want none", n)
	}
}

// answers admits all.
type answers struct{ store.Store }

func (answers) Take(_ context.Context, _ []policy.Bound, statuses []decision.Status) error {
	for i := range statuses {
		statuses[i] = decision.Status{Source: decision.Redis, Status: limit.Status{Used: 1, Remaining: 1, Reset: minute}}
	}
	return nil
}
