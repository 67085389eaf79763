package bucket

import (
	"crypto/rand"
	"time"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/bucket/addresses"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/bucket/lease"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/bucket/memory"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/bucket/outage"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/bucket/redis"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/bucket/share"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/bucket/store"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/resolve"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

// layers is one Redis with its decorators: leases answer a request, else Redis, else the outage layer.
type layers struct {
	redis  *redis.Store
	outage *outage.Guard // nil: of candidates
	lease  *lease.Leases
	shares *share.Divider
	// addresses bounds how many of them have buckets; nil: any number
	addresses *addresses.Budget
	uses      int
	end       func() // blocks until it is done; it may be called again
}

// start opens the decorators of a Redis. s.mu is held.
func (s *Stores) start(opened *redis.Store) *layers {
	fallback := memory.New(memory.Options{Now: s.options.Now, MaxBuckets: s.options.MaxBuckets})
	guarded := outage.New(opened, fallback, outage.Options{
		Name: opened.Name(), Log: s.options.Log, Now: s.options.Now, Breakers: s.breakers,
		Superseded: s.options.Superseded,
	})
	made := s.newLayers(opened, guarded.LeaseNodes, guarded.Observe)
	made.outage = guarded
	if s.options.MaxAddresses >= 0 {
		made.addresses = addresses.New(addresses.Options{
			Now: s.options.Elapsed, Most: s.options.MaxAddresses, Rate: s.options.NewAddresses,
		})
	}
	// Leases are released before this node leaves the list: other nodes would lease its share at once.
	giveBack := run(s.ctx, made.lease.Run, made.shares.Run)
	leave := run(s.ctx, guarded.Run, fallback.Run)
	made.end = func() {
		giveBack()
		leave()
	}
	return made
}

// newLayers returns the leases and fair shares of a Redis.
func (s *Stores) newLayers(opened *redis.Store, nodes lease.Nodes, observer lease.Observer) *layers {
	return &layers{
		redis: opened,
		lease: lease.New(opened, lease.Options{
			Now: s.options.Elapsed, Nodes: nodes, Policies: leasable{s.options.LeaseShare}, Observer: observer,
			SharePct: s.options.LeaseShare,
		}),
		shares: share.New(share.Options{Now: s.options.Elapsed, Exchange: opened, Node: rand.Text()}),
	}
}

// leasable are the policies that may be leased, by the share of a limit that may be out on lease.
type leasable struct{ share int }

// MayLease implements lease.Policies.
func (l leasable) MayLease(p *policy.Policy) bool { return l.share > 0 && p.Leasable() }

// StorePolicy returns the policy that requests use to call Redis for a bucket of p: p itself, or a copy with less
// capacity if tokens of it may be out on lease.
func (s *Stores) StorePolicy(p *policy.Policy) *policy.Policy {
	if !(leasable{s.options.LeaseShare}).MayLease(p) {
		return p
	}
	return lease.StorePolicy(p, s.options.LeaseShare)
}

// release counts a user out. The last one's release closes the store in the background: leaving the list of live nodes
// may block, and a config change must not wait for that.
func (s *Stores) release(in *set, used *layers, closeRedis func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if used.uses--; used.uses > 0 {
		closeRedis()
		return
	}
	delete(in.open, used.redis)
	s.running.Go(func() {
		used.end()
		closeRedis()
	})
}

// LocalShares returns the numbers of fair shares of configs with strategy local.
func (s *Stores) LocalShares() share.Stats { return s.active.shares.Stats() }

// Local returns the numbers of the buckets of configs with strategy local.
func (s *Stores) Local() memory.Stats { return s.active.local.Stats() }

// Stats holds the numbers of one Redis and its decorators.
type Stats struct {
	Name           string          `label:"store"`                 // where it is, without secrets
	Degraded       bool            `metric:"degraded" merge:"max"` // some server of it is unavailable
	UnavailableFor time.Duration   // how long it has been degraded; 0: it is not
	DegradedFor    time.Duration   `metric:"degraded_seconds_total" merge:"max"` // altogether, since the start
	Redis          redis.Stats     `metric:""`
	Outage         outage.Stats    `metric:""`
	Lease          lease.Stats     `metric:""`
	Addresses      addresses.Stats `metric:""`
	Shares         share.Stats
}

// Stats returns the numbers of every Redis in use, in no order.
func (s *Stores) Stats() []Stats {
	s.mu.Lock()
	defer s.mu.Unlock()
	var list []Stats
	for _, used := range s.active.open {
		stats := Stats{
			Name: used.redis.Name(), Redis: used.redis.Stats(), Outage: used.outage.Stats(), Lease: used.lease.Stats(),
			Shares: used.shares.Stats(),
		}
		stats.Degraded, stats.UnavailableFor, stats.DegradedFor = s.breakers.Degraded(stats.Name)
		if used.addresses != nil {
			stats.Addresses = used.addresses.Stats()
		}
		list = append(list, stats)
	}
	return list
}

// OpenCandidate returns the store in which a candidate counts for a config, and what keeps tenants to their fair shares
// of its buckets. Bounds that Redis does not answer have a failure. release and errors are as with [Stores.Open].
func (s *Stores) OpenCandidate(
	config *schema.Config,
) (buckets store.Store, shares share.Dividers, release func(), err error) {
	var all []store.Store
	shares, release, err = openEach(config, func(pool *schema.Config) (*share.Divider, func(), error) {
		one, divider, releaseOne, err := s.openCandidate(pool)
		all = append(all, one)
		return divider, releaseOne, err
	})
	if err != nil {
		return nil, nil, nil, err
	}
	return Route(all), shares, release, nil
}

func (s *Stores) openCandidate(
	config *schema.Config,
) (buckets store.Store, shares *share.Divider, release func(), err error) {
	if config.Strategy != schema.StrategyRedis {
		return s.candidates.local, s.candidates.shares, func() {}, nil
	}
	active, releaseActive, err := s.use(config)
	if err != nil {
		return nil, nil, nil, err
	}
	// Its buckets are leased as buckets of requests are: without leases, every request that an active limit answers
	// from one would call Redis for the candidate.
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
