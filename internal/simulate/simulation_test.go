package simulate

import (
	"context"
	"fmt"
	"math/rand/v2"

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
	nodes    []*node // by number; the last of each
	ended    []*node // those that died
	live     []*node
	ideal    *admit.Decider
	exact    admit.Exchange // of ideal
	ledger   *ledger
	free     []*request
	active   []*Fault
	over     bool // the load has ended
	count    counts
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
	sim := &simulation{scenario: s, world: w, ledger: newLedger(), count: newCounts(s)}
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
	sim.balance()
	for i := range s.Faults {
		f := &s.Faults[i]
		w.at(warmUp+micros(f.At), func() { sim.begin(f) })
	}
	return sim
}

// sightings returns for how many buckets a node remembers the usage.
func (s *simulation) sightings() int { return min(100_000, mostSightings/s.scenario.Nodes) }

// balance sends the requests to the nodes that live.
func (s *simulation) balance() {
	s.live = s.live[:0]
	for _, n := range s.nodes {
		if !n.dead {
			s.live = append(s.live, n)
		}
	}
}

// serve lets the load come.
func (s *simulation) serve() {
	w, random, ends := s.world, s.source(forBalancing), warmUp+micros(s.scenario.Duration())
	w.advance(warmUp)
	s.beginCounting(ends)
	for at, more := s.load.next(); more; at, more = s.load.next() {
		w.advance(warmUp + at)
		r := s.newRequest()
		r.tenant, r.began = s.load.draw(&r.facts), w.now
		s.compare(r)
		if len(s.live) == 0 {
			s.count.lost++
			s.free = append(s.free, r)
			continue
		}
		r.node = s.live[random.IntN(len(s.live))]
		w.start(func() { s.decide(r) })
	}
	w.advance(ends)
	s.endCounting()
	s.drain()
}

// drain lets the requests under way end.
func (s *simulation) drain() {
	s.over = true
	for _, n := range s.nodes {
		n.idle = true
	}
	for len(s.world.events) > 0 {
		s.world.advance(s.world.events[0].at)
	}
	s.ledger.flush(limit.Never)
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
	s.count.arrived(!s.exact.Decision.Denied())
}

// decide is a request at its node.
func (s *simulation) decide(r *request) {
	defer func() { s.free = append(s.free, r) }()
	n := r.node
	if err := n.decider.Admit(context.Background(), &r.facts, &r.Exchange); err != nil {
		panic(fmt.Sprintf("simulate: %v", err)) // outages are no errors
	}
	n.poke()
	if n.dead && r.began < s.world.now {
		s.count.lost++
		return
	}
	d := &r.Decision
	s.count.decided(r, s.world.now)
	if !d.Denied() {
		shift := s.world.wallTime() - s.world.now
		s.ledger.add(d, shift+r.began, shift+s.world.now, func(key *policy.Key) limit.Micros {
			return s.network.holder(key).ahead
		})
	}
}

// begin lets a fault happen, and end.
func (s *simulation) begin(f *Fault) {
	until := s.world.now + micros(f.For)
	by := micros(f.By)
	switch f.Kind {
	case NodeDies:
		s.killNode(f, until)
	case ClockStep:
		if f.Node > 0 {
			s.nodes[f.Node-1].ahead += by
		} else {
			s.network.masters[f.Master-1].ahead += by
		}
	default:
		s.active = append(s.active, f)
		s.apply()
		s.world.at(until, func() { s.end(f) })
	}
}

// killNode kills a node, which starts again if the fault ends.
func (s *simulation) killNode(f *Fault, until limit.Micros) {
	old := s.nodes[f.Node-1]
	if old.dead {
		return
	}
	old.kill()
	s.ended = append(s.ended, old)
	s.balance()
	if f.For == 0 {
		return
	}
	s.world.at(until, func() {
		if s.over {
			return
		}
		s.nodes[f.Node-1] = s.startNode(uint64(firstNode + len(s.nodes) + len(s.ended)))
		s.nodes[f.Node-1].ahead = old.ahead
		s.balance()
	})
}

// end ends a fault of Redis.
func (s *simulation) end(f *Fault) {
	for i, other := range s.active {
		if other == f {
			s.active = append(s.active[:i:i], s.active[i+1:]...)
			break
		}
	}
	s.apply()
	for _, m := range s.network.masters {
		if f.LosesData && f.hits(m) {
			m.clear()
		}
	}
}

func (f *Fault) hits(m *master) bool { return f.Master == 0 || f.Master-1 == m.number }

// apply sets how the masters answer by the faults that are there.
func (s *simulation) apply() {
	for _, m := range s.network.masters {
		m.is, m.slower = answering, 0
		for _, f := range s.active {
			switch {
			case !f.hits(m):
			case f.Kind == RedisUnavailable:
				m.is = closed
			case f.Kind == RedisHangs:
				m.is = max(m.is, hanging)
			default:
				m.slower += micros(f.By) / 2
			}
		}
	}
}

// degraded returns the number of nodes that decide by fail modes.
func (s *simulation) degraded() (n int) {
	for _, node := range s.live {
		if node.outage.Degraded() {
			n++
		}
	}
	return n
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
