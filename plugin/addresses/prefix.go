package addresses

import (
	"net/netip"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/policy"
)

const (
	prefix4, prefix6 = 24, 48
	// narrower is how many bits less of an IPv6 prefix are counted that is no longer than prefix6.
	narrower = 16
	// elsewhere stands for everything that is no address.
	elsewhere = "other"
)

// address returns where in a key an address stands; nil: the key is of somebody who is known.
func address(k *policy.Key) *string {
	switch {
	case k.Group == policy.ByIP:
		return &k.GroupID
	case k.Kind == policy.KindIP:
		return &k.Subject
	default:
		return nil
	}
}

// Counted reports whether the key is that of an address or of its prefix, of which strangers can make any number.
func Counted(k *policy.Key) bool { return address(k) != nil }

// withAddress returns the key with another address.
func withAddress(k policy.Key, text string) policy.Key {
	*address(&k) = text
	return k
}

// wider returns the prefix that an address, or a prefix as it is counted, belongs to. No address is counted so by
// itself.
func wider(text string) string {
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
		return elsewhere
	}
	bits := prefix6
	if counted.Bits() <= prefix6 {
		bits = max(counted.Bits()-narrower, 0)
	}
	return prefixOf(counted.Addr(), bits)
}

func prefixOf(address netip.Addr, bits int) string {
	prefix, err := address.WithZone("").Prefix(bits)
	if err != nil {
		return elsewhere
	}
	return prefix.String()
}
