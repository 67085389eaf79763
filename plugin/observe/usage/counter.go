// Package usage counts what every tenant uses, and reports it. A [Counter] observes decisions and settlements. Every
// few seconds a [Reporter] takes what was counted, as a [Batch], and hands it to a [Sink], which stores it in Postgres.
// There one process adds the batches up by minute, hour and day.
// docs/usage.md has what is counted where, and what is lost when.
//
// A [Row] belongs to a tenant, an endpoint and a policy. The row without a policy counts the requests themselves; the
// row of a policy counts what the policy did. A policy is identified by its [policy.Ref]: two tiers may have policies
// of one name. No row has an address or a user. [ModelCalls] counts tokens and money of a tenant's calls by model. A
// [Tier] says by which tier the requests of a tenant were decided, and where it was found, unless the caller stated it.
//
// Counting never waits for a sink or a file: requests of one connection count in one of several stripes, each with a
// lock that is held for little more than an access of a map. Calls of models share one such lock. Memory is bounded:
// rows and models by their number, batches by [ReporterOptions]. What does not fit is dropped and counted.
//
// A batch is delivered once or more, and identified by node, epoch and seq, so that the receiver can count it once. The
// epoch is random for each reporter, seq counts its batches from 1 without a gap. A dropped batch leaves a gap. With a
// folder, a batch is written to a file before it is sent, and removed after.
package usage

import (
	"cmp"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"unicode/utf8"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/bucket/reservation"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/decision"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/identity"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/database/pgtext"
)

// maxRows bounds the rows between two batches: about 150 bytes each, names included. At half of it the reporter is
// woken; at the maximum counts without a row are dropped.
const maxRows = 200_000

// stripes is the number of stripes: a power of two, more than the threads that decide at a time.
const stripes = 16

// Counter counts decisions and settlements. It is an admit.Observer and a reservation.Observer, safe for concurrent
// use. Make it with NewCounter.
type Counter struct {
	// Routes reports whether a name is that of a route. Other names count as no endpoint, because clients could make any
	// number of them, and the tiers that these clients state are not reported as seen. Set it before the first decision.
	// nil: every name is a route.
	Routes func(name string) bool

	maxRows int
	stripes [stripes]stripe
	rows    atomic.Int64  // in all stripes
	dropped atomic.Uint64 // counts without a row, and calls without a model
	denied  atomic.Int64  // tenants with denials, in all stripes
	settled atomic.Uint32 // the stripe of the next settlement
	full    chan struct{} // room for one signal

	models    models
	tiers     atomic.Int64  // in all stripes
	tierOrder atomic.Uint64 // the order in which tiers were seen
	reported  reportedTiers // belongs to the goroutine that cuts
}

// stripe holds the rows of some connections. Those of others are on other cache lines.
type stripe struct {
	mu       sync.Mutex
	places   map[place]*placeRows
	rows     int
	denials  map[string]*Denials // by tenant
	tiers    map[Tier]uint64     // with the order in which they were seen last
	last     place               // as the last decision named it: the next one often has the same strings
	lastRows *placeRows
	_        [64]byte
}

// place is where requests come from, and what they call.
type place struct{ tenant, endpoint string }

type placeRows struct {
	requests Counts
	tier     Tier // of the last decision
	policies []policyRow
}

type policyRow struct {
	ref  policy.Ref
	last *policy.Policy // that was counted here last: comparing it is faster than comparing refs
	Counts
}

// NewCounter returns a counter without rows.
func NewCounter() *Counter {
	c := &Counter{maxRows: maxRows, full: make(chan struct{}, 1)}
	c.models.cut()
	for i := range c.stripes {
		c.stripes[i].places = map[place]*placeRows{}
	}
	return c
}

// Rows returns the number of rows that wait for the next batch. A row counts once for each stripe that has it.
func (c *Counter) Rows() int { return int(c.rows.Load()) }

// Dropped returns how often a row or a call could not be counted because there were too many.
func (c *Counter) Dropped() uint64 { return c.dropped.Load() }

// Observe implements admit.Observer. It keeps of d the names of the tenant, the endpoint and the policies.
func (c *Counter) Observe(d *decision.Decision) {
	where := place{endpoint: d.KnownEndpoint(c.Routes)}
	if d.Identity.Tenant.Kind == identity.Tenant { // a name of another kind is an address
		where.tenant = d.Identity.Tenant.ID
	}
	s := &c.stripes[d.Exchange%stripes]
	s.mu.Lock()
	defer s.mu.Unlock()
	rows := c.rowsAt(s, where)
	if rows == nil {
		return
	}
	countRequest(&rows.requests, d)
	c.countTier(s, rows, where.tenant, d)
	if d.Denied() {
		c.countDenial(s, where.tenant, d)
	}
	for i := range d.Resolution.Bounds {
		bound, status := &d.Resolution.Bounds[i], &d.Statuses[i]
		if bound.Unmatched || status.Source == decision.Unanswered && status.Failure == decision.NoFailure {
			continue // it is for another model, or was not read, because another bound denies
		}
		if counts := c.rowOf(s, rows, i, bound); counts != nil {
			countBound(counts, d, bound, status)
		}
	}
}

// countRequest counts a decision in the row without a policy.
func countRequest(counts *Counts, d *decision.Decision) {
	switch d.Result {
	case decision.HardThrottled:
		counts.Denied++
	case decision.SoftThrottled:
		counts.Soft++
		counts.Admitted++
	default:
		counts.Admitted++
	}
	if d.ShadowDenied {
		counts.ShadowDenied++
	}
}

