package reservation

import (
	"container/heap"
	"context"
	"crypto/rand"
	"log/slog"
	"sync"
	"sync/atomic"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/decision"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/limit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/settle"
)

// DefaultMost is the number of reservations that a table has at most, if its options name none: about 100 MB.
const DefaultMost = 100_000

// Buckets changes what takes have spent.
type Buckets interface {
	// Settle is the Settle of store.Store (package plugin/bucket/store), with the same contract.
	Settle(ctx context.Context, bounds []policy.Bound, statuses []decision.Status, actual []int64) error
}

// Options configures a Table. Elapsed and Now must be set.
type Options struct {
	Elapsed  func() limit.Micros // a monotonic clock
	Now      func() limit.Micros // the wall clock, which processes share
	Most     int                 // reservations at a time; 0: DefaultMost
	Observer Observer            // nil: none
	Log      *slog.Logger        // nil: nothing is logged
}

// Table keeps the reservations of this process. It is safe for concurrent use. Make it with New.
type Table struct {
	options Options

	background sync.WaitGroup
	slots      chan struct{} // one for each call in the background
	opened     chan struct{} // has room for one: a central store was opened

	unrecorded, elsewhere, abandoned atomic.Uint64

	mu      sync.Mutex
	byID    map[id]*reservation
	waiting ends // the reservations that have not timed out, by the instant at which they do
	late    ends // those that have, by the instant at which they are forgotten
	unknown uint64

	central     map[string][]*Keeper // the open ones, by the fingerprint of their store
	parked      []*requestEnd
	parkedBytes int
	known       map[string]bool // the fingerprints of stores that are or were open
	parkedFor   map[string]room // by the fingerprint of a store that never was

	made, reached uint64       // reservations, and requests with one whose log phase came
	firstMade     limit.Micros // when the first one was made
	warned        bool         // no log phase came, which was logged
}

// reservation holds what one request has reserved.
type reservation struct {
	*Record
	id      id
	keeper  *Keeper
	needs   settle.Needs
	writing *writing     // nil: only this process has it
	made    limit.Micros // by Options.Elapsed
	ends    limit.Micros // when it times out; if it has, when it is forgotten
	late    bool         // it has timed out
	place   int          // in waiting or late

	follow func(a *settle.Answer, late bool) // see Follow; nil: none
}

// New returns an empty table.
func New(o Options) *Table {
	if o.Most <= 0 {
		o.Most = DefaultMost
	}
	return &Table{
		options: o, byID: map[id]*reservation{}, central: map[string][]*Keeper{}, known: map[string]bool{},
		parkedFor: map[string]room{},
		slots:     make(chan struct{}, maxWriting), opened: make(chan struct{}, 1),
	}
}

// Follow calls settled once with what the log phase of a request says, read as needs wants it too, and whether it came
// late. It reports false, and does nothing, unless the request's reservation waits in this process. settled must not
// block, and must not keep the answer.
func (t *Table) Follow(text string, needs settle.Needs, settled func(a *settle.Answer, late bool)) bool {
	parsed, ok := parseToken(text)
	if !ok {
		return false
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	r := t.byID[parsed.id]
	if r == nil {
		return false
	}
	r.needs, r.follow = r.needs.Union(needs), settled
	return true
}

// Stats holds the numbers of a table, since the start where they are not of now.
type Stats struct {
	Kept       int    `metric:"reservations"`                  // reservations that wait for their log phase now
	Parked     int    `metric:"parked_settlements"`            // requests that have ended, and wait for their store
	Unknown    uint64 `metric:"unknown_reservations_total"`    // log phases whose reservation does not exist
	Unrecorded uint64 `metric:"unrecorded_reservations_total"` // that could not be recorded in the central store
	Elsewhere  uint64 `metric:"settled_elsewhere_total"`       // whose record was gone: others have settled them
	Abandoned  uint64 `metric:"abandoned_settlements_total"`   // whose central store was out of reach in the end
}

// Stats returns the numbers of the table.
func (t *Table) Stats() Stats {
	t.mu.Lock()
	defer t.mu.Unlock()
	return Stats{
		Kept: len(t.byID), Parked: len(t.parked), Unknown: t.unknown, Unrecorded: t.unrecorded.Load(),
		Elsewhere: t.elsewhere.Load(), Abandoned: t.abandoned.Load(),
	}
}

func (t *Table) countUnknown() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.unknown++
}

// add adds a reservation, gives it an id, and begins to record it if others can settle it. In a full table it replaces
// one that can only charge more, because it has timed out, or else the one that times out first.
func (t *Table) add(r *reservation) {
	rand.Read(r.id[:]) // never fails: it ends the program instead
	r.made = t.options.Elapsed()
	r.ends = r.made + r.Timeout
	if r.isRecordable() {
		r.writing = &writing{done: make(chan struct{})}
		t.startWriting(r)
	}
	t.mu.Lock()
	var dropped *reservation
	if len(t.byID) >= t.options.Most {
		dropped = t.leastUseful()
		t.remove(dropped)
	}
	if t.made++; t.made == 1 {
		t.firstMade = r.made
	}
	t.byID[r.id] = r
	heap.Push(&t.waiting, r)
	t.mu.Unlock()
	if dropped != nil {
		t.drop(dropped)
	}
	r.ReportReserved(t.options.Observer)
}

// drop ends a reservation for which there was no room.
func (t *Table) drop(r *reservation) {
	if !r.late {
		t.giveUp(r, Dropped)
	}
	t.discard(r)
	r.keeper.done()
}

// leastUseful returns the reservation to drop from a full table. The caller holds the lock.
func (t *Table) leastUseful() *reservation {
	if len(t.late) > 0 {
		return t.late[0]
	}
	return t.waiting[0]
}

// remove removes a reservation. The caller holds the lock.
func (t *Table) remove(r *reservation) {
	delete(t.byID, r.id)
	if r.late {
		heap.Remove(&t.late, r.place)
	} else {
		heap.Remove(&t.waiting, r.place)
	}
}

// giveUp reports that a reservation stays charged.
func (t *Table) giveUp(r *reservation, why Outcome) {
	r.ReportUnsettled(t.options.Observer, why, t.options.Elapsed()-r.made)
}

// take removes the reservation of an id from the table and returns it; nil: there is none.
func (t *Table) take(key id) *reservation {
	t.mu.Lock()
	defer t.mu.Unlock()
	r := t.byID[key]
	if r != nil {
		t.remove(r)
		t.reached++
	}
	return r
}
