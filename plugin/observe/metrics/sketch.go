package metrics

import (
	"hash/maphash"
	"math/bits"
	"sync"
)

// ways is the number of tenants that fit into a set of the sketch.
const ways = 8

// sketch finds the busiest of any number of tenants in constant memory, without allocating. It uses the space-saving
// algorithm (Metwally, Agrawal, El Abbadi: Efficient Computation of Frequent and Top-k Elements in Data Streams, 2005).
// Its counters are divided into sets, like the lines of a processor's cache, so that a request visits eight of them.
// A tenant that sends more than an eighth of a set's requests is in it.
type sketch struct {
	seed maphash.Seed // random: clients cannot choose names that share a set
	sets []set        // a power of two of them
}

type set struct {
	mu   sync.Mutex
	ways [ways]way
}

// way counts one tenant's requests. A new tenant replaces the least busy one and starts at its count: it may have sent
// as many before.
type way struct {
	id   string // "": free
	tag  uint32 // of the id's hash, to compare it quickly
	hits uint64 // upper bound of the requests
	over uint64 // how many of hits may be another tenant's
}

// sketchEntry holds a tenant and a lower bound of its requests.
type sketchEntry struct {
	id    string
	least uint64
}

// newSketch returns a sketch with room for about four times as many tenants as are wanted.
func newSketch(wanted int) *sketch {
	sets := uint(max(wanted, 0))/(ways/4) + 1
	return &sketch{seed: maphash.MakeSeed(), sets: make([]set, 1<<bits.Len(sets-1))}
}

func (s *sketch) setOf(id string) (in *set, tag uint32) {
	hash := maphash.String(s.seed, id)
	return &s.sets[hash&uint64(len(s.sets)-1)], uint32(hash >> 32)
}

// count counts a request. It skips the request while another one is counted in the same set: an estimate is not worth
// a wait.
func (s *sketch) count(id string) {
	in, tag := s.setOf(id)
	if !in.mu.TryLock() {
		return
	}
	in.count(id, tag)
	in.mu.Unlock()
}

func (s *set) count(id string, tag uint32) {
	w, found := s.find(id, tag)
	if found {
		w.hits++
		return
	}
	*w = way{id: id, tag: tag, hits: w.hits + 1, over: w.hits}
}

// find returns the way of a tenant, or the least busy one.
func (s *set) find(id string, tag uint32) (w *way, found bool) {
	w = &s.ways[0]
	for i := range s.ways {
		next := &s.ways[i]
		if next.tag == tag && next.id == id {
			return next, true
		}
		if next.hits < w.hits {
			w = next
		}
	}
	return w, false
}

// put adds a tenant that was counted elsewhere, unless all others of its set are busier.
func (s *sketch) put(id string, hits uint64) {
	in, tag := s.setOf(id)
	in.mu.Lock()
	defer in.mu.Unlock()
	switch w, found := in.find(id, tag); {
	case found:
		w.hits += hits
	case w.hits < hits:
		*w = way{id: id, tag: tag, hits: hits}
	}
}

// remove drops a tenant.
func (s *sketch) remove(id string) {
	in, tag := s.setOf(id)
	in.mu.Lock()
	defer in.mu.Unlock()
	if w, found := in.find(id, tag); found {
		*w = way{}
	}
}

// entries returns the tenants that have certainly sent requests.
func (s *sketch) entries() []sketchEntry {
	var all []sketchEntry
	s.each(func(w *way) {
		if w.hits > w.over {
			all = append(all, sketchEntry{w.id, w.hits - w.over})
		}
	})
	return all
}

// decay halves all counts a number of times, so that old requests count little.
func (s *sketch) decay(halvings uint) {
	s.each(func(w *way) {
		if w.hits, w.over = w.hits>>halvings, w.over>>halvings; w.hits == 0 {
			*w = way{}
		}
	})
}

func (s *sketch) each(do func(*way)) {
	for i := range s.sets {
		in := &s.sets[i]
		in.mu.Lock()
		for j := range in.ways {
			do(&in.ways[j])
		}
		in.mu.Unlock()
	}
}
