package redisstore

import (
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/limit"
)

// The binary form of a bucket's state. lua/frame.lua describes it: 1 algorithm, 7 till, 7 at, 7 spent, 7 more, for a
// string 4 life, and for a sliding log 4 head, 4 count, 7 forgotten.
const (
	stateSize = 29
	lifeSize  = 4
	logSize   = 15
	largest   = 2 * limit.MaxProduct // what a double counts exactly
)

// decode reads the state from a value as it is at now: one that means nothing any more is zero. A sliding log's entries
// are kept elsewhere: they are condensed into one, the last. It is false when the value is none of ours; the bucket is
// then one that was never spent from. field says that the value is a hash's.
func decode(value string, field bool, now limit.Micros) (limit.State, bool) {
	size := len(value)
	if !field {
		size -= lifeSize
	}
	if size != stateSize && size != stateSize+logSize {
		return limit.State{}, false
	}
	s := limit.State{
		Algorithm: limit.Algorithm(value[0]),
		At:        limit.Micros(uint56(value[8:])),
		Spent:     uint56(value[15:]),
		Base:      1,
	}
	more := uint56(value[22:])
	if s.Spent > largest || int64(s.At) > largest || more > largest {
		return limit.State{}, false
	}
	sound := size == stateSize
	switch s.Algorithm {
	case limit.TokenBucket:
		s.Base, sound = more, sound && more > 0
	case limit.FixedWindow:
	case limit.SlidingWindow:
		s.Previous = more
	case limit.SlidingLog:
		sound = size == stateSize+logSize
		s.Log = []limit.Admission{{At: limit.Micros(more), Cost: s.Spent}}
	default:
		sound = false
	}
	if !sound {
		return limit.State{}, false
	}
	if limit.Micros(uint56(value[1:])) <= now {
		return limit.State{}, true
	}
	return s, true
}

// uint56 is the number that b begins with, in 7 bytes.
func uint56(b string) int64 {
	_ = b[6]
	return int64(b[0]) | int64(b[1])<<8 | int64(b[2])<<16 | int64(b[3])<<24 | int64(b[4])<<32 | int64(b[5])<<40 | int64(b[6])<<48
}
