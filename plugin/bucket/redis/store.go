package redis

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/bits"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/bucket/store"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/decision"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/limit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
)

// Store keeps buckets in one Redis, behind Sentinels or not, or in a Redis Cluster. It is safe for concurrent use.
type Store struct {
	name      string
	location  string // of the data, for Records
	transport transport
	script    *script // takes and settles
	splitting *script // splits subjects
	listing   *script // lists slots
	log       *slog.Logger
	plans     sync.Pool // of *scriptCall
	levels    levels
	clock     func() limit.Micros // the node's

	foreignValues, foreignKeys, lostRefunds, lostSettlements, failed, calls atomic.Uint64
}

// Stats holds a store's numbers since its start.
type Stats struct {
	Foreign         uint64 `metric:"foreign_values_total"`   // values of a foreign form, read as empty buckets
	Taken           uint64 `metric:"taken_keys_total"`       // keys of a foreign type: bounds without an answer
	LostRefunds     uint64 `metric:"lost_refunds_total"`     // failed calls to refund a denied request
	LostSettlements uint64 `metric:"lost_settlements_total"` // bounds whose settlement had no answer or was held back
	Failed          uint64 // calls of the script without an answer, without those that a gate held back
	Calls           uint64 `metric:"redis_round_trips_total"` // to take, refund or settle, with those held back
}

// newStore returns a store that runs the script by t.
func newStore(name string, t transport, script *script, log *slog.Logger) *Store {
	s := &Store{
		name: name, transport: t, script: script, splitting: splitScript, listing: slotsScript, clock: wallClock,
	}
	s.log = log.With("redis", name)
	s.plans.New = func() any { return &scriptCall{levels: &s.levels} }
	return s
}

func wallClock() limit.Micros { return limit.Micros(time.Now().UnixMicro()) }

// Name returns where the store is, by its settings and without secrets.
func (s *Store) Name() string { return s.name }

// Stats returns the store's numbers.
func (s *Store) Stats() Stats {
	return Stats{
		Foreign: s.foreignValues.Load(), Taken: s.foreignKeys.Load(),
		LostRefunds: s.lostRefunds.Load(), LostSettlements: s.lostSettlements.Load(),
		Failed: s.failed.Load(), Calls: s.calls.Load(),
	}
}

// Take implements store.Store. A single Redis decides all bounds in one atomic round trip. In a cluster each group of
// bounds with one hash tag is decided so, all groups at once; if one denies, what the others have spent is refunded
// once. A refund that is lost, or that comes too late, leaves a denied request charged. Each group is decided by the
// clock of its own master. A limit's bound holds over these instants, which the statuses have as Now.
//
// Where no answer comes, the statuses of the group's bounds are [decision.Unanswered] with the cause; their Wait is how
// long a retry is pointless, or 0. An error means that the request cannot be sent at all.
func (s *Store) Take(ctx context.Context, bounds []policy.Bound, statuses []decision.Status) error {
	return s.decide(ctx, bounds, statuses, modeTake)
}

// Peek implements store.Store, in the round trips of [Store.Take]. It writes nothing to Redis.
func (s *Store) Peek(ctx context.Context, bounds []policy.Bound, statuses []decision.Status) error {
	return s.decide(ctx, bounds, statuses, modePeek)
}

// decide takes or peeks, as the mode says.
func (s *Store) decide(ctx context.Context, bounds []policy.Bound, statuses []decision.Status, mode byte) error {
	if err := store.CheckLengths("decide", bounds, statuses); err != nil {
		return err
	}
	clear(statuses)
	if len(bounds) == 0 {
		return nil
	}
	elsewhere := func(b policy.Bound) bool { return !sameGroup(&bounds[0].Key, &b.Key) }
	if s.transport.Groups() && slices.ContainsFunc(bounds, elsewhere) {
		return s.decideParts(ctx, s.partsOf(bounds, func(int) bool { return true }), statuses, mode)
	}
	return s.decideOne(ctx, bounds, statuses, mode)
}

// decideOne decides bounds with one call.
func (s *Store) decideOne(ctx context.Context, bounds []policy.Bound, statuses []decision.Status, mode byte) error {
	p := s.plans.Get().(*scriptCall)
	p.mode, p.clock = mode, s.clock
	if err := p.compile(bounds); err != nil {
		return err
	}
	err := s.runTake(ctx, p)
	if err == nil {
		err = p.fill(statuses, true)
	}
	if err != nil {
		s.markUnanswered(p, statuses, err)
		return nil // p is not used again: the command may still be on its way
	}
	s.splitLarge(ctx, p)
	p.reset()
	s.plans.Put(p)
	return nil
}

