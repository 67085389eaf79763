package lease

import (
	"context"
	"slices"
	"time"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/decision"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/limit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/policy"
)

const (
	// batch is how many buckets one call of the shared store is for.
	batch = 32
	// storeTimeout bounds how long a renewal, or the end of Run, waits for the shared store.
	storeTimeout = time.Second
	// minSleep is how long Run sleeps at least, unless it is woken, though the clock should stand.
	minSleep = limit.Second / 1000
)

// dueRenewal is a bucket whose lease runs dry.
type dueRenewal struct {
	shard *shard
	entry *entry
	since limit.Micros // from when on it is to be renewed
}

// pendingReturn is a grant of an entry that the bucket of bound gets pendingReturn.
type pendingReturn struct {
	of      dueRenewal
	bound   policy.Bound
	receipt limit.Receipt
}

// scheduleRenewal has a lease renewed in the background, from an instant on and when its entry no longer rests. The entry's
// shard is locked.
func (s *Store) scheduleRenewal(sh *shard, e *entry, from limit.Micros) {
	if sh.closed {
		return
	}
	s.enqueue(dueRenewal{sh, e, max(from, e.nextRenewal)})
	s.wakeRun()
}

func (s *Store) enqueue(d dueRenewal) {
	d.entry.queued = true
	s.mu.Lock()
	defer s.mu.Unlock()
	s.due = append(s.due, d)
}

// scheduleReturn has grants of an entry given back to the bucket of b, which was asked for them with b's policy.
func (s *Store) scheduleReturn(of dueRenewal, b policy.Bound, grants [2]grant) {
	s.mu.Lock()
	for _, g := range grants {
		if b.Cost = g.tokens; b.Cost > 0 {
			s.returns = append(s.returns, pendingReturn{of, b, g.receipt})
		}
	}
	s.mu.Unlock()
	s.wakeRun()
}

// wakeRun wakes Run, unless it will wake anyway.
func (s *Store) wakeRun() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// Run renews leases before they run dry, gives back those that nobody needs, and all of them when ctx ends, which is not
// an error. It is called once. Requests may go on after it has ended; nothing is leased then.
func (s *Store) Run(ctx context.Context) error {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for sweeps := s.now() + span; ; {
		select {
		case <-ctx.Done():
			s.close()
			s.callStore(ctx, s.returnGrants)
			return nil
		case <-timer.C:
		case <-s.wake:
		}
		sweeps = s.step(ctx, sweeps)
		timer.Reset(time.Duration(max(s.nextDue(sweeps)-s.now(), minSleep)) * time.Microsecond)
	}
}

// step does what is due by now, and returns when the next sweep is.
func (s *Store) step(ctx context.Context, sweeps limit.Micros) limit.Micros {
	if now := s.now(); now >= sweeps {
		s.sweep(now - maxGrantAge)
		sweeps = now + span
	}
	s.callStore(ctx, s.renewDue)
	s.callStore(ctx, s.returnGrants)
	return sweeps
}

// close ends all leases. What is drawn for requests that are still undecided is spent by them, or lost.
func (s *Store) close() {
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

// callStore lets a task talk to the shared store. What was sent is waited for, though Run should end: an answer that nobody
// reads is a lease lost.
func (s *Store) callStore(ctx context.Context, task func(context.Context)) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), storeTimeout)
	defer cancel()
	task(ctx)
}

// nextDue is when a bucket that is due can be renewed, if that is before an instant.
func (s *Store) nextDue(before limit.Micros) limit.Micros {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range s.due {
		before = min(before, s.due[i].since)
	}
	return before
}

// renewDue renews what is due.
func (s *Store) renewDue(ctx context.Context) {
	now := s.now()
	s.mu.Lock()
	later := slices.DeleteFunc(slices.Clone(s.due), func(d dueRenewal) bool { return d.since <= now })
	all := slices.DeleteFunc(s.due, func(d dueRenewal) bool { return d.since > now })
	s.due = later
	s.mu.Unlock()
	for some := range slices.Chunk(all, batch) {
		r := renewals{asked: s.now()}
		for _, d := range some {
			s.prepare(&r, d)
		}
		s.takeGrants(ctx, &r)
	}
}

// renewals are asked for in one call, each of which is granted, or not, alone.
type renewals struct {
	asked    limit.Micros // this node's clock before
	of       []renewal
	bounds   []policy.Bound
	statuses []decision.Status
}

// renewal is one bucket's part of a call.
type renewal struct {
	dueRenewal
	epoch uint64
	ends  int // its bounds are those before, from the end of the renewal before it
}

