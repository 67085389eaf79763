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
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/limit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/policy"
)

// Store keeps buckets in one Redis, behind Sentinels or not, or in a Redis Cluster. It is safe for concurrent use.
type Store struct {
	name      string
	transport transport
	script    *script // how bounds are taken
	log       *slog.Logger
	plans     sync.Pool // of *plan

	foreign, taken, lost, failed, calls atomic.Uint64
}

// Stats are a store's numbers since its start.
type Stats struct {
	Foreign     uint64 // values that were not of our form, read as empty buckets
	Taken       uint64 // keys of ours that hold something else, whose bounds were not answered
	LostRefunds uint64 // calls that were to give back what a refused request had spent, and failed
	Failed      uint64 // calls of the script without an answer, those that a gate held back not counted
	Calls       uint64 // of scripts that buckets were taken or given back with, those that a gate held back counted too
}

// newStore makes a store that takes bounds with the script, and runs it by t.
func newStore(name string, t transport, script *script, log *slog.Logger) *Store {
	return &Store{name: name, transport: t, script: script, log: log.With("redis", name), plans: sync.Pool{New: func() any { return new(plan) }}}
}

// Name is where the store is, as its settings say it, without secrets.
func (s *Store) Name() string { return s.name }

// Stats are the store's numbers.
func (s *Store) Stats() Stats {
	return Stats{Foreign: s.foreign.Load(), Taken: s.taken.Load(), LostRefunds: s.lost.Load(), Failed: s.failed.Load(), Calls: s.calls.Load()}
}

// Take implements admit.Buckets. A single Redis decides all bounds in one atomic round trip. In a cluster each group of
// bounds with one hash tag is decided so, all groups at once; if one refuses, what the others have spent is given back,
// once: a refund that is lost, or that comes too late, leaves a request charged that was refused.
//
// Where no answer comes the statuses of the group's bounds are [decision.Unanswered] and say why; as Wait they have how
// long it is not worth asking again, if that is known. An error means that the request cannot be asked at all.
func (s *Store) Take(ctx context.Context, bounds []policy.Bound, statuses []decision.Status) error {
	if len(bounds) != len(statuses) {
		return fmt.Errorf("take %d bounds: there is room for %d statuses", len(bounds), len(statuses))
	}
	clear(statuses)
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
	if err := p.compile(bounds); err != nil {
		return err
	}
	err := s.ask(ctx, p)
	if err == nil {
		err = p.settle(statuses, true)
	}
	if err != nil {
		s.unanswered(statuses, err)
		return nil // p is not used again: the command may still be on its way
	}
	p.forget()
	s.plans.Put(p)
	return nil
}

// ask runs the script for a compiled request and reads its reply.
func (s *Store) ask(ctx context.Context, p *plan) error {
	s.calls.Add(1)
	reply, err := s.transport.Run(ctx, s.script, p.keys, p.args)
	if err != nil {
		return err
	}
	foreign, taken, err := p.read(reply)
	s.count(&s.foreign, foreign, "values in Redis were not of our form and read as empty buckets", "among", p.keys)
	s.count(&s.taken, taken, "keys in Redis hold something that is not ours: the fail modes of their limits decide", "among", p.keys)
	return err
}

// unanswered tells why bounds have no answer. What a gate held back is not news.
func (s *Store) unanswered(statuses []decision.Status, err error) {
	status := decision.Status{Failure: failure(err)}
	var known *Error
	if errors.As(err, &known) {
		status.Wait = limit.Micros(known.Wait.Microseconds())
	}
	for i := range statuses {
		statuses[i] = status
	}
	if !errors.Is(err, errGate) {
		s.count(&s.failed, 1, "Redis did not answer: the fail modes of its limits decide", "error", err)
	}
}

// count adds n to a counter, and logs each time that it has doubled.
func (s *Store) count(counter *atomic.Uint64, n int, message, key string, value any) {
	if n == 0 {
		return
	}
	if after := counter.Add(uint64(n)); bits.Len64(after) > bits.Len64(after-uint64(n)) {
		s.log.Warn(message, "so_far", after, key, value)
	}
}

// part is the share of a request that one group decides.
type part struct {
	of       []int // the request's bounds
	bounds   []policy.Bound
	statuses []decision.Status
	plan     plan
	err      error
}

func (s *Store) takeGroups(ctx context.Context, bounds []policy.Bound, statuses []decision.Status) error {
	parts := split(bounds)
	for i := range parts {
		if err := parts[i].plan.compile(parts[i].bounds); err != nil {
			return err
		}
	}
	each(parts, func(p *part) { p.err = s.ask(ctx, &p.plan) })
	denied := false
	for i := range parts {
		denied = denied || (parts[i].err == nil && parts[i].plan.denied())
	}
	if denied {
		each(parts, func(p *part) {
			if p.err == nil && !p.plan.denied() {
				s.giveBack(ctx, p.plan.spentBounds(), p.plan.now)
			}
		})
	}
	for i := range parts {
		p := &parts[i]
		if p.err == nil {
			p.err = p.plan.settle(p.statuses, !denied)
		}
		if p.err != nil {
			s.unanswered(p.statuses, p.err)
		}
		for j, bound := range p.of {
			statuses[bound] = p.statuses[j]
		}
	}
	return nil
}

// Refund gives back what Take has spent for the bounds whose statuses are charged, and marks them as not charged. It is
// for a request that was refused for another reason after all. What is doubtful stays spent, and so does what a failing
// call was to give back: a bucket gets back what is certainly the request's own, once or never.
func (s *Store) Refund(ctx context.Context, bounds []policy.Bound, statuses []decision.Status) {
	var charged []policy.Bound
	var taken []limit.Micros
	for i := range statuses {
		if status := &statuses[i]; status.Charged && status.Source == decision.Redis {
			charged, taken = append(charged, bounds[i]), append(taken, status.Now)
			status.Charged = false
			status.Used, status.Remaining = status.Used-bounds[i].Cost, status.Remaining+bounds[i].Cost
		}
	}
	switch {
	case len(charged) == 0:
	case s.transport.Groups():
		each(split(charged), func(p *part) { s.giveBack(ctx, p.bounds, taken[p.of[0]]) })
	default:
		s.giveBack(ctx, charged, taken[0])
	}
}

// giveBack gives back to bounds of one group what was spent at an instant of their server's clock.
func (s *Store) giveBack(ctx context.Context, bounds []policy.Bound, taken limit.Micros) {
	if len(bounds) == 0 {
		return
	}
	var p plan
	err := p.refund(bounds, taken)
	if err == nil {
		s.calls.Add(1)
		_, err = s.transport.Run(ctx, s.script, p.keys, p.args)
	}
	if err != nil {
		s.count(&s.lost, 1, "what a refused request had spent could not be given back", "error", err)
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
		parts = append(parts, part{of: []int{i}, bounds: []policy.Bound{bounds[i]}})
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