// runTake runs the script for a compiled take or peek and reads its reply.
func (s *Store) runTake(ctx context.Context, p *scriptCall) error {
	if err := s.run(ctx, p); err != nil {
		return err
	}
	foreign, taken, err := p.readReply(p.call.reply)
	if foreign > 0 {
		const message = "values in Redis have a foreign format and were read as empty buckets"
		s.countAndWarn(&s.foreignValues, foreign, message, "among", p.call.keys)
	}
	if taken > 0 {
		const message = "keys in Redis hold foreign values: the fail modes of their limits decide"
		s.countAndWarn(&s.foreignKeys, taken, message, "among", p.call.keys)
	}
	return err
}

// maxTries is how often a request is made until the levels of its subjects are right. More than twice is rare: another
// node would have to split a subject meanwhile.
const maxTries = 5

// errLevels reports that the subjects of a request were split, or expired, between each try and the next.
var errLevels = fmt.Errorf("%w: the levels of its subjects changed between all tries", errReply)

// run runs the script for a compiled request, and again where a subject has another level than this node had recorded.
func (s *Store) run(ctx context.Context, p *scriptCall) error {
	for range maxTries {
		s.calls.Add(1)
		if err := s.transport.Run(ctx, s.script, &p.call); err != nil {
			return err
		}
		again, err := p.learnLevels(p.call.reply)
		if err != nil || !again {
			return err
		}
		if p.settlements != nil { // the same request, with the levels that its subjects have by now
			err = p.settle(p.bounds, p.settlements)
		} else {
			err = p.compile(p.bounds)
		}
		if err != nil {
			return err
		}
	}
	return errLevels
}

// evaluate runs a script that is no take, and reads its reply. All errors are of type [Error].
func (s *Store) evaluate(ctx context.Context, script *script, c *call, read func(reply *elements)) error {
	if err := s.transport.Run(ctx, script, c); err != nil {
		return err
	}
	reply := elements{left: c.reply}
	read(&reply)
	if err := reply.end(); err != nil {
		return &Error{err: err}
	}
	return nil
}

// splitLarge splits the subjects that the reply names as too large.
func (s *Store) splitLarge(ctx context.Context, p *scriptCall) {
	for _, number := range p.toSplit {
		large := &p.subjects[number-1]
		if err := s.split(ctx, large.key, large.level); err != nil {
			s.log.Debug("splitting a subject with many buckets failed", "error", err)
		}
	}
}

// markUnanswered fills in why the bounds of a take have no answer, and counts the failure, unless a gate held the call
// back. Where Redis may have run the take, the receipts of slots release them.
func (s *Store) markUnanswered(p *scriptCall, statuses []decision.Status, err error) {
	status := decision.Status{Failure: failure(err)}
	var known *Error
	if errors.As(err, &known) {
		status.Wait = limit.Micros(known.Wait.Microseconds())
	}
	for i := range statuses {
		statuses[i] = status
	}
	for i := range p.records {
		if r := &p.records[i]; r.slot != (limit.SlotID{}) && p.mode == modeTake && status.Failure.MayHaveSpent() {
			statuses[r.bound].Receipt = limit.Receipt{At: limit.MaxProduct, Debt: r.slot[0], Mark: r.slot[1]}
		}
	}
	if !errors.Is(err, errGate) {
		s.countAndWarn(&s.failed, 1, "Redis did not answer: the fail modes of the limits decide", "error", err)
	}
}

// countAndWarn adds n, which is above 0, to a counter, and logs each time that it has doubled.
func (s *Store) countAndWarn(counter *atomic.Uint64, n int, message, key string, value any) {
	if after := counter.Add(uint64(n)); bits.Len64(after) > bits.Len64(after-uint64(n)) {
		s.log.Warn(message, "so_far", after, key, value)
	}
}

// part is the part of a request that one call decides.
type part struct {
	indexes []int // of its bounds in the request
	bounds  []policy.Bound
	plan    scriptCall
	err     error
}

// decideParts decides the parts of a request, all at once. If one denies, what the others have spent is refunded. What
// remains of that is a new receipt, and the conversion of a bucket that another limit wrote, as after any admission:
// see [limit.Limit.Advance]. Neither admits a token more.
func (s *Store) decideParts(ctx context.Context, parts []part, statuses []decision.Status, mode byte) error {
	for i := range parts {
		p := &parts[i]
		p.plan.mode = mode
		p.plan.levels, p.plan.clock = &s.levels, s.clock
		if err := p.plan.compile(p.bounds); err != nil {
			return err
		}
	}
	runAll(parts, func(p *part) { p.err = s.runTake(ctx, &p.plan) })
	denied := false
	for i := range parts {
		denied = denied || (parts[i].err == nil && parts[i].plan.denied())
	}
	if denied && mode == modeTake {
		runAll(parts, func(p *part) {
			if p.err == nil && !p.plan.denied() {
				s.giveBack(ctx, &p.plan)
			}
		})
	}
	for i := range parts {
		s.report(ctx, &parts[i], statuses, !denied)
	}
	return nil
}

