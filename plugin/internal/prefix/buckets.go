package prefix

import (
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/decision"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
)

// WithPrefixes returns bounds with the bound of the prefix after each bound of an address. A node above its budget
// counts addresses by prefix. Commands that read or empty buckets use it, see [InUse].
func WithPrefixes(bounds []policy.Bound) []policy.Bound {
	all := make([]policy.Bound, 0, len(bounds))
	for _, b := range bounds {
		all = append(all, b)
		if Address(&b.Key) != nil {
			b.Key = prefixKey(b.Key)
			all = append(all, b)
		}
	}
	return all
}

// InUse returns the bounds of WithPrefixes, and their statuses, without the prefixes whose buckets are unused or have
// expired.
func InUse(bounds []policy.Bound, statuses []decision.Status) ([]policy.Bound, []decision.Status) {
	used, kept := make([]policy.Bound, 0, len(bounds)), make([]decision.Status, 0, len(bounds))
	for i := range bounds {
		if statuses[i].Used > 0 || i == 0 || !isPrefixOf(&bounds[i], &bounds[i-1]) {
			used, kept = append(used, bounds[i]), append(kept, statuses[i])
		}
	}
	return used, kept
}

// isPrefixOf reports whether b is the bound of the prefix of other's address.
func isPrefixOf(b, other *policy.Bound) bool {
	return Address(&other.Key) != nil && b.Policy == other.Policy && b.Key == prefixKey(other.Key)
}

// prefixKey returns the key with the prefix of its address.
func prefixKey(k policy.Key) policy.Key { return WithAddress(k, Wider(*Address(&k))) }
