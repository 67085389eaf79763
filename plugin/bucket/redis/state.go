package redis

import (
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/limit"
)

// The binary form of a subject's value, which lua/frame.lua describes: 1 version and level, 4 life, and for each bucket
// 6 name, 1 algorithm and tag, 4 till, 7 at, 7 spent, 6 more, 6 mark.
const (
	headSize  = 5
	entrySize = nameSize + 31
	largest   = 2 * limit.MaxProduct // what a double counts exactly
)

// sound reports whether a value has the version and the length that a subject's value has.
func sound(value string) bool { return len(value)%entrySize == headSize && value[0]>>4 == format }

// find is the bucket of that name in a sound value, without its name; "" if there is none.
func find(value string, name []byte) string {
	for rest := value[headSize:]; len(rest) > 0; rest = rest[entrySize:] {
		if rest[:nameSize] == string(name) {
			return rest[nameSize:entrySize]
		}
	}
	return ""
}

// decode reads the state of a bucket as it is at now: one that means nothing any more is zero. A sliding log's entries
// are kept elsewhere: they are condensed into one, the last. It is false when the numbers are impossible; the bucket is
// then one that was never spent from.
func decode(bucket string, now limit.Micros) (limit.State, bool) {
	s := limit.State{
		Algorithm: limit.Algorithm(bucket[0] & 15),
		Tag:       bucket[0] >> 4,
		At:        limit.Micros(little(bucket[5:12])),
		Spent:     little(bucket[12:19]),
		Base:      1,
		Mark:      little(bucket[25:31]),
	}
	more := little(bucket[19:25])
	possible := s.Spent <= largest && int64(s.At) <= largest
	switch s.Algorithm {
	case limit.TokenBucket:
		s.Base, possible = more, possible && more > 0
	case limit.FixedWindow:
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

// forever is the last instant that 4 bytes of seconds can say: later ones are said as this.
const forever = (1<<32 - 1) * limit.Second

// till returns the instant from which on a bucket means nothing.
func till(bucket string) limit.Micros { return limit.Micros(little(bucket[1:5])) * limit.Second }

// little returns the number that b is, the least byte first.
func little(b string) (n int64) {
	for i := len(b) - 1; i >= 0; i-- {
		n = n<<8 | int64(b[i])
	}
	return n
}
