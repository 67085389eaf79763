package stores

import (
	"context"
	"sync"
	"time"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/addresses"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/lease"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/memstore"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/outage"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/policy"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/redisstore"
)

// shared is one Redis with what stands around it. Requests are answered from leases, else by Redis, else as the outage
// layer says.
type shared struct {
	redis  *redisstore.Store
	outage *outage.Store
	lease  *lease.Store
	// addresses is how many of them may have buckets; nil: any number
	addresses *addresses.Budget
	uses      int
	end       func() // waits; it may be called again
}

// start begins to watch a store. s.mu is held.
func (s *Stores) start(store *redisstore.Store) *shared {
	fallback := memstore.New(memstore.Options{Now: s.options.Now, MaxBuckets: s.options.MaxBuckets})
	away := outage.New(store, fallback, outage.Options{Name: store.Name(), Log: s.options.Log, Now: s.options.Now, Breakers: s.breakers, Away: s.options.Away})
	of := &shared{
		redis: store, outage: away,
		lease: lease.New(store, lease.Options{Now: s.options.Elapsed, Live: away.Counted, Leased: s.leased, Saw: away.Saw, SharePct: s.options.LeaseShare}),
	}
	if s.options.MaxAddresses >= 0 {
		of.addresses = addresses.New(addresses.Options{Now: s.options.Elapsed, Most: s.options.MaxAddresses, Rate: s.options.NewAddresses})
	}
	// Leases are given back before this node takes its leave: the others would count on them at once.
	leasing, giveBack := context.WithCancel(s.ctx)
	watching, leave := context.WithCancel(s.ctx)
	var leases, watchers sync.WaitGroup
	leases.Go(func() { s.report("renewing leases", of.lease.Run(leasing)) })
	watchers.Go(func() { s.report("watching Redis", away.Run(watching)) })
	watchers.Go(func() { s.report("sweeping fallback buckets", fallback.Run(watching)) })
	of.end = func() {
		giveBack()
		leases.Wait()
		leave()
		watchers.Wait()
	}
	s.open[store] = of
	return of
}

// leased tells whether a policy may be leased.
func (s *Stores) leased(p *policy.Policy) bool {
	return s.options.LeaseShare > 0 && p.Leasable()
}

// release counts a user out. The last one's leave ends the store in the background: it takes leave of the other nodes,
// and whoever changes configs must not wait for that.
func (s *Stores) release(of *shared, closeRedis func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if of.uses--; of.uses > 0 {
		closeRedis()
		return
	}
	delete(s.open, of.redis)
	s.running.Go(func() {
		of.end()
		closeRedis()
	})
}

// Local are the numbers of the buckets of configs with the strategy local.
func (s *Stores) Local() memstore.Stats { return s.local.Stats() }

// Stats are the numbers of one Redis and of what stands around it.
type Stats struct {
	Name        string        // where it is, without secrets
	Degraded    bool          // some server of it is away
	DegradedFor time.Duration // altogether, since the start
	Redis       redisstore.Stats
	Outage      outage.Stats
	Lease       lease.Stats
	Addresses   addresses.Stats
}

// Stats are the numbers of every Redis in use, in no order.
func (s *Stores) Stats() []Stats {
	s.mu.Lock()
	defer s.mu.Unlock()
	var list []Stats
	for _, of := range s.open {
		stats := Stats{Name: of.redis.Name(), Redis: of.redis.Stats(), Outage: of.outage.Stats(), Lease: of.lease.Stats()}
		if of.addresses != nil {
			stats.Addresses = of.addresses.Stats()
		}
		stats.Degraded, stats.DegradedFor = s.breakers.Degraded(stats.Name)
		list = append(list, stats)
	}
	return list
}
