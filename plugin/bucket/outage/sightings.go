package outage

import (
	"hash/maphash"
	"math/bits"
	"sync"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/limit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/policy"
)

// ways is how many sightings compete for the same place.
const ways = 8

// sightings remember how much of each bucket was used when the shared store last answered for it. It is written to on
// every request and read only in an outage, so it is a table of fixed size without pointers, where the eldest of eight
// gives way: a general cache costs an allocation for each of these writes.
//
// A bucket is known by 64 bits of the hash of its key. Two buckets among a hundred thousand are taken for one another
// with a probability below 10^-9; the one that is would start an outage with the other's usage.
type sightings struct {
	seed maphash.Seed
	sets []sightingSet // a power of two
}

type sightingSet struct {
	mu   sync.Mutex
	seen [ways]sighting
}

type sighting struct {
	hash   uint64
	used   int64        // tokens
	at     limit.Micros // by this node's clock; 0: nothing is kept here
	seeded bool         // the fallback has been told
}

func newSightings(buckets int) *sightings {
	sets := 1 << bits.Len(uint(max(buckets, ways)/ways-1))
	return &sightings{seed: maphash.MakeSeed(), sets: make([]sightingSet, sets)}
}

func (s *sightings) set(key *policy.Key) (*sightingSet, uint64) {
	hash := maphash.Comparable(s.seed, *key)
	return &s.sets[hash&uint64(len(s.sets)-1)], hash
}

// remember keeps what is used of a bucket.
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

// recall answers what was last seen of a bucket, once for each time that it is seen.
func (s *sightings) recall(key *policy.Key) (used int64, at limit.Micros, ok bool) {
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
