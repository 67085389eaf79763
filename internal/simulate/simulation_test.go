package simulate

import (
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"slices"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/bucket/memory"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/admit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/decision"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/limit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/response"
)

const (
	// warmUp is the time before the load: nodes must count each other for five seconds before they lease.
	warmUp = 8 * limit.Second
	// mostSightings bounds the memory of all nodes together, in buckets of 33 bytes.
	mostSightings = 1 << 24
)

// simulation is one run of a scenario.
type simulation struct {
	scenario *Scenario
	world    *world
	network  *network
	load     *load
	nodes    []*node
	ideal    *admit.Decider
	exact    admit.Exchange // of ideal
	ledger   *ledger
	free     []*request
	count    counts
	masters  []use // while the load came

	granted, spent int64 // leased tokens
}

// request is the memory of a request under way.
type request struct {
	admit.Exchange
	facts  admit.CallerRequest
	node   *node
	tenant int
	began  limit.Micros
}

// Run simulates the scenario.
func (s *Scenario) Run() *Report {
	sim := s.start()
	defer sim.world.close()
	sim.serve()
	return sim.report()
}

// source returns random numbers of a purpose.
func (s *simulation) source(purpose uint64) *rand.Rand {
	return rand.New(rand.NewPCG(s.scenario.Seed, purpose))
}

// The purposes of random numbers. Nodes have those from firstNode on.
const (
	forLoad = iota
	forNetwork
	forBalancing
	firstNode
)

// start makes the fleet, which begins to count its nodes.
func (s *Scenario) start() *simulation {
	w := new(world)
	sim := &simulation{scenario: s, world: w, ledger: newLedger()}
	latency := newLatency(s.Redis.Latency.P50, s.Redis.Latency.P99)
	sim.network = &network{
		world: w, latency: latency, random: sim.source(forNetwork),
		timeout: limit.Micros(s.config.Redis.ReadTimeout) * limit.Second / 1000,
	}
	for i := range s.Redis.Masters {
		sim.network.masters = append(sim.network.masters, newMaster(i, w))
	}
	sim.load = newLoad(s, sim.source(forLoad))
	sim.ideal = &admit.Decider{
		Now: w.wallTime, Renderer: response.New(s.config, sim.source(forLoad).Int64N),
		Buckets: memory.New(memory.Options{Now: w.wallTime, MaxBuckets: 1 << 30}),
	}
	sim.ideal.Policies.Store(s.plan)
	for i := range s.Nodes { // not all at once: their heartbeats are spread over a second
		w.advance(limit.Micros(i) * limit.Second / limit.Micros(s.Nodes))
		sim.nodes = append(sim.nodes, sim.startNode(uint64(firstNode+i)))
	}
	return sim
}

// sightings returns for how many buckets a node remembers the usage.
func (s *simulation) sightings() int { return min(100_000, mostSightings/s.scenario.Nodes) }

// serve lets the load come, and the requests under way at its end be decided.
func (s *simulation) serve() {
	w, random, ends := s.world, s.source(forBalancing), warmUp+micros(s.scenario.Load.For)
	w.advance(warmUp)
	before := s.uses()
	for at, more := s.load.next(); more; at, more = s.load.next() {
		w.advance(warmUp + at)
		r := s.newRequest()
		r.tenant, r.began = s.load.draw(&r.facts), w.now
		s.compare(r)
		r.node = s.nodes[random.IntN(len(s.nodes))]
		w.start(func() { s.decide(r) })
	}
	w.advance(ends)
	s.masters = s.uses()
	for i := range s.masters {
		s.masters[i].ops -= before[i].ops
		s.masters[i].cpu -= before[i].cpu
	}
	for _, n := range s.nodes {
		tokens := n.lease.Stats().Tokens
		s.granted += tokens.Granted
		s.spent += tokens.Spent
		n.idle = true
	}
	for len(w.events) > 0 {
		w.advance(w.events[0].at)
	}
	s.ledger.flush(limit.Never)
}

// use is the work of one master.
type use struct {
	ops uint64
	cpu float64 // µs
}

func (s *simulation) uses() (list []use) {
	for _, m := range s.network.masters {
		list = append(list, use{m.ops, m.cpu})
	}
	return list
}

