package lease

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/storetest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/limit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
)

func TestALeasedBucketIsCalledWithLessByWhatComesBackInALifeOrByTheShare(t *testing.T) {
	const day = 86_400 * limit.Second
	for _, test := range []struct {
		name        string
		spec        limit.Spec
		pct, called int64
	}{
		{"a day's million", limit.Spec{Algorithm: limit.TokenBucket, Quantity: 1_000_000, Window: day}, 2, 1_000_000 - 9},
		{"slow, with a large burst", limit.Spec{Algorithm: limit.TokenBucket, Quantity: 1, Window: day, Burst: 1000}, 2, 999},
		{"a second's thousand", limit.Spec{Algorithm: limit.TokenBucket, Quantity: 1000, Window: limit.Second}, 2, 980},
		{
			"the same with a larger share",
			limit.Spec{Algorithm: limit.TokenBucket, Quantity: 1000, Window: limit.Second},
			5, 950,
		},
		{
			"read in seconds",
			limit.Spec{Algorithm: limit.TokenBucket, Quantity: 999_999_937, Window: day},
			2, 999_999_937 - 11_575,
		},
		{"a window", limit.Spec{Algorithm: limit.FixedWindow, Quantity: 1_000_000, Window: day}, 2, 1_000_000},
	} {
		terms := newTerms(bound(t, test.name, test.spec).Policy, test.pct)
		if called := terms.policy.Limit.Spec(); called.Burst != test.called || called.Quantity != test.spec.Quantity {
			t.Errorf("%s: called with a burst of %d, want %d", test.name, called.Burst, test.called)
		}
	}
}

func TestAFinalDenialShowsWhatALeasedBucketHolds(t *testing.T) {
	spec := limit.Spec{Algorithm: limit.TokenBucket, Quantity: 1000, Window: limit.Second}
	for name, holds := range map[string]int64{"leased": 980, "exact": 0} {
		n := newNode(newBank(), Options{})
		b := bound(t, name, spec)
		if called := n.storePolicy(b.Policy); (called == b.Policy) != (holds == 0) ||
			holds > 0 && called.Limit.Capacity() != holds {
			t.Errorf("%s: it is called with a capacity of %d", name, called.Limit.Capacity())
		}
		for _, cost := range []int64{1001, 1001, 2000} { // all but the first are remembered
			b.Cost = cost
			if got := n.take(t, b)[0]; got.Wait != limit.Never || got.Capacity != holds {
				t.Errorf("%s: a cost of %d waits for %d, of a capacity of %d, want %d", name, cost, got.Wait, got.Capacity, holds)
			}
		}
		if b.Cost = 980; !n.admits(t, b) {
			t.Errorf("%s: a cost of 980 is denied", name)
		}
		if got := n.take(t, b)[0]; got.Wait == 0 || got.Wait == limit.Never || got.Capacity != 0 {
			t.Errorf("%s: %+v, want a denial that ends", name, got)
		}
	}
}

func TestABucketThatWouldReadTimeOtherwiseWithLessIsNotLeased(t *testing.T) {
	spec := limit.Spec{Algorithm: limit.TokenBucket, Quantity: 999_983, Window: 86_400 * limit.Second}
	spec.Burst = limit.MaxProduct/int64(spec.Window) + 5 // just too much to be counted in µs
	for _, leased := range []bool{false, true} {
		l := bound(t, "coarse", spec).Policy
		if terms := newTerms(l, 2); (l.Limit.Tick() == 1) != leased || (terms != nil) != leased {
			t.Errorf("with a burst of %d, time is read in %d µs; leased: %t", spec.Burst, l.Limit.Tick(), terms != nil)
		}
		spec.Burst -= 6
	}
}

// worst is what clients can get at most of a bucket of 1000 tokens a second with a burst of 100,000: some nodes lease
// as much as they have just spent, the bucket refills for as long as the leases last, and then everything is spent at
// once.
func worst(t *testing.T, l *limit.Limit, spent int64, nodes int, pause limit.Micros, late bool) {
	t.Helper()
	f := &fleet{bank: newBank(), admitted: map[policy.Key][]limit.Admission{}, sharePct: MaxSharePct}
	f.unpeeked = true                  // TestNoBucketAdmitsTooMuchWhateverHappensToNodesAndStore peeks
	f.bank.fast, f.bank.late = 2, late // twice in a thousand: the drift that is allowed for
	b := policy.Bound{
		Policy: &policy.Policy{Name: "worst", Limit: *l, Cost: -1},
		Key:    policy.Key{Policy: "worst"}, Cost: 1,
	}
	for range nodes {
		m := f.join()
		m.nodes = func(string) int { return nodes }
		f.members = append(f.members, m)
		for range spent / int64(nodes) {
			f.request(t, m, []policy.Bound{b})
		}
		m.background()
	}
	out := int64(0)
	for _, m := range f.members {
		out += m.Stats().Out
	}
	require.True(t, out >= spent/2, "%d tokens are out after %d were spent: too few to prove anything", out, spent)
	f.bank.clock.Advance(pause)
	if late { // one node gives back what it has, and is paid for it when all others have spent theirs
		f.members[0].sweep(forever)
		f.members[0].background()
	}
	f.drain(t, b)
	f.bank.deliver()
	f.drain(t, b)
	if err := (storetest.Bound{Limit: l}).Check(f.admitted[b.Key]); err != nil {
		t.Errorf("%d spent at %d nodes, a pause of %d µs: %v", spent, nodes, pause, err)
	}
}

func TestWhatIsLeasedWhileABucketRefillsIsNotSpentOnTopOfIt(t *testing.T) {
	b := bound(t, "worst", limit.Spec{Algorithm: limit.TokenBucket, Quantity: 1000, Window: limit.Second, Burst: 100_000})
	for _, spent := range []int64{500, 900, 1000, 1500, 3000} {
		for _, pause := range []limit.Micros{limit.Second, grantLife - 1, grantLife, grantLife + 1} {
			worst(t, &b.Policy.Limit, spent, 1, pause, false)
			worst(t, &b.Policy.Limit, spent, 4, pause, false)
			worst(t, &b.Policy.Limit, spent, 4, pause, true)
		}
	}
}
