package usage

import (
	"math"
	"math/bits"
	"slices"

	"github.com/cespare/xxhash/v2"
)

const (
	sketchBits      = 7
	sketchRegisters = 1 << sketchBits
	// maxRank is the largest value of a register: all further bits of a hash are 0.
	maxRank = 64 - sketchBits + 1
)

// Sketch estimates how many different names were added, with a standard error of 9 %. It is the HyperLogLog of
// Flajolet, Fusy, Gandouet and Meunier (2007), with linear counting for small numbers. It keeps 7 bits of the hash of a
// name and the number of zeros in others, so it has no name, and every name shares its place with very many others. The
// zero value is empty.
type Sketch [sketchRegisters]uint8

// add adds a name. All nodes have the same hash, so their sketches can be merged.
func (s *Sketch) add(name string) {
	h := xxhash.Sum64String(name)
	i, rank := h>>(64-sketchBits), uint8(bits.LeadingZeros64(h<<sketchBits|1<<(sketchBits-1))+1)
	s[i] = max(s[i], rank)
}

// Merge adds the names of another sketch.
func (s *Sketch) Merge(o *Sketch) {
	for i := range s {
		s[i] = max(s[i], o[i])
	}
}

// Estimate returns about how many different names were added. Names that are made for it can raise it without bound.
func (s *Sketch) Estimate() int64 {
	const m = float64(sketchRegisters)
	sum, empty := 0.0, 0
	for _, rank := range s {
		sum += math.Exp2(-float64(rank))
		if rank == 0 {
			empty++
		}
	}
	estimate := 0.7213 / (1 + 1.079/m) * m * m / sum
	if estimate <= 2.5*m && empty > 0 {
		estimate = m * math.Log(m/float64(empty))
	}
	return int64(math.Round(min(estimate, maxCount)))
}

// BytesValue implements pgtype.BytesValuer.
func (s Sketch) BytesValue() ([]byte, error) { return s[:], nil }

// ScanBytes implements pgtype.BytesScanner. Bytes that are no sketch are of another program, and read as empty.
func (s *Sketch) ScanBytes(text []byte) error {
	if *s = (Sketch{}); len(text) == len(s) && (*Sketch)(text).valid() {
		*s = Sketch(text)
	}
	return nil
}

// valid reports whether names can have made the sketch.
func (s *Sketch) valid() bool { return slices.Max(s[:]) <= maxRank }
