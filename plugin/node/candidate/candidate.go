// Package candidate tries the open candidate beside requests that it is not enforced for, and counts how its denials
// differ from the denials of the active policies.
//
// Requests are offered with their decision and wait in a bounded queue; where it is full they are dropped and counted.
// A few workers then decide them again with the candidate's plan, by the same code, in buckets of their own: neither
// the answer of a request nor its buckets depend on a candidate. What the workers find is counted by tenant, endpoint
// and policy ([Counter]), and reported to Postgres every few seconds ([Reporter]).
//
// Where a candidate's limit settles, what a request reserves of it is settled with the request's own reservation, when
// its log phase comes to this process ([Reservations]). Otherwise it stays charged until its window or bucket frees it:
// nothing else waits for it.
//
// A request is not compared, and counts as dropped, where Redis did not answer for either side. A request that a ban,
// an exemption or meta_limit decides is the same under both, and is not counted.
//
// Elsewhere: which tenants a candidate is assigned to and what it changes (package policy), how a request is decided
// (package admit), the candidate's buckets (package bucket).
package candidate

import (
	"cmp"
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/bucket/reservation"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/admit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/decision"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/identity"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/limit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/resolve"
)

const (
	defaultWaiting, defaultWorkers = 4096, 4
	// tryTime bounds how long a worker waits for the buckets.
	tryTime = time.Second
)

// Options configures an Evaluator. The zero value selects the defaults.
type Options struct {
	MaxWaiting int // requests in the queue, about 1 kB each while a candidate is open; 0: 4096
	Workers    int // 0: 4
	MaxRows    int // rows of the counter between two reports; 0: DefaultMaxRows
}

// Drop is the reason why a request was not compared.
type Drop int

// The reasons. Their names are the values of the metric's label.
const (
	QueueFull Drop = iota
	NoFacts        // facts that only the candidate needs could not be read
	NoStore        // Redis did not answer for one of the sides
	NoRow          // there were too many rows
	Panicked
	NotStored        // Postgres never stored the batch of its counts
	Drops     = iota // the number of reasons
)

func (r Drop) String() string {
	return [...]string{"queue", "facts", "store", "rows", "panic", "report"}[r]
}

// Stats holds numbers since the start, except Waiting.
type Stats struct {
	Active    Results         `metric:"candidate_requests_total set=active"`
	Candidate Results         `metric:"candidate_requests_total set=candidate"`
	Enforced  Results         `metric:"candidate_enforced_total"` // of the requests that the candidate was enforced for
	Dropped   map[Drop]uint64 `metric:"candidate_dropped_total reason"`
	Waiting   int             `metric:"candidate_waiting"` // requests in the queue now
}

// Results counts requests by their outcome.
type Results struct {
	Admitted uint64 `metric:"result=admitted"`
	Denied   uint64 `metric:"result=denied"`
}

type results struct{ admitted, denied atomic.Uint64 }

func (r *results) add(denied bool) {
	if denied {
		r.denied.Add(1)
	} else {
		r.admitted.Add(1)
	}
}

func (r *results) load() Results { return Results{r.admitted.Load(), r.denied.Load()} }

// Evaluator tries candidates for all deciders of a process. It is safe for concurrent use. Make it with New.
type Evaluator struct {
	counter *Counter
	workers int
	settles chan settlement
	queue   chan *request
	free    chan *request // as many as the queue has room for; nil ones are not allocated yet

	reservations Reservations // nil: what is reserved stays charged

	active, candidate, enforced results
	dropped                     [Drops]atomic.Uint64
}

// New returns an evaluator. It starts nothing: see [Evaluator.Run].
func New(o Options) *Evaluator {
	o.MaxWaiting, o.Workers = cmp.Or(o.MaxWaiting, defaultWaiting), cmp.Or(o.Workers, defaultWorkers)
	e := &Evaluator{
		counter: NewCounter(o.MaxRows), workers: o.Workers,
		settles: make(chan settlement, o.MaxWaiting),
		queue:   make(chan *request, o.MaxWaiting), free: make(chan *request, o.MaxWaiting),
	}
	for range o.MaxWaiting {
		e.free <- nil
	}
	return e
}

