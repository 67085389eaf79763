package reservation

import (
	"cmp"
	"container/heap"
	"context"
	"log/slog"
	"sync"

	"golang.org/x/sync/errgroup"

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
	options    Options
	background errgroup.Group
	opened     chan struct{} // has room for one: a central store was opened

	mu      sync.Mutex
	stats   Stats // without Kept and Parked
	byKey   map[string]*reservation
	waiting ends // the reservations that have not timed out, by the instant at which they do
	late    ends // those that have, by the instant at which they are forgotten

	central     map[string][]*Keeper // the open ones, by the fingerprint of their store; empty: none is open any more
	parked      []*requestEnd
	parkedBytes int

	made      uint64       // reservations
	firstMade limit.Micros // when the first one was made
	reached   bool         // a log phase of a request with a reservation came
	warned    bool         // none came, which was logged
}

// reservation holds what one request has reserved.
type reservation struct {
	*Record
	key     string // of its record
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
	o.Most = cmp.Or(o.Most, DefaultMost)
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	t := &Table{
		options: o, opened: make(chan struct{}, 1), byKey: map[string]*reservation{}, central: map[string][]*Keeper{},
	}
	t.background.SetLimit(maxWriting)
	return t
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
	r := t.byKey[parsed.key]
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
	s := t.stats
	s.Kept, s.Parked = len(t.byKey), len(t.parked)
	return s
}

// count adds one to a number of the table's stats.
func (t *Table) count(n *uint64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	*n++
}

// add adds a reservation, and begins to record it if others can settle it. In a full table it replaces one that can
// only charge more, because it has timed out, or else the one that times out first.
func (t *Table) add(r *reservation) {
	r.made = t.options.Elapsed()
	r.ends = r.made + r.Timeout
	if r.isRecordable() {
		t.startWriting(r)
	}
	t.mu.Lock()
	var dropped *reservation
	if len(t.byKey) >= t.options.Most {
		from := t.late
		if len(from) == 0 {
			from = t.waiting
		}
		dropped = from[0]
		t.remove(dropped)
	}
	if t.made++; t.made == 1 {
		t.firstMade = r.made
	}
	t.byKey[r.key] = r
	heap.Push(&t.waiting, r)
	t.mu.Unlock()
	if dropped != nil {
		if !dropped.late {
			t.reportUnsettled(dropped, Dropped)
		}
		t.discard(dropped)
	}
	r.ReportReserved(t.options.Observer)
}

// remove removes a reservation. The caller holds the lock.
func (t *Table) remove(r *reservation) {
	delete(t.byKey, r.key)
	if r.late {
		heap.Remove(&t.late, r.place)
	} else {
		heap.Remove(&t.waiting, r.place)
	}
}

// reportUnsettled reports that a reservation stays charged.
func (t *Table) reportUnsettled(r *reservation, why Outcome) {
	r.ReportUnsettled(t.options.Observer, why, t.options.Elapsed()-r.made)
}

// take removes the reservation of a key from the table and returns it; nil: there is none.
func (t *Table) take(key string) *reservation {
	t.mu.Lock()
	defer t.mu.Unlock()
	r := t.byKey[key]
	if r != nil {
		t.remove(r)
		t.reached = true
	}
	return r
}
