package redisstore

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/bits"
	"sync"
	"sync/atomic"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/decision"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/policy"
)

// Store keeps buckets in one Redis, behind Sentinels or not, or in a Redis Cluster. It is safe for concurrent use.
type Store struct {
	transport transport
	log       *slog.Logger
	plans     sync.Pool // of *plan

	foreign, taken, lost atomic.Uint64
}

// Stats are a store's numbers since its start.
type Stats struct {
	Foreign     uint64 // values that were not of our form, read as empty buckets
	Taken       uint64 // keys of ours that hold something else, whose bounds were left out of decisions
	LostRefunds uint64 // calls that were to give back what a refused request had spent, and failed
}

// newStore makes a store that runs its script by t, which must run takeScript.
func newStore(t transport, log *slog.Logger) *Store {
	return &Store{transport: t, log: log, plans: sync.Pool{New: func() any { return new(plan) }}}
}

// Stats are the store's numbers.
func (s *Store) Stats() Stats {
	return Stats{Foreign: s.foreign.Load(), Taken: s.taken.Load(), LostRefunds: s.lost.Load()}
}

// Take implements admit.Buckets. A single Redis decides all bounds in one atomic round trip. In a cluster each group of
// bounds with one hash tag is decided so, all groups at once; if one refuses, what the others have spent is given back,
// once: a refund that is lost, or that comes too late, leaves a request charged that was refused.
//
// An error, which wraps an [Error] of the connection, means that a group did not answer and that no status is filled
// in. What other groups have spent stays spent.
func (s *Store) Take(ctx context.Context, bounds []policy.Bound, statuses []decision.Status) error {
	if len(bounds) != len(statuses) {
		return fmt.Errorf("take %d bounds: there is room for %d statuses", len(bounds), len(statuses))
	}
	if len(bounds) == 0 {
		return nil
	}
	if s.transport.Groups() && !oneGroup(bounds) {
		return s.takeGroups(ctx, bounds, statuses)
	}
	return s.takeOne(ctx, bounds, statuses)
}

// oneGroup tells whether all bounds have one hash tag.
func oneGroup(bounds []policy.Bound) bool {
	for i := range bounds[1:] {
		if !together(&bounds[0].Key, &bounds[i+1].Key) {
			return false
		}
	}
	return true
}

func (s *Store) takeOne(ctx context.Context, bounds []policy.Bound, statuses []decision.Status) error {
	p := s.plans.Get().(*plan)
	if err := s.ask(ctx, p, bounds); err != nil {
		return err // p is not used again: the command may still be on its way
	}
	err := p.settle(statuses, true)
	p.forget()
	s.plans.Put(p)
	return err
}

// ask runs the script for bounds and reads its reply.
func (s *Store) ask(ctx context.Context, p *plan, bounds []policy.Bound) error {
	if err := p.compile(bounds); err != nil {
		return err
	}
	reply, err := s.transport.Run(ctx, p.keys, p.args)
	if err != nil {
		return err
	}
	foreign, taken, err := p.read(reply)
	s.count(&s.foreign, foreign, "values in Redis were not of our form and read as empty buckets", p)
	s.count(&s.taken, taken, "keys in Redis hold something that is not ours: their limits do not apply", p)
	return err
}

// count adds n to a counter, and logs each time that it has doubled.
func (s *Store) count(counter *atomic.Uint64, n int, message string, p *plan) {
	if n == 0 {
		return
	}
	if after := counter.Add(uint64(n)); bits.Len64(after) > bits.Len64(after-uint64(n)) {
		s.log.Warn(message, "so_far", after, "among", p.keys)
	}
}

// part is the share of a request that one group decides.
type part struct {
	of       []int // the request's bounds
	bounds   []policy.Bound
	statuses []decision.Status
	plan     *plan
	err      error
}

func (s *Store) takeGroups(ctx context.Context, bounds []policy.Bound, statuses []decision.Status) error {
	parts := split(bounds)
	each(parts, func(p *part) { p.err = s.ask(ctx, p.plan, p.bounds) })
	var errs []error
	denied := false
	for i := range parts {
		errs = append(errs, parts[i].err)
		denied = denied || (parts[i].err == nil && parts[i].plan.denied())
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	if denied {
		each(parts, func(p *part) { s.giveBack(ctx, p.plan) })
	}
	for i := range parts {
		p := &parts[i]
		if err := p.plan.settle(p.statuses, !denied); err != nil {
			return err
		}
		for j, bound := range p.of {
			statuses[bound] = p.statuses[j]
		}
	}
	return nil
}

// giveBack gives back what the plan's call has spent.
func (s *Store) giveBack(ctx context.Context, p *plan) {
	var refund plan
	if p.denied() || !refund.refund(p) {
		return
	}
	if _, err := s.transport.Run(ctx, refund.keys, refund.args); err != nil {
		s.count(&s.lost, 1, "what a refused request had spent could not be given back", &refund)
	}
}

// split shares the bounds out to groups of one hash tag.
func split(bounds []policy.Bound) []part {
	var parts []part
next:
	for i := range bounds {
		for j := range parts {
			if p := &parts[j]; together(&p.bounds[0].Key, &bounds[i].Key) {
				p.of, p.bounds = append(p.of, i), append(p.bounds, bounds[i])
				continue next
			}
		}
		parts = append(parts, part{of: []int{i}, bounds: []policy.Bound{bounds[i]}, plan: new(plan)})
	}
	for i := range parts {
		parts[i].statuses = make([]decision.Status, len(parts[i].bounds))
	}
	return parts
}

// each does something for all parts at once, and waits.
func each(parts []part, do func(*part)) {
	var others sync.WaitGroup
	for i := range parts[1:] {
		others.Go(func() { do(&parts[i+1]) })
	}
	do(&parts[0])
	others.Wait()
}