// prepare makes a renewal of what is due, unless it is not worth one now.
func (s *Store) prepare(r *renewals, d dueRenewal) {
	live := int64(s.live(d.entry.key.Namespace))
	d.shard.mu.Lock()
	defer d.shard.mu.Unlock()
	e := d.entry
	n := e.renewalSize(live, r.asked)
	if n == 0 {
		e.pause(r.asked)
		return
	}
	e.ledger.beginRenewal(n)
	r.bounds = e.splitRequest(r.bounds, n)
	r.of = append(r.of, renewal{dueRenewal: d, epoch: e.epoch, ends: len(r.bounds)})
}

// takeGrants asks the shared store for renewals.
func (s *Store) takeGrants(ctx context.Context, r *renewals) {
	if len(r.of) == 0 {
		return
	}
	r.statuses = make([]decision.Status, len(r.bounds))
	s.renewals.Add(1)
	if err := s.shared.Take(ctx, r.bounds, r.statuses); err != nil {
		clear(r.statuses) // misuse, by which nothing was spent
	}
	begins := 0
	for i := range r.of {
		of := &r.of[i]
		bounds, statuses := r.bounds[begins:of.ends], r.statuses[begins:of.ends]
		begins = of.ends
		if !answered(&statuses[0]) {
			s.failed.Add(1)
		}
		s.finishRenewal(of, bounds, statuses, r.asked)
	}
	s.recordRenewalTime(r)
	if s.observe != nil {
		s.observe(r.bounds, r.statuses)
	}
}

// recordRenewalTime notes how long renewals last from when they are due: twice as long as lately, and a millisecond more, is
// reckoned with.
func (s *Store) recordRenewalTime(r *renewals) {
	lasted, now := limit.Micros(0), s.now()
	for i := range r.of {
		lasted = max(lasted, now-r.of[i].since)
	}
	before := limit.Micros(s.renewalTime.Load())
	if lasted = 2*lasted + limit.Second/1000; lasted < before {
		lasted = (7*before + lasted) / 8
	}
	s.renewalTime.Store(int64(lasted))
}

// finishRenewal takes the answer to a renewal in. What was granted under a limit that has changed meanwhile goes back.
func (s *Store) finishRenewal(r *renewal, bounds []policy.Bound, statuses []decision.Status, asked limit.Micros) {
	r.shard.mu.Lock()
	defer r.shard.mu.Unlock()
	e := r.entry
	if e.epoch == r.epoch {
		if e.applyRenewal(bounds, statuses, asked, s.now(), s.denialMemory) {
			s.enqueue(dueRenewal{r.shard, e, max(asked, e.nextRenewal)})
			s.wakeRun()
		}
		for i := range bounds {
			bounds[i].Policy = e.terms.policy // for Saw
		}
		return
	}
	e.pause(asked)
	for i := range bounds {
		if cost := bounds[i].Cost; answered(&statuses[i]) && statuses[i].Charged {
			e.ledger.sums.Granted += cost
			e.ledger.returning += cost
			s.scheduleReturn(r.dueRenewal, bounds[i], [2]grant{{tokens: cost, receipt: statuses[i].Receipt}})
		}
	}
}

// sweep takes back what was leased before an instant or is not drawn from, and forgets what is idle.
func (s *Store) sweep(before limit.Micros) {
	for i := range s.shards {
		sh := &s.shards[i]
		sh.mu.Lock()
		now := s.now()
		for hash, e := range sh.entries {
			since := before
			if now-e.lastUsed >= idleAfter {
				since = forever
			}
			if e.terms != nil && e.ledger.available() > 0 {
				s.withdrawGrants(sh, e, since, now)
			}
			if e.isIdle(now) {
				sh.remove(hash, e)
			}
		}
		sh.mu.Unlock()
	}
}

func (s *Store) withdrawGrants(sh *shard, e *entry, before, now limit.Micros) {
	if grants := e.ledger.withdraw(before, now); grants != [2]grant{} {
		s.scheduleReturn(dueRenewal{shard: sh, entry: e}, policy.Bound{Policy: e.terms.leased, Key: e.key}, grants)
	}
}

// returnGrants gives back what was taken back.
func (s *Store) returnGrants(ctx context.Context) {
	s.mu.Lock()
	all := s.returns
	s.returns = nil
	s.mu.Unlock()
	for some := range slices.Chunk(all, batch) {
		s.refund(ctx, some)
	}
}

func (s *Store) refund(ctx context.Context, some []pendingReturn) {
	bounds, statuses := make([]policy.Bound, len(some)), make([]decision.Status, len(some))
	for i, b := range some {
		bounds[i] = b.bound
		statuses[i] = decision.Status{Receipt: b.receipt, Source: decision.Redis, Charged: true}
	}
	s.refunds.Add(1)
	s.shared.Refund(ctx, bounds, statuses)
	for i, b := range some {
		b.of.shard.mu.Lock()
		b.of.entry.ledger.endReturn(b.bound.Cost, min(statuses[i].Returned, b.bound.Cost))
		b.of.shard.mu.Unlock()
	}
}
