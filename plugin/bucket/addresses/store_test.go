package addresses

import (
	"fmt"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/storetest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/bucket/memory"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/bucket/store"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/decision"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/limit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
)

// An address is charged where it is counted: in a bucket of its own, that of its prefix, or in this process. It gets
// tokens back in its own bucket and in this process alone.
func TestAnAddressIsSettledWhereItIsCounted(t *testing.T) {
	w, p := newWorld(t, 10, 1), perMinute(t, 1_000_000)
	seen := map[string]bool{}
	for i := range 40 * burst {
		b := ofAddress(p, fmt.Sprintf("10.%d.%d.1", i>>8, i&255))
		b.Cost = 10
		bounds := []policy.Bound{b, ofTenant(perMinute(t, 1_000_000), "acme")}
		place := func() (string, policy.Bound) {
			before := w.budget.Stats()
			w.take(bounds...)
			switch after := w.budget.Stats(); {
			case after.Local > before.Local:
				return "here", b
			case after.Prefix > before.Prefix:
				wider := b
				wider.Key = WithAddress(b.Key, Wider(*Address(&b.Key)))
				return "prefix", wider
			}
			return "address", b
		}
		where, counted := place()
		for actual, change := range map[int64]int64{4: -6, 10: 0, 35: 25} {
			if where == "prefix" {
				change = max(change, 0)
			}
			before := w.used(where, counted)
			statuses, _ := w.take(bounds...)
			require.NoError(t, w.view.Settle(t.Context(), bounds, statuses, []int64{actual, 3}))
			used := w.used(where, counted) - before
			if statuses[0].Charged || statuses[0].Settled != change || used != 10+change {
				t.Fatalf("%s, settled from 10 to %d: %d used, %+v", where, actual, used, statuses[0])
			}
			if statuses[1].Charged || statuses[1].Settled != 2 {
				t.Fatalf("%s: a tenant is settled from 1 to 3: %+v", where, statuses[1])
			}
		}
		if seen[where] = true; len(seen) == 3 {
			return
		}
	}
	t.Errorf("addresses were counted in %v, want each place once", seen)
}

// used returns what the bucket of a bound counts, in this process or in the central store.
func (w *world) used(where string, b policy.Bound) int64 {
	w.t.Helper()
	peek, statuses := w.shared.Peek, make([]decision.Status, 1)
	if where == "here" {
		peek = w.here.Store.Peek
	}
	require.NoError(w.t, peek(w.t.Context(), []policy.Bound{b}, statuses))
	return statuses[0].Used
}

// A charge makes a key that did not exist, which counts among those of addresses.
func TestAChargeCountsAsANewKeyOfItsAddress(t *testing.T) {
	w, p := newWorld(t, 1000, 100), perMinute(t, 100)
	b := ofAddress(p, "192.0.2.1")
	bounds := []policy.Bound{b}
	statuses, _ := w.take(bounds...)
	w.clock.Advance(10 * minute)
	require.Zero(t, w.budget.Stats().Kept, "addresses are kept ten minutes later")
	require.NoError(t, w.view.Settle(t.Context(), bounds, statuses, []int64{50}))
	w.clock.Advance(minute / 2)
	if stats, used := w.budget.Stats(), w.used("", b); stats.Kept != 1 || stats.Apart != 2 || used != 49 {
		t.Errorf("%+v with %d used: want the address kept for the 49 tokens that it was charged", stats, used)
	}
}

func TestAViewKeepsTheStoresPromises(t *testing.T) {
	storetest.Run(t, func(t *testing.T) (store.Store, storetest.Clock) {
		clock := storetest.NewClock()
		shared, local := memory.New(memory.Options{Now: clock.Now}), memory.New(memory.Options{Now: clock.Now})
		return New(Options{Now: clock.Now}).Store(shared, local), clock
	})
}

