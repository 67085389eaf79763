package reservation

import (
	"container/heap"
	"context"
	"crypto/rand"
	"encoding/hex"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/decision"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/limit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/policy"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/settle"
)

// DefaultMost is the number of reservations that a table has at most, if its options name none: about 100 MB.
const DefaultMost = 100_000

// Buckets changes what takes have spent.
type Buckets interface {
	// Settle is the Settle of store.Store (package plugin/bucket/store), with the same contract.
	Settle(ctx context.Context, bounds []policy.Bound, statuses []decision.Status, actual []int64) error
}

// Observer receives what becomes of reservations. Its methods must not block, and must not keep what they are given.
type Observer interface {
	// Reserved is called once for each bound of a reservation.
	Reserved(b *policy.Bound)
	// Settled is called once for each bound of a reservation when it is settled or given up.
	Settled(b *policy.Bound, s Settlement)
}

// Outcome says what became of the reservation of one bound.
type Outcome uint8

// The outcomes. Their names are the values of the metrics' label.
const (
	Measured   Outcome = iota // its bucket was changed to what the request used
	Refunded                  // the request used nothing: it never reached the upstream, or its status refunds
	Unmeasured                // it is unknown what the request used: the reservation stays charged
	TimedOut                  // no log phase came in time: the reservation stays charged
	Late                      // measured after the timeout: what was used beyond the reservation was charged
	Dropped                   // the table was full: the reservation stays charged
	Lost                      // the store did not answer, or the limit was changed: it is unknown what was changed
)

func (o Outcome) String() string {
	return [...]string{"measured", "refunded", "unmeasured", "timed_out", "late", "dropped", "lost"}[o]
}

// Settlement says what became of the reservation of one bound.
type Settlement struct {
	Outcome Outcome
	Actual  int64        // tokens that the request used; it has no meaning where it was not measured
	Change  int64        // tokens that the bucket got back (< 0), or was charged beyond the reservation (> 0)
	Delay   limit.Micros // since the reservation
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

	mu      sync.Mutex
	byID    map[id]*reservation
	waiting ends // the reservations that have not timed out, by the instant at which they do
	late    ends // those that have, by the instant at which they are forgotten
	unknown uint64

	made, reached uint64       // reservations, and those whose log phase came
	firstMade     limit.Micros // when the first one was made
	warned        bool         // no log phase came, which was logged
}

type id [16]byte

// reservation holds what one request has reserved.
type reservation struct {
	*Record
	id     id
	keeper *Keeper
	needs  settle.Needs
	made   limit.Micros // by Options.Elapsed
	ends   limit.Micros // when it times out; if it has, when it is forgotten
	late   bool         // it has timed out
	place  int          // in waiting or late
}

// New returns an empty table.
func New(o Options) *Table {
	if o.Most <= 0 {
		o.Most = DefaultMost
	}
	return &Table{options: o, byID: map[id]*reservation{}}
}

// Stats holds the numbers of a table.
type Stats struct {
	Kept    int    // reservations that wait for their log phase now
	Unknown uint64 // log phases whose id the table did not have, since the start
}

// Stats returns the numbers of the table.
func (t *Table) Stats() Stats {
	t.mu.Lock()
	defer t.mu.Unlock()
	return Stats{Kept: len(t.byID), Unknown: t.unknown}
}

// add adds a reservation and returns its id. In a full table it replaces one that can only charge more, because it has
// timed out, or else the one that times out first.
func (t *Table) add(r *reservation) string {
	rand.Read(r.id[:]) // never fails: it ends the program instead
	r.made = t.options.Elapsed()
	r.ends = r.made + r.Timeout
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
	if o := t.options.Observer; o != nil {
		for i := range r.Bounds {
			o.Reserved(&r.Bounds[i])
		}
	}
	return hex.EncodeToString(r.id[:])
}

// drop ends a reservation for which there was no room.
func (t *Table) drop(r *reservation) {
	if !r.late {
		t.giveUp(r, Dropped)
	}
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
	if o := t.options.Observer; o != nil {
		delay := t.options.Elapsed() - r.made
		for i := range r.Bounds {
			o.Settled(&r.Bounds[i], Settlement{Outcome: why, Delay: delay})
		}
	}
}

// take removes the reservation of an id from the table and returns it; nil: there is none.
func (t *Table) take(text string) *reservation {
	key, ok := parseID(text)
	t.mu.Lock()
	defer t.mu.Unlock()
	r := t.byID[key]
	if !ok || r == nil {
		t.unknown++
		return nil
	}
	t.remove(r)
	t.reached++
	return r
}

// parseID returns the id of a text that the table has made.
func parseID(text string) (key id, ok bool) {
	if len(text) != hex.EncodedLen(len(key)) {
		return key, false
	}
	_, err := hex.Decode(key[:], []byte(text))
	return key, err == nil
}

// Expire gives up the reservations that have timed out. They are kept for as long again, so that a log phase that comes
// late still charges what the request used beyond its reservation.
func (t *Table) Expire() {
	timedOut, forgotten, warn := t.ended(t.options.Elapsed())
	for _, r := range timedOut {
		t.giveUp(r, TimedOut)
	}
	for _, r := range forgotten {
		r.keeper.done()
	}
	if warn {
		t.options.Log.Warn("no reservation was settled yet: enable the plugin tenant-rate-settling wherever a limit settles; "+
			"until then reservations stay charged", "reservations", t.reservations())
	}
}

// A process that has made this many reservations, the first one this long ago, has a log phase to see by now.
const (
	warnAfter   = 100
	warnTimeout = 60 * limit.Second
)

// reservations returns how many reservations were made.
func (t *Table) reservations() uint64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.made
}

// ended returns the reservations that time out now, those that did so long ago and are forgotten now, and whether to
// log that no log phase has come. It does the latter once.
func (t *Table) ended(now limit.Micros) (timedOut, forgotten []*reservation, warn bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for len(t.waiting) > 0 && t.waiting[0].ends <= now {
		r := heap.Pop(&t.waiting).(*reservation)
		r.late = true
		r.ends += r.Timeout
		heap.Push(&t.late, r)
		timedOut = append(timedOut, r)
	}
	for len(t.late) > 0 && t.late[0].ends <= now {
		r := t.late[0]
		t.remove(r)
		forgotten = append(forgotten, r)
	}
	warn = t.reached == 0 && !t.warned && t.made >= warnAfter && now-t.firstMade >= warnTimeout && t.options.Log != nil
	t.warned = t.warned || warn
	return timedOut, forgotten, warn
}

// expireEvery is the time between two calls of Expire.
const expireEvery = time.Second

// Run calls Expire every second until ctx ends.
func (t *Table) Run(ctx context.Context) error {
	ticker := time.NewTicker(expireEvery)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
			t.Expire()
		}
	}
}

// ends is a heap of reservations, the one that ends first at its top.
type ends []*reservation

func (e ends) Len() int           { return len(e) }
func (e ends) Less(i, j int) bool { return e[i].ends < e[j].ends }
func (e ends) Swap(i, j int) {
	e[i], e[j] = e[j], e[i]
	e[i].place, e[j].place = i, j
}

// Push implements heap.Interface.
func (e *ends) Push(x any) {
	r := x.(*reservation)
	r.place = len(*e)
	*e = append(*e, r)
}

// Pop implements heap.Interface.
func (e *ends) Pop() any {
	last := len(*e) - 1
	r := (*e)[last]
	*e = slices.Delete(*e, last, last+1)
	return r
}
