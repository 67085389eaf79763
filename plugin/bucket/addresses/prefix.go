package addresses

import (
	"net/netip"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/decision"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
)

const (
	prefix4, prefix6 = 24, 48
	// shortenBy is the number of bits by which an IPv6 prefix no longer than prefix6 is shortened.
	shortenBy = 16
	// noAddress replaces every text that is no address.
	noAddress = "other"
)

// Address returns a pointer to the address in a key. It returns nil for a key of a tenant, a user, a credential or an
// endpoint.
func Address(k *policy.Key) *string {
	switch {
	case k.Group == policy.ByIP:
		return &k.GroupID
	case k.Kind == policy.KindIP:
		return &k.Subject
	default:
		return nil
	}
}

// WithAddress returns the key with another address.
func WithAddress(k policy.Key, text string) policy.Key {
	*Address(&k) = text
	return k
}

// Wider returns the prefix that contains an address or a shorter prefix. It is wider than every prefix that is counted
// as one address.
func Wider(text string) string {
	if address, err := netip.ParseAddr(text); err == nil {
		address = address.Unmap()
		bits := prefix4
		if address.Is6() {
			bits = prefix6
		}
		return prefixOf(address, bits)
	}
	counted, err := netip.ParsePrefix(text)
	if err != nil || counted.Addr().Is4() {
		return noAddress
	}
	bits := prefix6
	if counted.Bits() <= prefix6 {
		bits = max(counted.Bits()-shortenBy, 0)
	}
	return prefixOf(counted.Addr(), bits)
}

// prefixOf returns the prefix of an address with a number of bits.
func prefixOf(address netip.Addr, bits int) string {
	prefix, err := address.WithZone("").Prefix(bits)
	if err != nil {
		return noAddress
	}
	return prefix.String()
}

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
		b := &bounds[i]
		isPrefix := i > 0 && Address(&bounds[i-1].Key) != nil && b.Policy == bounds[i-1].Policy &&
			b.Key == prefixKey(bounds[i-1].Key) // of the address before
		if statuses[i].Used > 0 || !isPrefix {
			used, kept = append(used, *b), append(kept, statuses[i])
		}
	}
	return used, kept
}

func prefixKey(k policy.Key) policy.Key { return WithAddress(k, Wider(*Address(&k))) }
