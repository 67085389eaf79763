package app

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/admit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/lease"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/memstore"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/metrics"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/outage"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/policy"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/redisstore"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

// sharedStores are the Redis stores of the process, each with what happens while it is away. One is opened for the
// first config whose settings lead to it, and ends with the last.
type sharedStores struct {
	log        *slog.Logger
	maxBuckets int
	nodes      int
	leaseShare int // percent; 0: nothing is leased
	budget     time.Duration
	breakers   *outage.Breakers
	redis      *redisstore.Registry
	ctx        context.Context // of what runs in the background; it has no end of its own
	running    sync.WaitGroup

	mu   sync.Mutex
	open map[*redisstore.Store]*sharedStore
}

// sharedStore is one of them. Requests are answered from leases, else by Redis, else as the outage layer says.
type sharedStore struct {
	redis    *redisstore.Store
	outage   *outage.Store
	lease    *lease.Store
	fallback *memstore.Store
	uses     int
	end      func()
}

func newSharedStores(ctx context.Context, s *settings, log *slog.Logger) *sharedStores {
	breakers := outage.NewBreakers(log)
	gates := func(store, server string, timeout time.Duration) redisstore.Gate {
		return breakers.New(store, server, timeout)
	}
	return &sharedStores{
		log: log, maxBuckets: s.MaxBuckets, nodes: s.Nodes, leaseShare: s.LeaseShare, budget: s.TimeBudget,
		breakers: breakers, redis: redisstore.NewRegistry(log, gates), ctx: context.WithoutCancel(ctx), open: map[*redisstore.Store]*sharedStore{},
	}
}

// view is the store that a config names, as the config uses it, and what ends that.
func (s *sharedStores) view(config *schema.Config) (admit.Buckets, func(), error) {
	// The time budget of a request is not exceeded for Redis: its fail modes decide in time.
	block := config.Redis
	block.ReadTimeout = max(1, min(block.ReadTimeout, s.budget.Milliseconds()))
	store, closeRedis, err := s.redis.Open(block)
	if err != nil {
		return nil, nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	shared, ok := s.open[store]
	if !ok {
		shared = s.start(store)
	}
	shared.uses++
	view := shared.outage.View(outage.ViewOptions{Namespace: config.Namespace, SharePct: int(config.LocalSharePct), Nodes: s.nodes})
	return shared.lease.View(view), func() {
		view.Close()
		s.release(shared, closeRedis)
	}, nil
}

// start begins to watch a store. s.mu is held.
func (s *sharedStores) start(store *redisstore.Store) *sharedStore {
	fallback := memstore.New(memstore.Options{Now: clock, MaxBuckets: s.maxBuckets})
	away := outage.New(store, fallback, outage.Options{Name: store.Name(), Log: s.log, Now: clock, Breakers: s.breakers})
	shared := &sharedStore{
		redis: store, fallback: fallback, outage: away,
		lease: lease.New(store, lease.Options{Now: elapsed, Live: away.Counted, Leased: s.leased, Saw: away.Saw, SharePct: s.leaseShare}),
	}
	// Leases are given back before this node takes its leave: the others would count on them at once.
	leasing, giveBack := context.WithCancel(s.ctx)
	watching, leave := context.WithCancel(s.ctx)
	var leases, watchers sync.WaitGroup
	leases.Go(func() { s.report("renewing leases", shared.lease.Run(leasing)) })
	watchers.Go(func() { s.report("watching Redis", away.Run(watching)) })
	watchers.Go(func() { s.report("sweeping fallback buckets", fallback.Run(watching)) })
	shared.end = func() {
		giveBack()
		leases.Wait()
		leave()
		watchers.Wait()
	}
	s.open[store] = shared
	return shared
}

// leased tells whether a policy may be leased.
func (s *sharedStores) leased(p *policy.Policy) bool {
	return s.leaseShare > 0 && p.Leasable()
}

// report logs the error with which something ended that should go on.
func (s *sharedStores) report(what string, err error) {
	if err != nil {
		s.log.Error(what+" has ended", "error", err)
	}
}

// release counts a user out. The last one's leave ends the store in the background: it takes leave of the other nodes,
// and whoever changes configs must not wait for that.
func (s *sharedStores) release(shared *sharedStore, closeRedis func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if shared.uses--; shared.uses > 0 {
		closeRedis()
		return
	}
	delete(s.open, shared.redis)
	s.running.Go(func() {
		shared.end()
		closeRedis()
	})
}

// Run serves the stores until ctx ends. Connections are closed when all stores have taken their leave of the other nodes.
func (s *sharedStores) Run(ctx context.Context) error {
	connected, disconnect := context.WithCancel(context.WithoutCancel(ctx))
	defer disconnect()
	closed := make(chan error, 1)
	go func() { closed <- s.redis.Run(connected) }()
	<-ctx.Done()
	s.mu.Lock()
	for _, shared := range s.open {
		s.running.Go(shared.end)
	}
	s.mu.Unlock()
	s.running.Wait()
	disconnect()
	return <-closed
}

// stores are the numbers of all of them.
func (s *sharedStores) stores() []metrics.Store {
	s.mu.Lock()
	defer s.mu.Unlock()
	var list []metrics.Store
	for _, shared := range s.open {
		list = append(list, shared.numbers(s.breakers))
	}
	return list
}

func (s *sharedStore) numbers(breakers *outage.Breakers) metrics.Store {
	redis, outage, leases := s.redis.Stats(), s.outage.Stats(), s.lease.Stats()
	degraded, total := breakers.Degraded(s.redis.Name())
	numbers := metrics.Store{
		Name: s.redis.Name(), Degraded: degraded, DegradedSeconds: total.Seconds(), Waiting: int(outage.Waiting),
		Foreign: redis.Foreign, Taken: redis.Taken, LostRefunds: redis.LostRefunds, RoundTrips: redis.Calls, LiveNodes: outage.Live,
		Leases: metrics.Leases{
			Drawn: leases.Drawn, Remembered: leases.Remembered, Asked: leases.Asked, Renewals: leases.Renewals, Refunds: leases.Refunds,
			Out: leases.Out, Granted: uint64(leases.Tokens.Granted), Spent: uint64(leases.Tokens.Spent),
			Returned: uint64(leases.Tokens.Returned), Expired: uint64(leases.Tokens.Expired),
		},
	}
	for _, tally := range outage.Policies {
		numbers.Charged += uint64(tally.Charged)
		numbers.WrittenOff += uint64(tally.WrittenOff)
	}
	return numbers
}