// Counter returns what was found.
func (e *Evaluator) Counter() *Counter { return e.counter }

// SetRoutes sets which names are names of routes: other names count as no endpoint. Call it before the first request.
func (e *Evaluator) SetRoutes(isRoute func(name string) bool) { e.counter.routes = isRoute }

// Stats returns the numbers.
func (e *Evaluator) Stats() Stats {
	s := Stats{
		Active: e.active.load(), Candidate: e.candidate.load(), Enforced: e.enforced.load(), Waiting: len(e.queue),
		Dropped: map[Drop]uint64{},
	}
	for i := range e.dropped {
		s.Dropped[Drop(i)] = e.dropped[i].Load()
	}
	return s
}

// Run tries what is offered until ctx ends.
func (e *Evaluator) Run(ctx context.Context) error {
	var workers sync.WaitGroup
	for range e.workers {
		workers.Go(func() { e.work(ctx) })
	}
	workers.Wait()
	return nil
}

func (e *Evaluator) work(ctx context.Context) {
	var d decision.Decision
	for {
		select {
		case <-ctx.Done():
			return
		case r := <-e.queue:
			e.try(ctx, r, &d)
			e.free <- r // which has room for all
		case s := <-e.settles:
			e.settle(ctx, s)
		}
	}
}

// try decides a request under the candidate, and counts both outcomes.
func (e *Evaluator) try(ctx context.Context, r *request, d *decision.Decision) {
	defer e.recoverPanic()
	ctx, cancel := context.WithTimeout(ctx, tryTime)
	defer cancel()
	decider, _, err := r.view.open()
	if err == nil {
		err = decider.Try(ctx, r.candidate, &r.identity, r.at, d)
	}
	if err != nil || d.Degraded {
		e.dropped[NoStore].Add(1)
		return
	}
	e.follow(r, d)
	if isExcluded(d) {
		return
	}
	if !e.counter.add(r, d) {
		e.dropped[NoRow].Add(1)
	}
	e.active.add(r.answer.denied)
	e.candidate.add(denied(d)) // last: what Stats have as tried is in the counter
}

// recoverPanic ends a panic of a trial: a candidate must not end the process that decides requests.
func (e *Evaluator) recoverPanic() {
	if recover() != nil {
		e.dropped[Panicked].Add(1)
	}
}

// isExcluded reports whether a request is not compared, because something other than policies decides it.
func isExcluded(d *decision.Decision) bool {
	return d.Resolution.Banned || d.Resolution.Exempt || d.Reason == decision.MetaLimited ||
		d.ShadowReason == decision.MetaLimited || d.Identity.Repeated != "" || d.Identity.TenantDenied
}

// denied reports whether a decision denies its request, or would if its config enforced its limits.
func denied(d *decision.Decision) bool {
	return d.Denied() || d.Mode != policy.Enforce && d.ShadowDenied
}

// deniedBy reports whether a bound denies the request, or would if the config enforced its limits.
func deniedBy(d *decision.Decision, i int) bool {
	b, s := &d.Resolution.Bounds[i], &d.Statuses[i]
	return decision.Denies(b, s) || d.Mode != policy.Enforce && s.Source != decision.Unanswered && !s.Admits()
}

// request is one that waits to be tried. Its memory is reused.
type request struct {
	view      *View
	candidate *resolve.Candidate
	identity  identity.Identity
	tags      []string
	at        limit.Micros

	reservation string

	answer side      // of the active policies
	bounds []outcome // of the active decision
}

// outcome is the answer of one bound of the active decision.
type outcome struct {
	side
	read bool // false: another bound denies, so it was not read
}

