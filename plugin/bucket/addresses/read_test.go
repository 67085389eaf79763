package addresses

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/decision"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
)

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
		if len(bounds) != len(statuses) {
			t.Fatalf("%d bounds and %d statuses", len(bounds), len(statuses))
		}
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
