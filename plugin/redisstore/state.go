package redisstore

import (
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/limit"
)

// The binary form of a subject's value, which lua/frame.lua describes: 4 life, and for each bucket 8 name, 1 algorithm,
// 7 till, 7 at, 7 spent, 7 more.
const (
	lifeSize  = 4
	entrySize = nameSize + 29
	largest   = 2 * limit.MaxProduct // what a double counts exactly
)

// sound tells whether a value has the length that a subject's value has.
func sound(value string) bool { return len(value)%entrySize == lifeSize }

// find is the bucket of that name in a sound value, without its name; "" if there is none.
func find(value string, name []byte) string {
	for rest := value[lifeSize:]; len(rest) > 0; rest = rest[entrySize:] {
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
		Algorithm: limit.Algorithm(bucket[0]),
		At:        limit.Micros(uint56(bucket[8:])),
		Spent:     uint56(bucket[15:]),
		Base:      1,
	}
	more := uint56(bucket[22:])
	possible := s.Spent <= largest && int64(s.At) <= largest && more <= largest
	switch s.Algorithm {
	case limit.TokenBucket:
		s.Base, possible = more, possible && more > 0
	case limit.FixedWindow:
	case limit.SlidingWindow:
		s.Previous = more
	case limit.SlidingLog:
		s.Log = []limit.Admission{{At: limit.Micros(more), Cost: s.Spent}}
	default:
		possible = false
	}
	if !possible || till(bucket) <= now {
		return limit.State{}, possible
	}
	return s, true
}

// till is the instant from which on a bucket means nothing.
func till(bucket string) limit.Micros { return limit.Micros(uint56(bucket[1:])) }

// uint56 is the number that b begins with, in 7 bytes.
func uint56(b string) int64 {
	_ = b[6]
	return int64(b[0]) | int64(b[1])<<8 | int64(b[2])<<16 | int64(b[3])<<24 | int64(b[4])<<32 | int64(b[5])<<40 | int64(b[6])<<48
}
