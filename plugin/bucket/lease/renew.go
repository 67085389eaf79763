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
	// patience bounds how long a renewal, or the end of Run, waits for the shared store.
	patience = time.Second
	// soonest is how long Run sleeps at least, unless it is woken, though the clock should stand.
	soonest = limit.Second / 1000
)

// due is a bucket whose lease runs dry.
type due struct {
	shard *shard
	entry *entry
	since limit.Micros // from when on it is to be renewed
}

// back is a grant of an entry that the bucket of bound gets back.
type back struct {
	of      due
	bound   policy.Bound
	receipt limit.Receipt
}

// renewSoon has a lease renewed in the background, from an instant on and when its entry no longer rests. The entry's
// shard is locked.
func (s *Store) renewSoon(sh *shard, e *entry, from limit.Micros) {
	if sh.closed {
		return
	}
	s.queue(due{sh, e, max(from, e.resting)})
	s.rouse()
}

func (s *Store) queue(d due) {
	d.entry.queued = true
	s.mu.Lock()
	defer s.mu.Unlock()
	s.due = append(s.due, d)
}

// giveBackSoon has grants of an entry given back to the bucket of b, which was asked for them with b's policy.
func (s *Store) giveBackSoon(of due, b policy.Bound, grants [2]grant) {
	s.mu.Lock()
	for _, g := range grants {
		if b.Cost = g.tokens; b.Cost > 0 {
			s.backs = append(s.backs, back{of, b, g.receipt})
		}
	}
	s.mu.Unlock()
	s.rouse()
}

// rouse wakes Run, unless it will wake anyway.
func (s *Store) rouse() {
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
			s.work(ctx, s.giveBack)
			return nil
		case <-timer.C:
		case <-s.wake:
		}
		sweeps = s.step(ctx, sweeps)
		timer.Reset(time.Duration(max(s.next(sweeps)-s.now(), soonest)) * time.Microsecond)
	}
}

// step does what is due by now, and returns when the next sweep is.
func (s *Store) step(ctx context.Context, sweeps limit.Micros) limit.Micros {
	if now := s.now(); now >= sweeps {
		s.sweep(now - old)
		sweeps = now + span
	}
	s.work(ctx, s.renew)
	s.work(ctx, s.giveBack)
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
	s.sweep(noLimit)
}

// work lets a task talk to the shared store. What was sent is waited for, though Run should end: an answer that nobody
// reads is a lease lost.
func (s *Store) work(ctx context.Context, task func(context.Context)) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), patience)
	defer cancel()
	task(ctx)
}

// next is when a bucket that is due can be renewed, if that is before an instant.
func (s *Store) next(before limit.Micros) limit.Micros {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range s.due {
		before = min(before, s.due[i].since)
	}
	return before
}

// renew renews what is due.
func (s *Store) renew(ctx context.Context) {
	now := s.now()
	s.mu.Lock()
	later := slices.DeleteFunc(slices.Clone(s.due), func(d due) bool { return d.since <= now })
	all := slices.DeleteFunc(s.due, func(d due) bool { return d.since > now })
	s.due = later
	s.mu.Unlock()
	for some := range slices.Chunk(all, batch) {
		r := renewals{asked: s.now()}
		for _, d := range some {
			s.prepare(&r, d)
		}
		s.take(ctx, &r)
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
	due
	epoch uint64
	ends  int // its bounds are those before, from the end of the renewal before it
}

// prepare makes a renewal of what is due, unless it is not worth one now.
func (s *Store) prepare(r *renewals, d due) {
	live := int64(s.live(d.entry.key.Namespace))
	d.shard.mu.Lock()
	defer d.shard.mu.Unlock()
	e := d.entry
	n := e.wants(live, r.asked)
	if n == 0 {
		e.pause(r.asked)
		return
	}
	e.ledger.ask(n)
	r.bounds = e.divide(r.bounds, n)
	r.of = append(r.of, renewal{due: d, epoch: e.epoch, ends: len(r.bounds)})
}

// take asks the shared store for renewals.
func (s *Store) take(ctx context.Context, r *renewals) {
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
		s.finish(of, bounds, statuses, r.asked)
	}
	s.learnLasting(r)
	if s.saw != nil {
		s.saw(r.bounds, r.statuses)
	}
}

// learnLasting notes how long renewals last from when they are due: twice as long as lately, and a millisecond more, is
// reckoned with.
func (s *Store) learnLasting(r *renewals) {
	lasted, now := limit.Micros(0), s.now()
	for i := range r.of {
		lasted = max(lasted, now-r.of[i].since)
	}
	before := limit.Micros(s.lasts.Load())
	if lasted = 2*lasted + limit.Second/1000; lasted < before {
		lasted = (7*before + lasted) / 8
	}
	s.lasts.Store(int64(lasted))
}

// finish takes the answer to a renewal in. What was granted under a limit that has changed meanwhile goes back.
func (s *Store) finish(r *renewal, bounds []policy.Bound, statuses []decision.Status, asked limit.Micros) {
	r.shard.mu.Lock()
	defer r.shard.mu.Unlock()
	e := r.entry
	if e.epoch == r.epoch {
		if e.renewed(bounds, statuses, asked, s.now(), s.longest) {
			s.queue(due{r.shard, e, max(asked, e.resting)})
			s.rouse()
		}
		for i := range bounds {
			bounds[i].Policy = e.terms.asked // for Saw
		}
		return
	}
	e.pause(asked)
	for i := range bounds {
		if cost := bounds[i].Cost; answered(&statuses[i]) && statuses[i].Charged {
			e.ledger.sums.Granted += cost
			e.ledger.leaving += cost
			s.giveBackSoon(r.due, bounds[i], [2]grant{{tokens: cost, receipt: statuses[i].Receipt}})
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
			if now-e.touched >= idle {
				since = noLimit
			}
			if e.terms != nil && e.ledger.free() > 0 {
				s.withdraw(sh, e, since, now)
			}
			if e.idle(now) {
				sh.forget(hash, e)
			}
		}
		sh.mu.Unlock()
	}
}

func (s *Store) withdraw(sh *shard, e *entry, before, now limit.Micros) {
	if grants := e.ledger.withdraw(before, now); grants != [2]grant{} {
		s.giveBackSoon(due{shard: sh, entry: e}, policy.Bound{Policy: e.terms.leased, Key: e.key}, grants)
	}
}

// giveBack gives back what was taken back.
func (s *Store) giveBack(ctx context.Context) {
	s.mu.Lock()
	all := s.backs
	s.backs = nil
	s.mu.Unlock()
	for some := range slices.Chunk(all, batch) {
		s.refund(ctx, some)
	}
}

func (s *Store) refund(ctx context.Context, some []back) {
	bounds, statuses := make([]policy.Bound, len(some)), make([]decision.Status, len(some))
	for i, b := range some {
		bounds[i] = b.bound
		statuses[i] = decision.Status{Receipt: b.receipt, Source: decision.Redis, Charged: true}
	}
	s.refunds.Add(1)
	s.shared.Refund(ctx, bounds, statuses)
	for i, b := range some {
		b.of.shard.mu.Lock()
		b.of.entry.ledger.returned(b.bound.Cost, min(statuses[i].Returned, b.bound.Cost))
		b.of.shard.mu.Unlock()
	}
}
