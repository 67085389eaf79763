package bucket

import (
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/bucket/redis"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/bucket/share"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/bucket/store"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/resolve"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

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
	// Its buckets are leased as buckets of requests are: without leases, every request that an active limit answers from
	// one would call Redis for the candidate.
	used, releaseOwn, err := s.useOf(&s.candidates, config, func(opened *redis.Store) *layers {
		nodes := func(namespace string) int { return active.outage.LeaseNodes(resolve.ActiveNamespace(namespace)) }
		made := s.newLayers(opened, nodes, nil)
		made.end = run(s.ctx, made.lease.Run, made.shares.Run)
		return made
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
