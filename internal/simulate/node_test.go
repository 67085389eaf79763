package simulate

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/cespare/xxhash/v2"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/bucket/clock"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/bucket/lease"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/bucket/memory"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/bucket/outage"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/admit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/limit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/response"
)

// started is what a node's monotonic clock shows at the beginning.
const started = 3600 * limit.Second

// node is one plugin server process: the decision path, over the same decorators and in the order of package bucket.
type node struct {
	world    *world
	decider  *admit.Decider
	lease    *lease.Leases
	outage   *outage.Guard
	breakers []*outage.Breaker
	set      *outage.Breakers
	loops    []*loop
	idle     bool // its background work has ended
}

// startNode starts a node. Its seed differs from those of all others.
func (s *simulation) startNode(seed uint64) *node {
	n := &node{world: s.world}
	quiet := slog.New(slog.DiscardHandler)
	random := s.source(seed)
	n.set = outage.NewBreakers(quiet, s.world.time)
	n.set.Vary(random.Float64)
	timeout := time.Duration(s.network.timeout) * time.Microsecond
	for range s.network.masters {
		n.breakers = append(n.breakers, n.set.New(storeName, "", timeout))
	}
	elapsed := func() limit.Micros { return started + s.world.now }
	own := clock.NewOf(func() (limit.Micros, limit.Micros) { return s.world.wallTime(), elapsed() })
	shared := outage.Central(&link{network: s.network, node: n})
	if s.scenario.shared != nil {
		shared = s.scenario.shared(shared)
	}
	fallback := memory.New(memory.Options{Now: own.Now})
	salt := fmt.Sprint(random.Uint64())
	hash := func(key policy.Key) uint64 { return xxhash.Sum64String(salt + fmt.Sprint(key)) }
	n.outage = outage.New(shared, fallback, outage.Options{
		Name: storeName, Log: quiet, Now: own.Now, Breakers: n.set, Hash: hash, MaxSightings: s.sightings(),
	})
	n.lease = lease.New(shared, lease.Options{
		Now: elapsed, Nodes: n.outage.LeaseNodes, Observer: n.outage.Observe, Hash: hash,
		Policies: leasable(s.scenario.LeaseShare > 0), SharePct: s.scenario.LeaseShare,
	})
	config := &s.scenario.config
	view := n.outage.Store(outage.StoreOptions{Namespace: config.Namespace, SharePct: int(config.LocalSharePct)})
	n.decider = &admit.Decider{
		Now: s.world.wallTime, Elapsed: elapsed, Buckets: n.lease.Store(view), Renderer: response.New(*config, random.Int64N),
	}
	n.decider.Policies.Store(s.scenario.plan)
	n.startLoops()
	return n
}

// storeName names the masters to the breakers.
const storeName = "simulated"

// leasable says whether policies are leased, as package bucket does.
type leasable bool

// MayLease implements lease.Policies.
func (l leasable) MayLease(p *policy.Policy) bool { return bool(l) && p.Leasable() }

// startLoops starts the background work of a node.
func (n *node) startLoops() {
	ctx := context.Background()
	n.loops = []*loop{{node: n, wake: n.lease.Wake(), step: func() limit.Micros {
		return max(n.lease.Step(ctx, started+n.world.now)-started, n.world.now+limit.Second/1000)
	}}}
	for _, w := range n.outage.Loops() {
		n.loops = append(n.loops, &loop{node: n, wake: w.Wake, step: func() limit.Micros {
			if next := w.Step(ctx, n.world.time()); !next.IsZero() {
				return instant(next)
			}
			return limit.Never
		}})
	}
	for _, l := range n.loops {
		l.schedule(n.world.now)
	}
}

// poke runs the loops that were signalled.
func (n *node) poke() {
	for _, l := range n.loops {
		if !l.busy && l.signalled() {
			l.schedule(n.world.now)
		}
	}
}

// loop is a part of a node's background work: a coroutine while it works.
type loop struct {
	node   *node
	wake   <-chan struct{}
	step   func() (next limit.Micros)
	busy   bool
	number int // of the schedule in force
}

// signalled reports whether a step is due before its time.
func (l *loop) signalled() bool {
	select {
	case <-l.wake:
		return true
	default:
		return false
	}
}

// schedule runs the loop at an instant, in place of the one that was scheduled before.
func (l *loop) schedule(at limit.Micros) {
	l.number++
	if at == limit.Never {
		return
	}
	number := l.number
	l.node.world.at(at, func() {
		if l.number == number && !l.busy && !l.node.idle {
			l.node.world.start(l.run)
		}
	})
}

func (l *loop) run() {
	l.busy = true
	next := l.step()
	if l.busy = false; l.signalled() {
		next = l.node.world.now
	}
	l.schedule(next)
}