func (s *simulation) newRequest() *request {
	if n := len(s.free); n > 0 {
		r := s.free[n-1]
		s.free = s.free[:n-1]
		return r
	}
	return new(request)
}

// compare decides a request by the ideal store.
func (s *simulation) compare(r *request) {
	facts := r.facts
	if err := s.ideal.Admit(context.Background(), &facts, &s.exact); err != nil {
		panic(fmt.Sprintf("simulate: %v", err)) // memory never fails
	}
	if s.count.offered++; !s.exact.Decision.Denied() {
		s.count.ideal++
	}
}

// decide is a request at its node.
func (s *simulation) decide(r *request) {
	defer func() { s.free = append(s.free, r) }()
	n := r.node
	if err := n.decider.Admit(context.Background(), &r.facts, &r.Exchange); err != nil {
		panic(fmt.Sprintf("simulate: %v", err)) // outages are no errors
	}
	n.poke()
	s.count.decided(r, s.world.now)
	if d := &r.Decision; !d.Denied() {
		shift := s.world.wallTime() - s.world.now
		s.ledger.add(d, shift+r.began, shift+s.world.now)
	}
}

// answeredBy says what answered a request: the slowest of its bounds' sources.
func answeredBy(d *decision.Decision) decision.Source {
	source := decision.Leased
	for i := range d.Statuses {
		switch d.Statuses[i].Source {
		case decision.Redis:
			if source == decision.Leased {
				source = decision.Redis
			}
		case decision.Local:
			source = decision.Local
		case decision.Unanswered:
			if d.Statuses[i].Failure != decision.NoFailure {
				return decision.Unanswered
			}
		}
	}
	return source
}

// ledger compares what was admitted with the bounds of the limits, over any interval. For each bucket it charges a
// state of package limit with what was really spent, whether or not there is room. What that lacks beyond its capacity
// is what some interval has admitted too much.
//
// What counts is the true instant of each decision: of the master that decided, or of the request if it was leased.
// Decisions become known in another order, so the ledger waits for two seconds before it charges them.
type ledger struct {
	accounts map[policy.Key]*account
	pending  []admission
	flushAt  limit.Micros
}

// settleTime is longer than the time from any decision to the end of its request.
const settleTime = 2 * limit.Second

// account is one bucket.
type account struct {
	key    policy.Key
	policy *policy.Policy
	state  limit.State
	spent  int64 // tokens
	worst  int64 // tokens above the bound, in the worst interval
}

// admission is what a request spent from a bucket.
type admission struct {
	of   *account
	at   limit.Micros
	cost int64
}

func newLedger() *ledger { return &ledger{accounts: map[policy.Key]*account{}} }

// add records what an admitted request has spent. Times are times of day.
func (l *ledger) add(d *decision.Decision, began, now limit.Micros) {
	for i := range d.Resolution.Bounds {
		b, status := &d.Resolution.Bounds[i], &d.Statuses[i]
		if !b.Enforced() || b.Cost <= 0 || !b.Policy.Limit.Settles() || b.Policy.Limit.Spec().SoftOnly {
			continue
		}
		of := l.accounts[b.Key]
		if of == nil {
			of = &account{key: b.Key.Clone(), policy: b.Policy}
			l.accounts[of.key] = of
		}
		at := now
		switch status.Source {
		case decision.Redis:
			at = status.Now
		case decision.Leased:
			at = began
		}
		l.pending = append(l.pending, admission{of, at, b.Cost})
	}
	if now >= l.flushAt {
		l.flush(now - settleTime)
		l.flushAt = now + settleTime
	}
}

// flush charges what was spent before an instant.
func (l *ledger) flush(before limit.Micros) {
	slices.SortStableFunc(l.pending, func(a, b admission) int { return cmp.Compare(a.at, b.at) })
	n := 0
	for ; n < len(l.pending) && l.pending[n].at < before; n++ {
		l.pending[n].of.charge(l.pending[n].at, l.pending[n].cost)
	}
	l.pending = append(l.pending[:0], l.pending[n:]...)
}

func (a *account) charge(at limit.Micros, cost int64) {
	l := &a.policy.Limit
	l.Settle(&a.state, at, 0, cost, limit.Receipt{})
	a.spent += cost
	a.worst = max(a.worst, l.Status(&a.state, at).Used-l.Capacity())
}
