package redis

import (
	"bytes"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/limit"
)

// The binary form of a subject's value, which lua/frame.lua describes: 1 version and level, 4 life, and for each bucket
// 6 name, 1 algorithm and tag, 4 till, 7 at, 7 spent, 6 more, 6 mark.
const (
	format    = 1 // of values: they begin with it, and one of another format is read as empty
	headSize  = 5
	entrySize = nameSize + 31
	maxNumber = 2 * limit.MaxProduct // the largest number that a double counts exactly
)

// firstByte returns the byte that all strings of a subject begin with.
func firstByte(level int) byte { return format<<4 | byte(level) }

// isWellFormed reports whether a value has the version and the length that a subject's value has.
func isWellFormed(value []byte) bool {
	return len(value)%entrySize == headSize && value[0]>>4 == format
}

// findState returns the bucket of that name in a well formed value, without its name; nil if there is none.
func findState(value, name []byte) []byte {
	for entries := value[headSize:]; len(entries) > 0; entries = entries[entrySize:] {
		if bytes.Equal(entries[:nameSize], name) {
			return entries[nameSize:entrySize]
		}
	}
	return nil
}

// decode returns the state of a bucket as it is at now: the zero state for one that has expired. The entries of a
// sliding log, which are a string of their own, are condensed into one, the last. It reports whether the numbers are
// possible; where they are not, the state is zero.
func decode(bucket []byte, now limit.Micros) (limit.State, bool) {
	s := limit.State{
		Algorithm: limit.Algorithm(bucket[0] & 15),
		Tag:       bucket[0] >> 4,
		At:        limit.Micros(littleEndian(bucket[5:12])),
		Spent:     littleEndian(bucket[12:19]),
		Base:      1,
		Mark:      littleEndian(bucket[25:31]),
	}
	more := littleEndian(bucket[19:25])
	possible := s.Spent <= maxNumber && int64(s.At) <= maxNumber
	switch s.Algorithm {
	case limit.TokenBucket:
		s.Base, possible = more, possible && more > 0
	case limit.FixedWindow:
	case limit.CalendarWindow:
		if s.Length = limit.Micros(more); possible && s.At+s.Length <= now {
			return limit.State{}, true
		}
	case limit.SlidingWindow:
		s.Previous = more
	case limit.SlidingLog:
		if possible = possible && more <= int64(s.At); s.Spent > 0 {
			s.Log = []limit.Admission{{At: s.At - limit.Micros(more), Cost: s.Spent}}
		}
	default:
		possible = false
	}
	if !possible || till(bucket) <= now && till(bucket) < forever {
		return limit.State{}, possible
	}
	return s, true
}

// forever is the last instant that 4 bytes of seconds hold: later ones are stored as this.
const forever = (1<<32 - 1) * limit.Second

// till returns the instant from which on a bucket counts as empty.
func till(bucket []byte) limit.Micros { return limit.Micros(littleEndian(bucket[1:5])) * limit.Second }

// littleEndian returns the number in b, whose first byte is the least.
func littleEndian(b []byte) (n int64) {
	for i := len(b) - 1; i >= 0; i-- {
		n = n<<8 | int64(b[i])
	}
	return n
}
