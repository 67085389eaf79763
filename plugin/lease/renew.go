package lease

import (
	"cmp"
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
	// sweepEvery is how many rounds pass between two looks for leases that nobody draws from.
	sweepEvery = 5
	// patience bounds how long a renewal, or the end of Run, waits for the shared store.
	patience = time.Second
)

// due is a bucket whose lease runs dry.
type due struct {
	shard *shard
	entry *entry
}

// back is a grant that the bucket of bound gets back.
type back struct {
	bound policy.Bound
	at    limit.Micros
}

// renewSoon has a lease renewed in the background. The entry's shard is locked.
func (s *Store) renewSoon(sh *shard, e *entry) {
	e.queued = true
	s.mu.Lock()
	s.due = append(s.due, due{sh, e})
	s.mu.Unlock()
	if s.now() >= e.resting {
		s.rouse()
	}
}

// giveBackSoon has grants given back to the bucket of b, which was asked for them with b's policy.
func (s *Store) giveBackSoon(b policy.Bound, grants [2]grant) {
	s.mu.Lock()
	for _, g := range grants {
		if b.Cost = g.tokens; b.Cost > 0 {
			s.backs = append(s.backs, back{b, g.at})
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
// an error. It is called once.
func (s *Store) Run(ctx context.Context) error {
	ticker := time.NewTicker(time.Duration(round) * time.Microsecond)
	defer ticker.Stop()
	for rounds := 1; ; {
		select {
		case <-ctx.Done():
			s.sweep(noLimit)
			s.work(ctx, s.giveBack)
			return nil
		case <-ticker.C:
			if rounds++; rounds%sweepEvery == 0 {
				s.sweep(s.now() - old)
			}
		case <-s.wake:
		}
		s.work(ctx, s.renew)
		s.work(ctx, s.giveBack)
	}
}

// work lets a task talk to the shared store. What was sent is waited for, though Run should end: an answer that nobody
// reads is a lease lost.
func (s *Store) work(ctx context.Context, task func(context.Context)) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), patience)
	defer cancel()
	task(ctx)
}

// renew renews what is due.
func (s *Store) renew(ctx context.Context) {
	s.mu.Lock()
	all := s.due
	s.due = nil
	s.mu.Unlock()
	for some := range slices.Chunk(all, batch) {
		s.renewSome(ctx, some)
	}
}

// renewal is one bucket's part of a call.
type renewal struct {
	due
	epoch uint64
}

// renewSome asks for all of some leases at once, each of which is granted alone.
func (s *Store) renewSome(ctx context.Context, some []due) {
	var renewals []renewal
	var bounds []policy.Bound
	asked := s.now()
	for _, d := range some {
		if b, r, ok := s.prepare(d, asked); ok {
			bounds, renewals = append(bounds, b), append(renewals, r)
		}
	}
	if len(bounds) == 0 {
		return
	}
	statuses := make([]decision.Status, len(bounds))
	s.renewals.Add(1)
	if err := s.shared.Take(ctx, bounds, statuses); err != nil {
		clear(statuses) // misuse, by which nothing was spent
	}
	for i := range renewals {
		s.finish(&renewals[i], &bounds[i], &statuses[i], asked)
	}
	if s.saw != nil {
		s.saw(bounds, statuses)
	}
}

// prepare makes a renewal of what is due, unless it is not worth one now.
func (s *Store) prepare(d due, now limit.Micros) (policy.Bound, renewal, bool) {
	live := int64(s.live(d.entry.key.Namespace))
	d.shard.mu.Lock()
	defer d.shard.mu.Unlock()
	e := d.entry
	if now < e.resting {
		s.renewSoon(d.shard, e)
		return policy.Bound{}, renewal{}, false
	}
	n := e.wants(live, now)
	if n == 0 {
		e.pause(now)
		return policy.Bound{}, renewal{}, false
	}
	e.ledger.ask(n)
	return policy.Bound{Policy: e.terms.leased, Key: e.key, Cost: n}, renewal{due: d, epoch: e.epoch}, true
}

// finish takes the answer to a renewal in. What was granted under a limit that has changed meanwhile goes back.
func (s *Store) finish(r *renewal, b *policy.Bound, status *decision.Status, asked limit.Micros) {
	r.shard.mu.Lock()
	defer r.shard.mu.Unlock()
	e := r.entry
	if e.epoch == r.epoch {
		e.renewed(b.Cost, status, asked)
		b.Policy = e.terms.asked // for Saw
		if e.queued {
			s.renewSoon(r.shard, e)
		}
		return
	}
	e.pause(asked)
	if answered(status) && status.Charged {
		e.ledger.sums.Granted += b.Cost
		e.ledger.sums.Returned += b.Cost
		s.giveBackSoon(*b, [2]grant{{tokens: b.Cost, at: status.Now}})
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
				s.withdraw(e, since, now)
			}
			if e.idle(now) {
				sh.forget(hash, e)
			}
		}
		sh.mu.Unlock()
	}
}

func (s *Store) withdraw(e *entry, before, now limit.Micros) {
	if grants := e.ledger.withdraw(before, now); grants != [2]grant{} {
		s.giveBackSoon(policy.Bound{Policy: e.terms.leased, Key: e.key}, grants)
	}
}

// giveBack gives back what was taken back. What was granted at one instant goes in one call.
func (s *Store) giveBack(ctx context.Context) {
	s.mu.Lock()
	all := s.backs
	s.backs = nil
	s.mu.Unlock()
	slices.SortStableFunc(all, func(a, b back) int { return cmp.Compare(a.at, b.at) })
	for len(all) > 0 {
		n := 1
		for n < min(len(all), batch) && all[n].at == all[0].at {
			n++
		}
		s.refund(ctx, all[:n])
		all = all[n:]
	}
}

func (s *Store) refund(ctx context.Context, some []back) {
	bounds, statuses := make([]policy.Bound, len(some)), make([]decision.Status, len(some))
	for i, b := range some {
		bounds[i] = b.bound
		statuses[i] = decision.Status{Now: b.at, Source: decision.Redis, Charged: true}
	}
	s.refunds.Add(1)
	s.shared.Refund(ctx, bounds, statuses)
}
