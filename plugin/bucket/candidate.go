package bucket

import (
	"context"
	"crypto/rand"
	"log/slog"
	"sync"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/bucket/lease"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/bucket/memory"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/bucket/redis"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/bucket/share"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/bucket/store"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/resolve"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

// candidateStores holds the stores in which candidates count: in the same Redis as requests, and yet apart from them.
// They have connections of their own and no breaker, no fallback and no budget of addresses, so nothing that a
// candidate does or waits for changes what requests get.
type candidateStores struct {
	redis  *redis.Registry
	local  *memory.Store
	shares *share.Divider // of local
	open   map[*redis.Store]*layers
}

func newCandidateStores(o *Options) candidateStores {
	return candidateStores{
		redis:  redis.NewRegistry(slog.New(slog.DiscardHandler), nil),
		local:  memory.New(memory.Options{Now: o.Now, MaxBuckets: o.MaxBuckets}),
		shares: share.New(share.Options{Now: o.Elapsed}),
		open:   map[*redis.Store]*layers{},
	}
}

// runCandidates serves the stores in this process until ctx ends.
func (s *Stores) runCandidates(ctx context.Context, running *sync.WaitGroup) {
	running.Go(func() { s.report("sweeping buckets of candidates", s.candidates.local.Run(ctx)) })
	running.Go(func() { s.report("dividing limits of candidates", s.candidates.shares.Run(ctx)) })
}

// OpenCandidate returns the store in which a candidate counts for a config, and what keeps tenants to their fair shares
// of its buckets. Bounds that Redis does not answer have a failure. release and errors are as with [Stores.Open].
func (s *Stores) OpenCandidate(
	config *schema.Config,
) (buckets store.Store, shares *share.Divider, release func(), err error) {
	if config.Strategy != schema.StrategyRedis {
		return s.candidates.local, s.candidates.shares, func() {}, nil
	}
	active, releaseActive, err := s.use(config)
	if err != nil {
		return nil, nil, nil, err
	}
	used, releaseOwn, err := s.useOf(s.candidates.open, s.candidates.redis, config, func(opened *redis.Store) *layers {
		return s.startCandidate(opened, active)
	})
	if err != nil {
		releaseActive()
		return nil, nil, nil, err
	}
	return used.lease.Store(used.redis), used.shares, func() {
		releaseOwn()
		releaseActive()
	}, nil
}

// startCandidate opens the decorators of a Redis. Its buckets are leased as buckets of requests are: without leases,
// every request that an active limit answers from one would call Redis for the candidate. s.mu is held.
func (s *Stores) startCandidate(opened *redis.Store, active *layers) *layers {
	made := &layers{
		redis: opened,
		lease: lease.New(opened, lease.Options{
			Now: s.options.Elapsed, Nodes: candidateNodes{active}, Policies: leasable{s.options.LeaseShare},
			SharePct: s.options.LeaseShare,
		}),
		shares: share.New(share.Options{
			Now: s.options.Elapsed, Exchange: opened, Node: rand.Text(),
		}),
	}
	running, end := context.WithCancel(s.ctx)
	var loops sync.WaitGroup
	loops.Go(func() { s.report("renewing leases of candidates", made.lease.Run(running)) })
	loops.Go(func() { s.report("dividing limits of candidates", made.shares.Run(running)) })
	made.end = func() {
		end()
		loops.Wait()
	}
	return made
}

// candidateNodes counts the nodes of the namespace that a candidate's buckets belong to.
type candidateNodes struct{ active *layers }

// LeaseNodes implements lease.Nodes.
func (n candidateNodes) LeaseNodes(namespace string) int {
	return n.active.outage.LeaseNodes(resolve.ActiveNamespace(namespace))
}
