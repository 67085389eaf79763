package outage

import (
	"hash/maphash"
	"math/bits"
	"sync"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/limit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
)

// ways is the number of sightings that compete for one place.
const ways = 8

// sightings records how much of each bucket was used when the central store last answered for it. Every request writes
// to it, and only an outage reads it, so it is a table of fixed size without pointers, in which a new entry replaces
// the oldest of eight: a general cache would allocate for each of these writes.
//
// A bucket is identified by 64 bits of the hash of its key. Two buckets among a hundred thousand collide with a
// probability below 10^-9; one of them would then start an outage with the other's usage.
type sightings struct {
	hash func(policy.Key) uint64
	sets []sightingSet // a power of two
}

type sightingSet struct {
	mu   sync.Mutex
	seen [ways]sighting
}

type sighting struct {
	hash   uint64
	used   int64        // tokens
	at     limit.Micros // by this node's clock; 0: the place is free
	seeded bool         // the fallback has it
}

// newSightings returns an empty table with places for so many buckets, by a hash; nil: a random one.
func newSightings(buckets int, hash func(policy.Key) uint64) *sightings {
	if hash == nil {
		seed := maphash.MakeSeed()
		hash = func(key policy.Key) uint64 { return maphash.Comparable(seed, key) }
	}
	sets := 1 << bits.Len(uint(max(buckets, ways)/ways-1))
	return &sightings{hash: hash, sets: make([]sightingSet, sets)}
}

func (s *sightings) set(key *policy.Key) (*sightingSet, uint64) {
	hash := s.hash(*key)
	return &s.sets[hash&uint64(len(s.sets)-1)], hash
}

// remember records the usage of a bucket.
func (s *sightings) remember(key *policy.Key, used int64, at limit.Micros) {
	set, hash := s.set(key)
	set.mu.Lock()
	defer set.mu.Unlock()
	place := 0
	for i := range set.seen {
		if set.seen[i].hash == hash {
			place = i
			break
		}
		if set.seen[i].at < set.seen[place].at {
			place = i
		}
	}
	set.seen[place] = sighting{hash: hash, used: used, at: at}
}

// takeOnce returns the last usage of a bucket, once for each time that it was recorded.
func (s *sightings) takeOnce(key *policy.Key) (used int64, at limit.Micros, ok bool) {
	set, hash := s.set(key)
	set.mu.Lock()
	defer set.mu.Unlock()
	for i := range set.seen {
		if seen := &set.seen[i]; seen.hash == hash && seen.at > 0 && !seen.seeded {
			seen.seeded = true
			return seen.used, seen.at, true
		}
	}
	return 0, 0, false
}
