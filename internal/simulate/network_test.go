package simulate

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"math"
	"math/rand/v2"
	"time"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/bucket/memory"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/decision"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/limit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
)

// network is what the nodes share: the masters, and the time that it takes to reach them.
type network struct {
	world   *world
	masters []*master
	latency latency
	timeout limit.Micros // of a call
	random  *rand.Rand
}

// latency is a log-normal distribution of the time of a round trip, in microseconds.
type latency struct{ median, sigma float64 }

// z99 is the 99th percentile of the normal distribution.
const z99 = 2.3263

func newLatency(p50, p99 time.Duration) latency {
	if p50 <= 0 {
		return latency{}
	}
	return latency{float64(p50.Microseconds()), math.Log(float64(p99)/float64(p50)) / z99}
}

// oneWay returns the time of one of the two ways.
func (l latency) oneWay(random *rand.Rand) limit.Micros {
	return limit.Micros(l.median / 2 * math.Exp(l.sigma*random.NormFloat64()))
}

// master is a Redis node: one store, and one thread.
type master struct {
	number  int
	world   *world
	buckets *memory.Store
	nodes   map[string]limit.Micros
	free    limit.Micros // the instant at which its thread is free

	ops    uint64
	cpu    float64 // µs
	queued limit.Micros
}

func newMaster(number int, w *world) *master {
	return &master{
		number: number, world: w, nodes: map[string]limit.Micros{},
		buckets: memory.New(memory.Options{Now: w.wallTime, MaxBuckets: math.MaxInt32}),
	}
}

// holder returns the master of a group, as a Redis Cluster has each hash tag on one.
func (n *network) holder(key *policy.Key) *master {
	if len(n.masters) == 1 {
		return n.masters[0]
	}
	hash := fnv.New64a()
	hash.Write([]byte{byte(key.Group)})
	hash.Write([]byte(key.GroupID))
	sum := hash.Sum64()
	return n.masters[(sum^sum>>32)%uint64(len(n.masters))]
}

// script is one command for one master.
type script struct {
	to   *master
	cost float64 // µs of the master
	run  func()

	indexes  []int // of its bounds in the request
	bounds   []policy.Bound
	statuses []decision.Status

	failure decision.Failure
	wait    limit.Micros // the least time after which a retry is worthwhile
}

// link is the way of one node to the masters. It implements outage.Central.
type link struct {
	*network
	node *node
}

var errSettle = errors.New("settlements are not simulated")

// call sends scripts at once, and waits for their answers.
func (l *link) call(scripts []*script) {
	waiting, caller := 0, l.world.running
	done := func() {
		if waiting--; waiting == 0 {
			l.world.resume(caller)
			l.node.poke()
		}
	}
	for _, s := range scripts {
		wait, ok := l.node.breakers[s.to.number].Enter()
		if !ok {
			s.failure, s.wait = decision.Unavailable, limit.Micros(wait.Microseconds())
			continue
		}
		waiting++
		l.send(s, done)
	}
	if waiting > 0 {
		l.world.wait()
	}
}

// send sends a script, and calls done with its answer, or when it is too late for that.
func (l *link) send(s *script, done func()) {
	sent := l.world.now
	end := func(at limit.Micros, failure decision.Failure) {
		if at > sent+l.timeout {
			at, failure = sent+l.timeout, decision.TimedOut
		}
		l.world.at(at, func() {
			s.failure = failure
			took := time.Duration(l.world.now-sent) * time.Microsecond
			l.node.breakers[s.to.number].Leave(took, failure != decision.NoFailure)
			done()
		})
	}
	arrives := sent + l.latency.oneWay(l.random)
	if arrives > sent+l.timeout { // the master runs the script, and no one waits for the answer
		end(limit.Never, decision.TimedOut)
		end = func(limit.Micros, decision.Failure) {}
	}
	l.world.at(arrives, func() { l.arrive(s, end) })
}

// arrive runs a script that has reached its master, once the master's thread is free.
func (l *link) arrive(s *script, end func(limit.Micros, decision.Failure)) {
	m, now := s.to, l.world.now
	back := l.latency.oneWay(l.random)
	begins := max(now, m.free)
	m.free = begins + limit.Micros(math.Ceil(s.cost))
	m.ops++
	m.cpu += s.cost
	m.queued = max(m.queued, begins-now)
	if begins == now {
		s.run()
	} else {
		l.world.at(begins, s.run)
	}
	end(m.free+back, decision.NoFailure)
}

// Take implements store.Store. As in a Redis Cluster, each group of bounds with one hash tag is one command, all at
// once; if one denies, what the others have spent is refunded. A single master gets one command.
func (l *link) Take(ctx context.Context, bounds []policy.Bound, statuses []decision.Status) error {
	scripts := l.divide(bounds, statuses, func(s *script) error { return s.to.buckets.Take(ctx, s.bounds, s.statuses) })
	l.call(scripts)
	if denied(scripts) {
		l.refundCharged(ctx, scripts)
	}
	fill(scripts, statuses)
	return nil
}

