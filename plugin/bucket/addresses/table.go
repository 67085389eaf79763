package addresses

import (
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/limit"
)

// places is the number of keys of a set. With so many, hardly a set is full before most sets are.
const places = 32

// table keeps keys until they have expired in the central store. It has a fixed size and no pointers.
//
// A key is kept as 64 bits of a hash that no client can predict: two of a million are equal with a probability below
// 10^-7.
type table struct {
	sets []set
	pace *rate.Limiter

	mostBytes int64        // of sliding logs
	bytes     atomic.Int64 // that are reserved for the logs of all places, expired ones included until they are freed
	freed     atomic.Int64 // when expired ones were last freed
}

type set struct {
	mu     sync.Mutex
	hashes [places]uint64
	until  [places]limit.Micros // 0: nothing is kept here
	bytes  [places]uint32       // reserved for a sliding log
	shared uint32               // one bit for each place, see add
}

// newTable returns a table for so many keys, rounded up to whole sets, and so many new ones a second. Sliding logs
// among them have keyBytes of memory together for each key.
func newTable(most, perSecond int) *table {
	t := &table{sets: make([]set, (most+places-1)/places), pace: newPace(perSecond), mostBytes: keyBytes * int64(most)}
	t.freed.Store(math.MinInt64 / 2) // the clock may begin at 0
	return t
}

func (t *table) setOf(hash uint64) *set { return &t.sets[hash%uint64(len(t.sets))] }

// place returns where a key is kept at now; -1: nowhere.
func (s *set) place(hash uint64, now limit.Micros) int {
	for i := range s.hashes {
		if s.hashes[i] == hash && s.until[i] > now {
			return i
		}
	}
	return -1
}

// extend keeps a key that is in the table until an instant at least. It reports whether the key is there, and whether
// it was added as shared.
func (t *table) extend(hash uint64, now, until limit.Micros) (kept, shared bool) {
	s := t.setOf(hash)
	s.mu.Lock()
	defer s.mu.Unlock()
	i := s.place(hash, now)
	if i < 0 {
		return false, false
	}
	s.until[i] = max(s.until[i], until)
	return true, s.shared>>i&1 != 0
}

// add keeps a new key while the request is under way, if there is a place, memory for its sliding log, and the pace
// allows it. Shared says that the subject may have spent from another bucket before. A key that is kept already needs
// none of that.
func (t *table) add(hash uint64, shared bool, bytes uint32, now limit.Micros) bool {
	if kept, _ := t.extend(hash, now, now+reserved); kept {
		return true
	}
	if !t.reserve(bytes, now) {
		return false
	}
	kept, used := t.put(hash, shared, bytes, now)
	if !used {
		t.bytes.Add(-int64(bytes))
	}
	return kept
}

// put puts a key into a free place of its set. It reports whether the key is kept, and whether the bytes are used for
// it: they are not where another request has put the key there first.
func (t *table) put(hash uint64, shared bool, bytes uint32, now limit.Micros) (kept, used bool) {
	s := t.setOf(hash)
	s.mu.Lock()
	defer s.mu.Unlock()
	if i := s.place(hash, now); i >= 0 {
		s.until[i] = max(s.until[i], now+reserved)
		return true, false
	}
	i := slices.IndexFunc(s.until[:], func(until limit.Micros) bool { return until <= now })
	if i < 0 || !t.pace.AllowN(time.UnixMicro(int64(now)), 1) {
		return false, false
	}
	t.bytes.Add(-int64(s.bytes[i])) // of the key that had the place
	s.hashes[i], s.until[i], s.bytes[i], s.shared = hash, now+reserved, bytes, s.shared&^(1<<i)
	if shared {
		s.shared |= 1 << i
	}
	return true, true
}

// reserve takes bytes for a sliding log, and reports whether there were so many.
func (t *table) reserve(bytes uint32, now limit.Micros) bool {
	for {
		reserved := t.bytes.Load()
		switch after := reserved + int64(bytes); {
		case bytes == 0:
			return true
		case after <= t.mostBytes:
			if t.bytes.CompareAndSwap(reserved, after) {
				return true
			}
		case int64(bytes) > t.mostBytes || !t.freeExpired(now):
			return false
		}
	}
}

// freeExpired frees the bytes of keys that have expired, once a second at most, and reports whether it did.
func (t *table) freeExpired(now limit.Micros) bool {
	freed := t.freed.Load()
	if int64(now-limit.Second) < freed || !t.freed.CompareAndSwap(freed, int64(now)) {
		return false
	}
	for i := range t.sets {
		s := &t.sets[i]
		s.mu.Lock()
		for j := range s.until {
			if s.until[j] <= now {
				t.bytes.Add(-int64(s.bytes[j]))
				s.bytes[j] = 0
			}
		}
		s.mu.Unlock()
	}
	return true
}

// separate marks a key as not shared any more.
func (t *table) separate(hash uint64, now limit.Micros) {
	s := t.setOf(hash)
	s.mu.Lock()
	defer s.mu.Unlock()
	if i := s.place(hash, now); i >= 0 {
		s.shared &^= 1 << i
	}
}

// count returns how many keys are kept at now.
func (t *table) count(now limit.Micros) (kept int) {
	for i := range t.sets {
		s := &t.sets[i]
		s.mu.Lock()
		for _, until := range s.until {
			if until > now {
				kept++
			}
		}
		s.mu.Unlock()
	}
	return kept
}

// newPace returns a limiter of new keys, which starts with all that it can save up in burst seconds.
func newPace(perSecond int) *rate.Limiter {
	if perSecond <= 0 {
		return rate.NewLimiter(rate.Inf, 0)
	}
	return rate.NewLimiter(rate.Limit(perSecond), burst*perSecond)
}
