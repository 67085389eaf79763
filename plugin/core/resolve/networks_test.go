package resolve

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func prefixes(texts ...string) (list []netip.Prefix) {
	for _, text := range texts {
		list = append(list, netip.MustParsePrefix(text))
	}
	return list
}

func TestAnAddressIsInAllNetworksAroundItTheNarrowestFirst(t *testing.T) {
	n := newNetworks(prefixes("10.0.0.0/8", "10.1.0.0/16", "10.1.2.0/24", "10.1.2.3/32", "10.9.0.0/16", "10.0.0.0/8",
		"2001:db8::/32", "2001:db8::7/128", "::/1", "192.0.2.0/24"))
	for address, want := range map[string][]string{
		"10.1.2.3":        {"10.1.2.3/32", "10.1.2.0/24", "10.1.0.0/16", "10.0.0.0/8"},
		"10.1.2.4":        {"10.1.2.0/24", "10.1.0.0/16", "10.0.0.0/8"},
		"10.5.0.1":        {"10.0.0.0/8"},
		"10.255.255.255":  {"10.0.0.0/8"},
		"11.0.0.0":        nil,
		"9.255.255.255":   nil,
		"192.0.2.255":     {"192.0.2.0/24"},
		"255.255.255.255": nil,
		"2001:db8::7":     {"2001:db8::7/128", "2001:db8::/32", "::/1"},
		"2001:db8::8":     {"2001:db8::/32", "::/1"},
		"::1":             {"::/1"},
		"ffff::1":         nil,
		"::ffff:10.1.2.3": {"::/1"}, // not IPv4: an identity has it unmapped
	} {
		var got []string
		for _, i := range n.containing(netip.MustParseAddr(address), nil) {
			got = append(got, n.list[i].String())
		}
		assert.Equal(t, want, got, "%s is in", address)
	}
	found := n.containing(netip.Addr{}, nil)
	assert.True(t, len(found) <= 0, "no address is in %v", found)
}

func TestALookupFindsTheNetworksThatAScanFinds(t *testing.T) {
	// Few bits vary, so that networks nest, repeat and touch.
	address := rapid.Custom(func(t *rapid.T) netip.Addr {
		bits := rapid.SliceOfN(rapid.SampledFrom([]byte{0, 1, 0x80, 0xff}), 16, 16).Draw(t, "bytes")
		if rapid.Bool().Draw(t, "IPv4") {
			return netip.AddrFrom4([4]byte(bits[:4]))
		}
		return netip.AddrFrom16([16]byte(bits))
	})
	rapid.Check(t, func(t *rapid.T) {
		var list []netip.Prefix
		for range rapid.IntRange(0, 30).Draw(t, "networks") {
			a := address.Draw(t, "network")
			prefix, err := a.Prefix(rapid.IntRange(0, a.BitLen()).Draw(t, "length"))
			require.NoError(t, err)
			list = append(list, prefix)
		}
		n := newNetworks(list)
		for _, prefix := range list {
			if i := n.index(prefix); i < 0 || n.list[i] != prefix {
				t.Fatalf("%s has index %d of %v", prefix, i, n.list)
			}
		}
		a := address.Draw(t, "address")
		var want []netip.Prefix
		for _, prefix := range n.list {
			if prefix.Contains(a) {
				want = append(want, prefix)
			}
		}
		slices.SortFunc(want, func(a, b netip.Prefix) int { return b.Bits() - a.Bits() })
		var got []netip.Prefix
		for _, i := range n.containing(a, nil) {
			got = append(got, n.list[i])
		}
		require.Equal(t, want, got, "%s is in", a)
	})
}