// Peek implements store.Store.
func (l *link) Peek(ctx context.Context, bounds []policy.Bound, statuses []decision.Status) error {
	scripts := l.divide(bounds, statuses, func(s *script) error { return s.to.buckets.Peek(ctx, s.bounds, s.statuses) })
	l.call(scripts)
	fill(scripts, statuses)
	return nil
}

// Settle implements store.Store. It only refunds: nothing settles, see [Scenario].
func (l *link) Settle(
	ctx context.Context, bounds []policy.Bound, statuses []decision.Status, actual []int64,
) error {
	if actual != nil {
		return errSettle
	}
	var charged []policy.Bound
	var receipts []decision.Status
	var indexes []int
	for i := range statuses {
		if statuses[i].Charged && statuses[i].Source == decision.Redis {
			charged, receipts = append(charged, bounds[i]), append(receipts, statuses[i])
			indexes = append(indexes, i)
		}
	}
	scripts := l.divide(charged, receipts, nil)
	l.refundCharged(ctx, scripts)
	fill(scripts, receipts)
	for j, i := range indexes {
		statuses[i].Charged, statuses[i].Settled = false, receipts[j].Settled
	}
	return nil
}

// divide returns the scripts for bounds. do runs one of them.
func (l *link) divide(bounds []policy.Bound, statuses []decision.Status, do func(*script) error) []*script {
	var scripts []*script
next:
	for i := range bounds {
		for _, s := range scripts {
			first := &s.bounds[0].Key
			if len(l.masters) == 1 || first.Group == bounds[i].Key.Group && first.GroupID == bounds[i].Key.GroupID {
				s.add(i, &bounds[i], &statuses[i])
				continue next
			}
		}
		s := &script{to: l.holder(&bounds[i].Key)}
		s.add(i, &bounds[i], &statuses[i])
		scripts = append(scripts, s)
	}
	for _, s := range scripts {
		s.cost = redisCost(len(s.bounds))
		s.run = func() {
			if err := do(s); err != nil {
				panic(fmt.Sprintf("simulate: %v", err)) // the slices fit together
			}
		}
	}
	return scripts
}

func (s *script) add(i int, b *policy.Bound, status *decision.Status) {
	s.indexes, s.bounds, s.statuses = append(s.indexes, i), append(s.bounds, *b), append(s.statuses, *status)
}

// denied reports whether a master denies.
func denied(scripts []*script) bool {
	for _, s := range scripts {
		for i := range s.bounds {
			if s.failure == decision.NoFailure && decision.Denies(&s.bounds[i], &s.statuses[i]) {
				return true
			}
		}
	}
	return false
}

// refundCharged returns what scripts have spent.
func (l *link) refundCharged(ctx context.Context, scripts []*script) {
	var refunds []*script
	for _, s := range scripts {
		if s.failure != decision.NoFailure || !charged(s.statuses) {
			continue
		}
		refund := &script{to: s.to, cost: redisCost(len(s.bounds))}
		refund.run = func() {
			if err := s.to.buckets.Settle(ctx, s.bounds, s.statuses, nil); err != nil {
				panic(fmt.Sprintf("simulate: %v", err)) // the slices fit together
			}
		}
		refunds = append(refunds, refund)
	}
	l.call(refunds)
	for _, s := range scripts {
		for i := range s.statuses {
			s.statuses[i].Charged = false
		}
	}
}

func charged(statuses []decision.Status) bool {
	for i := range statuses {
		if statuses[i].Charged {
			return true
		}
	}
	return false
}

// fill fills in the statuses of a request.
func fill(scripts []*script, statuses []decision.Status) {
	for _, s := range scripts {
		for j, i := range s.indexes {
			if statuses[i] = s.statuses[j]; s.failure != decision.NoFailure {
				statuses[i] = decision.Status{Failure: s.failure, Wait: s.wait}
			} else {
				statuses[i].Source = decision.Redis
			}
		}
	}
}

// Beat implements outage.Central.
func (l *link) Beat(_ context.Context, namespace, node string, ttl time.Duration) (live int, err error) {
	s := &script{to: l.holder(&policy.Key{GroupID: namespace}), cost: redisCost(1)}
	s.run = func() {
		now := l.world.wallTime()
		s.to.nodes[node] = now + limit.Micros(ttl.Microseconds())
		for other, until := range s.to.nodes {
			if until <= now {
				delete(s.to.nodes, other)
			}
		}
		live = len(s.to.nodes)
	}
	if l.call([]*script{s}); s.failure != decision.NoFailure {
		return 0, fmt.Errorf("count the live nodes: %s", s.failure)
	}
	return live, nil
}

// Leave implements outage.Central. Nodes of a simulation only die.
func (*link) Leave(context.Context, string, string) error { return nil }

// Probe implements outage.Central.
func (l *link) Probe(context.Context) {
	var scripts []*script
	for _, m := range l.masters {
		scripts = append(scripts, &script{to: m, cost: redisCost(0), run: func() {}})
	}
	l.call(scripts)
}
