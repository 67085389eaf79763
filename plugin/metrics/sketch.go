package metrics

import (
	"hash/maphash"
	"math/bits"
	"sync"
)

// ways is how many tenants a set of the sketch has room for.
const ways = 8

// sketch finds those who send the most requests, among any number of tenants, in memory that does not grow and without
// allocating: the space-saving algorithm (Metwally, Agrawal, El Abbadi: Efficient Computation of Frequent and Top-k
// Elements in Data Streams, 2005). Its counters are divided into sets, like the lines of a processor's cache, so that a
// request looks at eight of them. Whoever sends more than an eighth of a set's requests is in it.
type sketch struct {
	seed maphash.Seed // of this process: nobody can choose names that share a set
	sets []set        // a power of two of them
}

type set struct {
	mu   sync.Mutex
	ways [ways]way
}

// way counts one tenant's requests. A newcomer takes the place of the least busy, and its count with it, because it may
// have sent as many before.
type way struct {
	id   string // "": free
	tag  uint32 // of the id's hash, to compare it quickly
	hits uint64 // requests, at most
	over uint64 // how many of hits may have been another's
}

// candidate is a tenant, and how many requests it has sent at least.
type candidate struct {
	id   string
	sure uint64
}

// newSketch makes a sketch with room for about four times as many tenants as are to be found.
func newSketch(wanted int) *sketch {
	sets := uint(max(wanted, 0))/(ways/4) + 1
	return &sketch{seed: maphash.MakeSeed(), sets: make([]set, 1<<bits.Len(sets-1))}
}

func (s *sketch) find(id string) (in *set, tag uint32) {
	hash := maphash.String(s.seed, id)
	return &s.sets[hash&uint64(len(s.sets)-1)], uint32(hash >> 32)
}

// count counts a request. Where another request is just being counted in the same set it leaves it: an estimate is not
// worth waiting for.
func (s *sketch) count(id string) {
	in, tag := s.find(id)
	if !in.mu.TryLock() {
		return
	}
	in.count(id, tag)
	in.mu.Unlock()
}

func (s *set) count(id string, tag uint32) {
	least := &s.ways[0]
	for i := range s.ways {
		w := &s.ways[i]
		if w.tag == tag && w.id == id {
			w.hits++
			return
		}
		if w.hits < least.hits {
			least = w
		}
	}
	*least = way{id: id, tag: tag, hits: least.hits + 1, over: least.hits}
}

// put remembers a tenant that was counted elsewhere, unless all of its set are busier.
func (s *sketch) put(id string, hits uint64) {
	in, tag := s.find(id)
	in.mu.Lock()
	defer in.mu.Unlock()
	least := &in.ways[0]
	for i := range in.ways {
		w := &in.ways[i]
		if w.tag == tag && w.id == id {
			w.hits += hits
			return
		}
		if w.hits < least.hits {
			least = w
		}
	}
	if least.hits < hits {
		*least = way{id: id, tag: tag, hits: hits}
	}
}

// remove forgets a tenant.
func (s *sketch) remove(id string) {
	in, tag := s.find(id)
	in.mu.Lock()
	defer in.mu.Unlock()
	for i := range in.ways {
		if in.ways[i].tag == tag && in.ways[i].id == id {
			in.ways[i] = way{}
		}
	}
}

// candidates are those of whom it is certain that they sent anything.
func (s *sketch) candidates() []candidate {
	var all []candidate
	s.each(func(w *way) {
		if w.hits > w.over {
			all = append(all, candidate{w.id, w.hits - w.over})
		}
	})
	return all
}

// decay halves what was counted, so often: what is long past counts for little.
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