// report fills in the statuses of the part's bounds. Admitted reports whether all parts admit, so that what was spent
// stays spent.
func (s *Store) report(ctx context.Context, p *part, statuses []decision.Status, admitted bool) {
	own := make([]decision.Status, len(p.bounds))
	if p.err == nil {
		p.err = p.plan.fill(own, admitted)
		s.splitLarge(ctx, &p.plan)
	}
	if p.err != nil {
		s.markUnanswered(&p.plan, own, p.err)
	}
	for j, bound := range p.indexes {
		statuses[bound] = own[j]
	}
}

// partsOf returns the bounds that has reports, by their indexes, in parts: in a cluster those with one hash tag are a
// part, else all are one.
func (s *Store) partsOf(bounds []policy.Bound, has func(i int) bool) (parts []part) {
next:
	for i := range bounds {
		if !has(i) {
			continue
		}
		for j := range parts {
			p := &parts[j]
			if !s.transport.Groups() || sameGroup(&p.bounds[0].Key, &bounds[i].Key) {
				p.indexes, p.bounds = append(p.indexes, i), append(p.bounds, bounds[i])
				continue next
			}
		}
		parts = append(parts, part{indexes: []int{i}, bounds: []policy.Bound{bounds[i]}})
	}
	return parts
}

// runAll calls do for all parts at once, and waits.
func runAll(parts []part, do func(*part)) {
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

var forgetScript = newScript(assemble("forget", nil))

// Forget implements store.Keeper: it deletes the buckets one after the other, with the entries of sliding logs.
func (s *Store) Forget(ctx context.Context, bounds []policy.Bound) (int, error) {
	forgotten := 0
	for i := range bounds {
		key := &bounds[i].Key
		n, err := s.forget(ctx, key)
		if err != nil {
			return forgotten, fmt.Errorf("empty bucket %s of %s: %w", key.Policy, appendSubject(nil, key), err)
		}
		forgotten += n
	}
	return forgotten, nil
}

// forget empties one bucket, in the string that holds it now.
func (s *Store) forget(ctx context.Context, key *policy.Key) (int, error) {
	if key.Slots {
		_, count, err := s.runSlots(ctx, key, -1)
		return int(min(count, 1)), err
	}
	name := appendName(nil, key)
	for range maxTries {
		level := s.levels.level(key)
		whole := string(appendSubject(nil, key))
		at := whole
		if chunk := chunkOf(name, level); chunk != head {
			at = string(appendChunk(nil, key, chunk))
		}
		keys, first := []string{whole, at, string(appendLog(nil, key))}, firstByte(level)
		n := int64(0)
		run := newCall(keys, string(append([]byte{first}, name...)))
		err := s.evaluate(ctx, forgetScript, run, func(reply *elements) {
			reply.sole()
			n = reply.between(-1-maxLevel, 1)
		})
		if err != nil || n >= 0 {
			return int(n), err
		}
		s.levels.learn(key, int(-1-n))
	}
	return 0, errLevels
}

var slotsScript = newScript(assemble("slots", nil))

// Slots implements store.Keeper.
func (s *Store) Slots(ctx context.Context, bound *policy.Bound, most int) (slots store.Slots, err error) {
	key := &bound.Key
	slots, _, err = s.runSlots(ctx, key, most)
	if err != nil {
		err = fmt.Errorf("list slots of %s of %s: %w", key.Policy, appendSubject(nil, key), err)
	}
	return slots, err
}

// runSlots lists the slots of a bucket, at most so many, or deletes them, if that is below 0. It returns their number.
func (s *Store) runSlots(ctx context.Context, key *policy.Key, most int) (slots store.Slots, count int64, err error) {
	run := newCall([]string{string(appendLog(nil, key))}, strconv.Itoa(most))
	err = s.evaluate(ctx, s.listing, run, func(reply *elements) {
		left := reply.array() - 2
		slots.Now, count = limit.Micros(reply.integer()), reply.integer()
		for ; left > 0; left-- {
			slots.Deadlines = append(slots.Deadlines, limit.Micros(reply.integer()))
		}
	})
	return slots, count, err
}
