package lease

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/decision"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/limit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
)

const (
	// batch is the number of buckets in one call of the central store.
	batch = 32
	// storeTimeout bounds the time that a renewal, or the end of Run, waits for the central store.
	storeTimeout = time.Second
	// minSleep is the least time that Run sleeps unless it is woken, even if the clock stands.
	minSleep = limit.Second / 1000
)

// dueRenewal is a bucket whose lease runs low.
type dueRenewal struct {
	shard *shard
	entry *entry
	since limit.Micros // when the renewal is due
}

// pendingReturn is a grant of an entry that goes back to the bucket of bound.
type pendingReturn struct {
	of      dueRenewal
	bound   policy.Bound
	receipt limit.Receipt
}

// scheduleRenewal schedules the renewal of a lease in the background, at from or at the entry's nextRenewal if that is
// later. The entry's shard is locked.
func (s *Leases) scheduleRenewal(sh *shard, e *entry, from limit.Micros) {
	if sh.closed {
		return
	}
	e.queued = true
	s.mu.Lock()
	s.due = append(s.due, dueRenewal{sh, e, max(from, e.nextRenewal)})
	s.mu.Unlock()
	s.wakeRun()
}

// scheduleReturn schedules the return of grants of an entry to the bucket of b. They were taken with b's policy.
func (s *Leases) scheduleReturn(d dueRenewal, b policy.Bound, grants [2]grant) {
	s.mu.Lock()
	for _, g := range grants {
		if b.Cost = g.tokens; b.Cost > 0 {
			s.returns = append(s.returns, pendingReturn{d, b, g.receipt})
		}
	}
	s.mu.Unlock()
	s.wakeRun()
}

// wakeRun wakes Run, unless a signal is pending already.
func (s *Leases) wakeRun() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// Wake returns a channel that receives when a step is due earlier than the last one returned, for a program that calls
// Step in place of Run.
func (s *Leases) Wake() <-chan struct{} { return s.wake }

// Run renews leases before they run low, returns those that are not needed, and returns all of them when ctx ends,
// which is not an error. It is called once. Requests may go on after it has ended; nothing is leased then.
//
// It is a loop over [Leases.Step], for a program that waits in real time.
func (s *Leases) Run(ctx context.Context) error {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			s.close()
			s.callStore(ctx, s.returnGrants)
			return nil
		case <-timer.C:
		case <-s.wake:
		}
		next := s.Step(ctx, s.now())
		timer.Reset(time.Duration(max(next-s.now(), minSleep)) * time.Microsecond)
	}
}

// Step does what is due at now, an instant of Options.Now, and returns the instant of the next step. A take may make a
// renewal due earlier than that, which [Leases.Wake] signals. Step is not called concurrently with itself or Run.
func (s *Leases) Step(ctx context.Context, now limit.Micros) (next limit.Micros) {
	nextSweep := s.sweepSome(now)
	s.callStore(ctx, s.renewDue)
	s.callStore(ctx, s.returnGrants)
	return s.nextDue(nextSweep)
}

// close ends all leases. What is drawn for requests that are not decided yet is spent by them, or lost.
func (s *Leases) close() {
	for i := range s.shards {
		sh := &s.shards[i]
		sh.mu.Lock()
		sh.closed = true
		for _, e := range sh.entries {
			e.queued = false
		}
		sh.mu.Unlock()
	}
	s.mu.Lock()
	s.due = nil
	s.mu.Unlock()
	s.sweep(forever)
}

// callStore calls task with a timeout of its own. It outlives the end of Run: a grant whose answer is not read is lost.
func (s *Leases) callStore(ctx context.Context, task func(context.Context)) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), storeTimeout)
	defer cancel()
	task(ctx)
}

// nextDue returns the instant of the next renewal, or before if that is earlier.
func (s *Leases) nextDue(before limit.Micros) limit.Micros {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range s.due {
		before = min(before, s.due[i].since)
	}
	return before
}

// renewDue renews the leases that are due by now.
func (s *Leases) renewDue(ctx context.Context) {
	now := s.now()
	s.mu.Lock()
	later := slices.DeleteFunc(slices.Clone(s.due), func(d dueRenewal) bool { return d.since <= now })
	all := slices.DeleteFunc(s.due, func(d dueRenewal) bool { return d.since > now })
	s.due = later
	s.mu.Unlock()
	for some := range slices.Chunk(all, batch) {
		r := renewals{calledAt: s.now()}
		for _, d := range some {
			s.prepare(&r, d)
		}
		s.takeGrants(ctx, &r)
	}
}

// renewals is one call of the central store for several buckets, each of which is granted or not on its own.
type renewals struct {
	calledAt limit.Micros // this node's clock before the call
	list     []renewal
	bounds   []policy.Bound
	statuses []decision.Status
}