// fill copies what must outlive the request.
func (r *request) fill(t *admit.Trial, d *decision.Decision) {
	r.tags = append(r.tags[:0], t.Identity.Tags...)
	r.candidate, r.identity, r.at, r.reservation = t.Candidate, *t.Identity, t.At, t.Reservation
	r.identity.Tags = r.tags
	r.answer, r.bounds = side{denied(d), bindingOf(d), reasonOf(d)}, r.bounds[:0]
	for i := range d.Statuses {
		answer := side{denied: deniedBy(d, i), policy: d.Resolution.Bounds[i].Policy}
		r.bounds = append(r.bounds, outcome{answer, d.Statuses[i].Source != decision.Unanswered})
	}
}

// sideOf returns the answer of an active policy, and whether it was read.
func (r *request) sideOf(name string) (answer side, read bool) {
	for _, o := range r.bounds {
		if o.policy.Name == name {
			return o.side, o.read
		}
	}
	return side{}, false
}

// reasonOf returns the reason of a denial that is not a matter of limits.
func reasonOf(d *decision.Decision) decision.Reason {
	if d.Reason != decision.Counted {
		return d.Reason
	}
	return d.ShadowReason
}

// bindingOf returns the policy of the bound that denies a request; nil: none does.
func bindingOf(d *decision.Decision) *policy.Policy {
	if d.Denied() && d.Binding >= 0 {
		return d.Resolution.Bounds[d.Binding].Policy
	}
	for i := range d.Statuses {
		if deniedBy(d, i) {
			return d.Resolution.Bounds[i].Policy
		}
	}
	return nil
}

// Store keeps the buckets of candidates.
type Store interface {
	admit.Buckets
	reservation.Buckets
}

// Buckets are what a candidate counts in, and the function that releases them.
type Buckets struct {
	Buckets Store
	Shares  admit.Shares // nil: limits with shares are limits as others
	Release func()
}

var errClosed = errors.New("the config of the request has ended")

// View offers the requests of one decider. Make it with [Evaluator.View].
type View struct {
	*Evaluator
	openBuckets func() (Buckets, error)

	mu     sync.Mutex
	opened *admit.Decider // nil: no request was tried since the buckets were released
	store  Store          // of opened
	freed  func()
	closed bool
}

// View returns a view whose candidate counts in the buckets that open returns. They are opened for the first request
// that is tried.
func (e *Evaluator) View(open func() (Buckets, error)) *View {
	return &View{Evaluator: e, openBuckets: open}
}

// Offer implements admit.Candidates. It never waits.
func (v *View) Offer(t admit.Trial, d *decision.Decision) {
	switch {
	case t.Enforced:
		v.enforced.add(denied(d))
		return
	case isExcluded(d):
		return
	case d.Degraded:
		v.dropped[NoStore].Add(1)
		return
	}
	select {
	case r := <-v.free:
		if r == nil {
			r = &request{}
		}
		r.view = v
		r.fill(&t, d)
		v.queue <- r // which has room for all
	default:
		v.dropped[QueueFull].Add(1)
	}
}

// Skip implements admit.Candidates.
func (v *View) Skip() { v.dropped[NoFacts].Add(1) }

// open returns the decider that tries requests and its store, and opens the buckets if they are not open.
func (v *View) open() (*admit.Decider, Store, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.closed {
		return nil, nil, errClosed
	}
	if v.opened == nil {
		b, err := v.openBuckets()
		if err != nil {
			return nil, nil, err
		}
		v.opened, v.store, v.freed = &admit.Decider{Buckets: b.Buckets, Shares: b.Shares}, b.Buckets, b.Release
	}
	return v.opened, v.store, nil
}

// Release releases the buckets, if they are open. A request that is tried later opens them again, unless end is set.
func (v *View) Release(end bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.closed = v.closed || end
	if v.opened != nil {
		v.freed()
		v.opened, v.store, v.freed = nil, nil, nil
	}
}
