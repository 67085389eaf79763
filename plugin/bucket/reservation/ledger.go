package reservation

import (
	"cmp"
	"container/heap"
	"context"
	"log/slog"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/decision"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/limit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/settle"
)

// DefaultMost is the number of reservations that a ledger has at most, if its options name none: about 100 MB.
const DefaultMost = 100_000

// Buckets changes what takes have spent.
type Buckets interface {
	// Settle is the Settle of store.Store (package plugin/bucket/store), with the same contract.
	Settle(ctx context.Context, bounds []policy.Bound, statuses []decision.Status, actual []int64) error
}

// Options configures a Ledger. Elapsed and Now must be set.
type Options struct {
	Elapsed  func() limit.Micros // a monotonic clock
	Now      func() limit.Micros // the wall clock, which processes share
	Most     int                 // reservations at a time; 0: DefaultMost
	Patience time.Duration       // to wait for another request with the same name; 0: two seconds
	Observer Observer            // nil: none
	Log      *slog.Logger        // nil: nothing is logged
}

// Ledger keeps the reservations of this process. It is safe for concurrent use. Make it with New.
type Ledger struct {
	options    Options
	background errgroup.Group
	opened     chan struct{} // has room for one: a central store was opened

	mu    sync.Mutex
	stats Stats // without Kept and Parked
	byKey map[string]*reservation
	ends  ends // the reservations, by the instant at which they time out or, if they have, are forgotten

	central     []*Keeper // the open ones with a central store
	parked      []*requestEnd
	parkedBytes int
	doubts      []*Claim // that the store did not answer: they may arrive there later

	made      uint64       // reservations
	firstMade limit.Micros // when the first one was made
	reached   bool         // a log phase came, or a caller named a reservation
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
	slots   int          // of concurrency limits; 0 once it is late
	place   int          // in Ledger.ends
	named   bool         // its record has the timeout alone: the rest is in its entry

	follow func(a *settle.Answer, late bool) // see Follow; nil: none
}

// New returns an empty ledger.
func New(o Options) *Ledger {
	o.Most, o.Patience = cmp.Or(o.Most, DefaultMost), cmp.Or(o.Patience, 2*time.Second)
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	l := &Ledger{options: o, opened: make(chan struct{}, 1), byKey: map[string]*reservation{}}
	l.background.SetLimit(maxWriting)
	return l
}

// Follow calls settled once with what the log phase of a request says, read as needs wants it too, and whether it came
// late. It reports false, and does nothing, unless the request's reservation waits in this process. settled must not
// block, and must not keep the answer.
func (l *Ledger) Follow(text string, needs settle.Needs, settled func(a *settle.Answer, late bool)) bool {
	parsed, ok := parseToken(text)
	if !ok {
		return false
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	r := l.byKey[parsed.key]
	if r == nil {
		return false
	}
	r.needs, r.follow = r.needs.Union(needs), settled
	return true
}

// Stats holds the numbers of a ledger, since the start where they are not of now.
type Stats struct {
	Kept       int    `metric:"reservations"`                  // reservations that wait for their end now
	Slots      int    `metric:"requests_in_flight"`            // slots of concurrency limits that these hold now
	Parked     int    `metric:"parked_settlements"`            // requests that have ended, and wait for their store
	Unknown    uint64 `metric:"unknown_reservations_total"`    // log phases whose reservation does not exist
	Unrecorded uint64 `metric:"unrecorded_reservations_total"` // that could not be recorded in the central store
	Elsewhere  uint64 `metric:"settled_elsewhere_total"`       // whose record was gone: others have settled them
	Abandoned  uint64 `metric:"abandoned_settlements_total"`   // whose central store was out of reach in the end
}

// Stats returns the numbers of the ledger.
func (l *Ledger) Stats() Stats {
	l.mu.Lock()
	defer l.mu.Unlock()
	s := l.stats
	s.Kept, s.Parked = len(l.byKey), len(l.parked)
	return s
}

// count adds one to a number of the ledger's stats.
func (l *Ledger) count(n *uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	*n++
}

// add adds a reservation. In a full ledger it replaces the one that times out first, or is forgotten first.
func (l *Ledger) add(r *reservation) {
	r.made = l.options.Elapsed()
	r.ends = r.made + r.Timeout
	l.mu.Lock()
	dropped := l.byKey[r.key] // of a name that is free again
	if dropped == nil && len(l.byKey) >= l.options.Most {
		dropped = l.ends[0]
	}
	if dropped != nil {
		l.remove(dropped)
	}
	if l.made++; l.made == 1 {
		l.firstMade = r.made
	}
	l.reached = l.reached || r.named
	l.insert(r)
	l.mu.Unlock()
	if dropped == nil {
		return
	}
	if !dropped.late && !dropped.named {
		l.reportUnsettled(dropped, Dropped)
	}
	l.discard(dropped)
}

// insert inserts a reservation. The caller holds the lock.
func (l *Ledger) insert(r *reservation) {
	l.byKey[r.key] = r
	l.stats.Slots += r.slots
	heap.Push(&l.ends, r)
}

// remove removes a reservation. The caller holds the lock.
func (l *Ledger) remove(r *reservation) {
	delete(l.byKey, r.key)
	l.stats.Slots -= r.slots
	heap.Remove(&l.ends, r.place)
}

// reportUnsettled reports that a reservation stays charged.
func (l *Ledger) reportUnsettled(r *reservation, why Outcome) {
	r.ReportUnsettled(l.options.Observer, why, l.options.Elapsed()-r.made)
}

// take removes the reservation of a key and returns it; nil: there is none.
func (l *Ledger) take(key string) *reservation {
	l.mu.Lock()
	defer l.mu.Unlock()
	r := l.byKey[key]
	if r != nil {
		l.remove(r)
		l.reached = true
	}
	return r
}