// renewal is one bucket's part of a call.
type renewal struct {
	dueRenewal
	epoch uint64
	ends  int // its bounds end here, and begin where the bounds of the renewal before end
}

// prepare adds the renewal of a lease to a call, unless it is not worth it now.
func (s *Leases) prepare(r *renewals, d dueRenewal) {
	live := int64(s.nodes(d.entry.key.Namespace))
	d.shard.mu.Lock()
	defer d.shard.mu.Unlock()
	e := d.entry
	n := e.renewalSize(live, r.calledAt)
	if n == 0 {
		e.pause(r.calledAt)
		return
	}
	e.holdings.beginRenewal(n)
	r.bounds = e.splitRequest(r.bounds, n)
	r.list = append(r.list, renewal{dueRenewal: d, epoch: e.epoch, ends: len(r.bounds)})
}

// takeGrants calls the central store for renewals.
func (s *Leases) takeGrants(ctx context.Context, r *renewals) {
	if len(r.list) == 0 {
		return
	}
	r.statuses = make([]decision.Status, len(r.bounds))
	s.renewals.Add(1)
	if err := s.central.Take(ctx, r.bounds, r.statuses); err != nil {
		clear(r.statuses) // a misuse error: nothing was spent
	}
	begins := 0
	for i := range r.list {
		part := &r.list[i]
		bounds, statuses := r.bounds[begins:part.ends], r.statuses[begins:part.ends]
		begins = part.ends
		if !answered(&statuses[0]) {
			s.failed.Add(1)
		}
		s.finishRenewal(part, bounds, statuses, r.calledAt)
	}
	s.recordRenewalTime(r)
	if s.observer != nil {
		s.observer(r.bounds, r.statuses)
	}
}

// recordRenewalTime updates the expected duration of renewals, from when they are due: twice the recent duration and a
// millisecond.
func (s *Leases) recordRenewalTime(r *renewals) {
	lasted, now := limit.Micros(0), s.now()
	for i := range r.list {
		lasted = max(lasted, now-r.list[i].since)
	}
	before := limit.Micros(s.renewalTime.Load())
	if lasted = 2*lasted + limit.Second/1000; lasted < before {
		lasted = (7*before + lasted) / 8
	}
	s.renewalTime.Store(int64(lasted))
}

// finishRenewal applies the answer to a renewal. What was granted under a limit that has changed meanwhile goes back.
func (s *Leases) finishRenewal(r *renewal, bounds []policy.Bound, statuses []decision.Status, calledAt limit.Micros) {
	r.shard.mu.Lock()
	defer r.shard.mu.Unlock()
	e := r.entry
	if e.epoch == r.epoch {
		if e.applyRenewal(bounds, statuses, calledAt, s.now(), s.denialMemory) {
			s.scheduleRenewal(r.shard, e, calledAt)
		}
		for i := range bounds {
			bounds[i].Policy = e.terms.policy // for the observer
		}
		return
	}
	e.pause(calledAt)
	for i := range bounds {
		if cost := bounds[i].Cost; answered(&statuses[i]) && statuses[i].Charged {
			e.holdings.sums.Granted += cost
			e.holdings.returning += cost
			s.scheduleReturn(r.dueRenewal, bounds[i], [2]grant{{tokens: cost, receipt: statuses[i].Receipt}})
		}
	}
}

// returnGrants returns the withdrawn grants to their buckets.
func (s *Leases) returnGrants(ctx context.Context) {
	s.mu.Lock()
	all := s.returns
	s.returns = nil
	s.mu.Unlock()
	if s.fixedHash != nil { // a sweep visits its entries in any order
		slices.SortStableFunc(all, func(a, b pendingReturn) int {
			return cmp.Compare(s.fixedHash(a.bound.Key), s.fixedHash(b.bound.Key))
		})
	}
	for some := range slices.Chunk(all, batch) {
		s.refund(ctx, some)
	}
}

// refund returns one batch of grants, and records what the buckets got back.
func (s *Leases) refund(ctx context.Context, some []pendingReturn) {
	bounds, statuses := make([]policy.Bound, len(some)), make([]decision.Status, len(some))
	for i, b := range some {
		bounds[i] = b.bound
		statuses[i] = decision.Status{Receipt: b.receipt, Source: decision.Redis, Charged: true}
	}
	s.refunds.Add(1)
	if err := s.central.Settle(ctx, bounds, statuses, nil); err != nil {
		clear(statuses) // a misuse error: nothing was returned
	}
	for i, b := range some {
		b.of.shard.mu.Lock()
		b.of.entry.holdings.endReturn(b.bound.Cost, min(-statuses[i].Settled, b.bound.Cost))
		b.of.shard.mu.Unlock()
	}
}
