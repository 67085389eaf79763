package redis

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
	splitting *script // how subjects are split
	log       *slog.Logger
	plans     sync.Pool // of *plan
	levels    levels
	formats   formats
	reads     int // the newest form of buckets that this node reads

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
	s := &Store{name: name, transport: t, script: script, splitting: splitScript, reads: format, log: log.With("redis", name)}
	s.plans.New = func() any { return &plan{levels: &s.levels, formats: &s.formats} }
	return s
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
		return takeParts(ctx, s.addParts(nil, bounds, every(bounds)), statuses)
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
	s.splitCrowded(ctx, p)
	p.forget()
	s.plans.Put(p)
	return nil
}

// ask runs the script for a compiled request and reads its reply.
func (s *Store) ask(ctx context.Context, p *plan) error {
	reply, err := s.run(ctx, p)
	if err != nil {
		return err
	}
	foreign, taken, err := p.read(reply)
	s.count(&s.foreign, foreign, "values in Redis have a foreign format and were read as empty buckets", "among", p.keys)
	s.count(&s.taken, taken, "keys in Redis hold foreign values: the fail modes of their limits decide", "among", p.keys)
	return err
}

// mostTries is how often a request is made until the levels of its subjects are known. More than twice is rare:
// somebody would have to split a subject meanwhile.
const mostTries = 5

// errLevels means that the subjects of a request were split, or expired, between each try and the next.
var errLevels = fmt.Errorf("%w: the levels of its subjects change all the time", errReply)

// run runs the script for a compiled request, again where a subject is split otherwise than this node knew.
func (s *Store) run(ctx context.Context, p *plan) ([]any, error) {
	for range mostTries {
		s.calls.Add(1)
		reply, err := s.transport.Run(ctx, s.script, p.keys, p.args)
		if err != nil {
			return nil, err
		}
		again, err := p.relevel(reply)
		if err != nil || !again {
			return reply, err
		}
		if err := p.again(); err != nil {
			return nil, err
		}
	}
	return nil, errLevels
}

// splitCrowded splits the subjects that the reply calls crowded.
func (s *Store) splitCrowded(ctx context.Context, p *plan) {
	for _, number := range p.crowded {
		i, ok := number.(int64)
		if !ok || i < 1 || int(i) > len(p.subjects) {
			continue
		}
		of := &p.subjects[i-1]
		if err := s.split(ctx, of.key, of.level); err != nil {
			s.log.Debug("splitting a subject with many buckets failed", "error", err)
		}
	}
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
		s.count(&s.failed, 1, "Redis did not answer: the fail modes of the limits decide", "error", err)
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
	store  *Store
	of     []int // the request's bounds
	bounds []policy.Bound
	plan   plan
	err    error
}

// takeParts takes the parts of a request, which may lie in several Redis, all at once. If one denies, what the others
// have spent is refunded. What remains of that is a new receipt, and the conversion of a bucket that another limit wrote,
// as after any admission: see [limit.Limit.Advance]. Neither admits a token more.
func takeParts(ctx context.Context, parts []part, statuses []decision.Status) error {
	for i := range parts {
		p := &parts[i]
		p.plan.levels, p.plan.formats = &p.store.levels, &p.store.formats
		if err := p.plan.compile(p.bounds); err != nil {
			return err
		}
	}
	each(parts, func(p *part) { p.err = p.store.ask(ctx, &p.plan) })
	denied := false
	for i := range parts {
		denied = denied || (parts[i].err == nil && parts[i].plan.denied())
	}
	if denied {
		each(parts, func(p *part) {
			if p.err == nil && !p.plan.denied() {
				spent, receipts := p.plan.spentBounds()
				p.store.giveBack(ctx, spent, receipts)
			}
		})
	}
	for i := range parts {
		parts[i].report(ctx, statuses, !denied)
	}
	return nil
}

// report fills in the statuses of the part's bounds. charged is whether what they have spent stays spent.
func (p *part) report(ctx context.Context, statuses []decision.Status, charged bool) {
	of := make([]decision.Status, len(p.bounds))
	if p.err == nil {
		p.err = p.plan.settle(of, charged)
		p.store.splitCrowded(ctx, &p.plan)
	}
	if p.err != nil {
		p.store.unanswered(of, p.err)
	}
	for j, bound := range p.of {
		statuses[bound] = of[j]
	}
}

// Refund gives back what Take has spent for the bounds whose statuses are charged, marks them as not charged and says
// in Returned how much of it their buckets got. What is doubtful stays spent, and so does what a failing call was to
// give back: a bucket gets back what is certainly missing still, once or never.
func (s *Store) Refund(ctx context.Context, bounds []policy.Bound, statuses []decision.Status) {
	refund(ctx, s.addParts(nil, bounds, settleRefunds(bounds, statuses)), statuses)
}

// settleRefunds marks the statuses that are charged by a Redis as not charged, and returns which they are.
func settleRefunds(bounds []policy.Bound, statuses []decision.Status) (of []int) {
	for i := range statuses {
		if status := &statuses[i]; status.Charged && status.Source == decision.Redis {
			of = append(of, i)
			status.Charged, status.Returned = false, 0
			status.Used, status.Remaining = status.Used-bounds[i].Cost, status.Remaining+bounds[i].Cost
		}
	}
	return of
}

// refund gives back what the bounds of parts have spent, all at once.
func refund(ctx context.Context, parts []part, statuses []decision.Status) {
	each(parts, func(p *part) {
		receipts := make([]limit.Receipt, len(p.of))
		for j, bound := range p.of {
			receipts[j] = statuses[bound].Receipt
		}
		for j, tokens := range p.store.giveBack(ctx, p.bounds, receipts) {
			statuses[p.of[j]].Returned = tokens
		}
	})
}

// giveBack gives back to bounds of one group what was spent, and returns how many tokens each got; nil: nobody knows.
func (s *Store) giveBack(ctx context.Context, bounds []policy.Bound, receipts []limit.Receipt) []int64 {
	if len(bounds) == 0 {
		return nil
	}
	p := plan{levels: &s.levels, formats: &s.formats}
	err := p.refund(bounds, receipts)
	var returned []int64
	if err == nil {
		var reply []any
		if reply, err = s.run(ctx, &p); err == nil {
			returned, err = p.readReturned(reply)
		}
	}
	if err != nil {
		s.count(&s.lost, 1, "refunding what a denied request had spent failed", "error", err)
		return nil
	}
	return returned
}

// every returns the index of each bound.
func every(bounds []policy.Bound) []int {
	of := make([]int, len(bounds))
	for i := range of {
		of[i] = i
	}
	return of
}

// addParts adds some of a request's bounds to parts: in a cluster those with one hash tag are a part, else all are one.
func (s *Store) addParts(parts []part, bounds []policy.Bound, of []int) []part {
	mine := len(parts)
next:
	for _, i := range of {
		for j := range parts[mine:] {
			p := &parts[mine+j]
			if !s.transport.Groups() || together(&p.bounds[0].Key, &bounds[i].Key) {
				p.of, p.bounds = append(p.of, i), append(p.bounds, bounds[i])
				continue next
			}
		}
		parts = append(parts, part{store: s, of: []int{i}, bounds: []policy.Bound{bounds[i]}})
	}
	return parts
}

// each does something for all parts at once, and waits.
func each(parts []part, do func(*part)) {
	if len(parts) == 0 {
		return
	}
	var others sync.WaitGroup
	for i := range parts[1:] {
		others.Go(func() { do(&parts[i+1]) })
	}
	do(&parts[0])
	others.Wait()
}
