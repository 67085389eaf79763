package resolve

import (
	"net/netip"
	"slices"
)

// networks holds distinct networks for lookups by address. A lookup takes a binary search, and a step for each network
// around the one that it finds. Every network is masked, and none of IPv4 is mapped into IPv6.
type networks struct {
	list   []netip.Prefix // by first address, then the wider first
	around []int          // the index of the narrowest other network that contains it; -1: none
}

// newNetworks returns the set of networks in a list, which may hold some of them more than once.
func newNetworks(list []netip.Prefix) networks {
	n := networks{list: slices.Clone(list)}
	slices.SortFunc(n.list, netip.Prefix.Compare)
	n.list = slices.Compact(n.list)
	n.around = make([]int, len(n.list))
	for i, network := range n.list {
		outer := i - 1
		for outer >= 0 && !n.list[outer].Contains(network.Addr()) {
			outer = n.around[outer]
		}
		n.around[i] = outer
	}
	return n
}

// index returns the index of a network in the set, or -1.
func (n *networks) index(network netip.Prefix) int {
	if i, ok := slices.BinarySearchFunc(n.list, network, netip.Prefix.Compare); ok {
		return i
	}
	return -1
}

// containing appends to found the indices of the networks that contain an address, the narrowest first.
func (n *networks) containing(address netip.Addr, found []int) []int {
	if !address.IsValid() {
		return found
	}
	// Networks nest or are disjoint. So the one that begins last, at or before the address, contains it, or one around
	// it does.
	next, _ := slices.BinarySearchFunc(n.list, address, func(network netip.Prefix, address netip.Addr) int {
		if network.Addr().Compare(address) <= 0 {
			return -1
		}
		return 1
	})
	for i := next - 1; i >= 0; i = n.around[i] {
		if n.list[i].Contains(address) {
			found = append(found, i)
		}
	}
	return found
}