// countBound counts what one bound did in the row of its policy.
func countBound(counts *Counts, d *decision.Decision, b *policy.Bound, s *decision.Status) {
	unanswered := s.Source == decision.Unanswered
	switch {
	case !d.Denied():
		counts.Admitted++
		if s.Soft && s.Admits() && !unanswered {
			counts.Soft++
		}
	case unanswered && d.Reason != decision.StoreAway: // a bound without room takes precedence
	case decision.Denies(b, s):
		counts.Denied++
	}
	if !unanswered && !s.Admits() && !b.Enforced() {
		counts.ShadowDenied++
	}
	if s.Charged || unanswered && b.Enforced() && !d.Denied() {
		counts.Cost = sum(counts.Cost, b.Cost)
	}
	if s.Source == decision.Memory || s.Source == decision.Redis || s.Source == decision.Leased {
		counts.lower(s.Remaining)
	}
}

// Reserved implements reservation.Observer. Observe has counted the reservation.
func (c *Counter) Reserved(*policy.Bound) {}

// Settled implements reservation.Observer. It counts what a settlement changed, and what the call of a model used that
// one settlement of a request has. A slot that is released was used.
func (c *Counter) Settled(b *policy.Bound, settled reservation.Settlement) {
	if settled.Call != nil && !c.models.count(settled.Tenant, settled.Call) {
		c.dropped.Add(1)
	}
	if settled.Change == 0 || b.Key.Slots {
		return
	}
	where := place{settled.Tenant, settled.Endpoint}
	isPattern := strings.Contains(where.endpoint, "/") // only a pattern has a path
	if c.Routes != nil && !isPattern && !c.Routes(where.endpoint) {
		where.endpoint = ""
	}
	s := &c.stripes[c.settled.Add(1)%stripes]
	s.mu.Lock()
	defer s.mu.Unlock()
	rows := c.rowsAt(s, where)
	if rows == nil {
		return
	}
	if counts := c.rowOf(s, rows, 0, b); counts != nil {
		counts.Cost = sum(counts.Cost, settled.Change)
	}
}

// rowsAt returns the rows of a place, or nil if there is no room for a new one. s.mu is held.
func (c *Counter) rowsAt(s *stripe, where place) *placeRows {
	if s.lastRows != nil && s.last == where {
		return s.lastRows
	}
	rows := s.places[where]
	if rows == nil && c.addRow(s) {
		rows = &placeRows{requests: noCounts}
		s.places[place{strings.Clone(where.tenant), strings.Clone(where.endpoint)}] = rows
	}
	s.last, s.lastRows = where, rows
	return rows
}

// rowOf returns the row of a policy at a place, or nil if there is no room for a new one. The row is most often at the
// place of the bound. s.mu is held.
func (c *Counter) rowOf(s *stripe, rows *placeRows, likely int, b *policy.Bound) *Counts {
	if likely < len(rows.policies) && rows.policies[likely].last == b.Policy {
		return &rows.policies[likely].Counts
	}
	ref := b.Ref()
	for i := range rows.policies {
		if row := &rows.policies[i]; row.ref == ref {
			row.last = b.Policy
			return &row.Counts
		}
	}
	if !c.addRow(s) {
		return nil
	}
	rows.policies = append(rows.policies, policyRow{ref, b.Policy, noCounts})
	return &rows.policies[len(rows.policies)-1].Counts
}

// addRow makes room for a row, and reports whether there is any. s.mu is held.
func (c *Counter) addRow(s *stripe) bool {
	rows := int(c.rows.Add(1))
	if rows >= c.maxRows/2 {
		select {
		case c.full <- struct{}{}:
		default: // it has a signal already
		}
	}
	if rows > c.maxRows {
		c.rows.Add(-1)
		c.dropped.Add(1)
		return false
	}
	s.rows++
	return true
}

// burst is how many rows are merged without a pause: in a process with one thread, requests wait for it.
const burst = 256

// cut takes all rows out of the counter, sorted by key. It locks each stripe for the exchange of a map only.
func (c *Counter) cut() []Row {
	index, all := map[Key]int{}, []Row(nil)
	add := func(k Key, counts Counts, unit string) {
		if counts == noCounts {
			return
		}
		k = Key{clean(k.Tenant), clean(k.Endpoint), clean(k.Policy)}
		i, ok := index[k]
		if !ok {
			i = len(all)
			index[k], all = i, append(all, Row{k, noCounts})
			all[i].Unit = unit
		}
		all[i].Add(counts)
	}
	done := 0
	for i := range c.stripes {
		for where, rows := range c.swap(&c.stripes[i]) {
			add(Key{where.tenant, where.endpoint, ""}, rows.requests, "")
			for _, row := range rows.policies {
				add(Key{where.tenant, where.endpoint, row.ref.String()}, row.Counts, row.last.Unit)
			}
			if done++; done%burst == 0 {
				runtime.Gosched()
			}
		}
	}
	slices.SortFunc(all, func(a, b Row) int {
		return cmp.Or(strings.Compare(a.Tenant, b.Tenant), strings.Compare(a.Endpoint, b.Endpoint),
			strings.Compare(a.Policy, b.Policy))
	})
	return all
}

func (c *Counter) swap(s *stripe) map[place]*placeRows {
	s.mu.Lock()
	size := len(s.places)
	s.mu.Unlock()
	if size == 0 {
		return nil
	}
	next := make(map[place]*placeRows, size) // outside the lock
	s.mu.Lock()
	defer s.mu.Unlock()
	taken := s.places
	c.rows.Add(-int64(s.rows))
	s.places, s.rows, s.lastRows = next, 0, nil
	return taken
}

// clean returns a name that can be in a batch.
func clean(name string) string {
	if validNames(name) {
		return name
	}
	name = pgtext.Storable(name)
	if len(name) > MaxName {
		name = name[:MaxName]
		for !utf8.ValidString(name) { // a rune of up to 4 bytes was cut
			name = name[:len(name)-1]
		}
	}
	return name
}
