package wire

import "hash/maphash"

const (
	internSets   = 128
	internPerSet = 4
	internLength = 128 // bytes; a longer string is not kept
)

// Interner returns strings for bytes, and allocates nothing for those that it has returned lately. A plugin keeps one
// for each connection, for consumers, tags and values of headers. The strings do not refer to the bytes. Make one with
// NewInterner; a nil Interner copies always.
type Interner struct {
	seed maphash.Seed
	sets [internSets][internPerSet]string // each with the latest first
}

// NewInterner returns an empty interner.
func NewInterner() *Interner { return &Interner{seed: maphash.MakeSeed()} }

// String returns b as a string.
func (n *Interner) String(b []byte) string {
	if n == nil || len(b) == 0 || len(b) > internLength {
		return string(b)
	}
	set := &n.sets[maphash.Bytes(n.seed, b)%internSets]
	for i, kept := range set {
		if kept == string(b) {
			copy(set[1:i+1], set[:i])
			set[0] = kept
			return kept
		}
	}
	copy(set[1:], set[:internPerSet-1])
	set[0] = string(b)
	return set[0]
}