func TestAPeekShowsHowAnAddressIsCounted(t *testing.T) {
	w, p := newWorld(t, 10, 1), perMinute(t, 5)
	bounds := func(i int) []policy.Bound {
		return []policy.Bound{ofTenant(perMinute(t, 1000), "acme"), ofAddress(p, "192.0.2."+string(rune('a'+i)))}
	}
	for i := range 3 * burst {
		peeked := storetest.Peek(t, w.view, bounds(i))
		statuses, _ := w.take(bounds(i)...)
		peeked.Check(t, statuses)
	}
	if stats := w.budget.Stats(); stats.Apart == 0 || stats.Prefix+stats.Local == 0 {
		t.Errorf("%+v: want addresses counted apart, and others above the budget", stats)
	}
}

func TestTheBucketOfAPrefixIsReadBesideThatOfItsAddressAndLeftOutWhileUnused(t *testing.T) {
	w, p := newWorld(t, 1000, 1), perMinute(t, 100)
	for range 3 {
		w.take(ofAddress(p, "198.51.100.1"))
	}
	for i := range 2 * burst {
		w.take(ofAddress(p, "10.0.0."+string(rune('a'+i)))) // the pace is used up: all of them are "other"
	}
	w.take(ofAddress(p, "192.0.2.1"))
	read := func(ids ...string) (names []string) {
		bounds := []policy.Bound{ofTenant(p, "acme")}
		for _, id := range ids {
			bounds = append(bounds, ofAddress(p, id))
		}
		bounds = WithPrefixes(bounds)
		statuses := make([]decision.Status, len(bounds))
		require.NoError(t, w.shared.Peek(t.Context(), bounds, statuses))
		bounds, statuses = InUse(bounds, statuses)
		require.Equal(t, len(statuses), len(bounds), "%d bounds and %d statuses", len(bounds), len(statuses))
		for i := range bounds {
			names = append(names, bounds[i].Key.GroupID)
		}
		return names
	}
	want := []string{"acme", "198.51.100.1", "192.0.2.1", "192.0.2.0/24"}
	if got := read("198.51.100.1", "192.0.2.1"); !slices.Equal(got, want) {
		t.Errorf("the buckets of %q are read, want %q", got, want)
	}
	if got, want := read("2001:db8::/64"), []string{"acme", "2001:db8::/64"}; !slices.Equal(got, want) {
		t.Errorf("the buckets of %q are read, want %q", got, want)
	}
}

func TestWiderReturnsAPrefixThatContainsTheAddress(t *testing.T) {
	for text, want := range map[string]string{
		"192.0.2.77":              "192.0.2.0/24",
		"2001:db8:1:2::/64":       "2001:db8:1::/48",
		"2001:db8:1:2::9":         "2001:db8:1::/48",
		"2001:db8:1:2::9/128":     "2001:db8:1::/48",
		"2001:db8:1::/48":         "2001:db8::/32",
		"2001:db8::/32":           "2001::/16",
		"2000::/8":                "::/0",
		"fe80::1%eth0":            "fe80::/48",
		"unknown":                 "other",
		"192.0.2.0/24":            "other",
		"sha256:0123":             "other",
		"":                        "other",
		"::ffff:192.0.2.77":       "192.0.2.0/24",
		"2001:db8:1:2:3:4:5:6/47": "2001:db8::/31",
	} {
		assert.Equal(t, want, Wider(text), "the prefix of %s", text)
	}
}

func TestASlotOfAnAddressIsReleasedWhereverTheAddressIsCounted(t *testing.T) {
	p := policyOf(t, "exports", limit.Spec{Algorithm: limit.Concurrency, Quantity: 1, Window: minute})
	for name, rate := range map[string]int{"its own": 100, "its prefix": 1, "this process": 1} {
		w := newWorld(t, 1000, rate)
		for i := range map[string]int{"its prefix": 10, "this process": 100}[name] {
			w.take(ofAddress(perMinute(t, 5), fmt.Sprint("192.0.", i, ".1"))) // uses up the rates
		}
		b := storetest.WithPolicy(ofAddress(p, "198.51.100.7"), p)
		taken, admitted := w.take(b)
		require.True(t, admitted, name)
		_, again := w.take(b)
		assert.False(t, again, "%s: a second request", name)
		require.NoError(t, w.view.Settle(t.Context(), []policy.Bound{b}, taken, []int64{0}))
		assert.EqualValues(t, -1, taken[0].Settled, name)
		_, again = w.take(b)
		assert.True(t, again, "%s: a request after the release", name)
	}
}
