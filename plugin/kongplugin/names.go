package kongplugin

import "hash/maphash"

const (
	nameSets    = 128
	namesPerSet = 4
	longestName = 128 // bytes; a longer one becomes a hash anyway, where it is counted
)

// names are the texts that a connection has seen lately: consumers, tags, values of headers. One that comes again needs
// no memory. They are texts of their own, not parts of a buffer, so whoever is told of them may keep them. The zero
// value is not ready; nil remembers nothing.
type names struct {
	seed maphash.Seed
	sets [nameSets][namesPerSet]string // in each the latest comes first
}

func newNames() *names { return &names{seed: maphash.MakeSeed()} }

// text is b as a string.
func (n *names) text(b []byte) string {
	if n == nil || len(b) == 0 || len(b) > longestName {
		return string(b)
	}
	set := &n.sets[maphash.Bytes(n.seed, b)%nameSets]
	for i, known := range set {
		if known == string(b) {
			copy(set[1:i+1], set[:i])
			set[0] = known
			return known
		}
	}
	copy(set[1:], set[:namesPerSet-1])
	set[0] = string(b)
	return set[0]
}
