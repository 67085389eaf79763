// Package stores wires where buckets are kept: for each plugin config a view of the buckets in this process, or of those
// in Redis behind leases, with what happens while Redis is away. It decides nothing itself; like package engine, which
// builds paths, it is a room that imports several adapters, so that programs other than the plugin server (package
// limiter, the control plane) keep buckets exactly as the plugin does.
//
// The adapters stand in this order: which bucket counts an address (package addresses); then, the first that can answer
// does, leases (package lease), Redis (packages outage and redis), this node's share of the limit in this process
// (packages outage and memory). Redis is one, or a pair of which the second keeps the buckets of addresses.
//
// What does not live here: settings of processes, metrics, which policies apply, and the path of a request.
package bucket

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/admit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/bucket/addresses"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/bucket/memory"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/bucket/outage"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/bucket/redis"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/limit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/policy"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

// Options are what Stores need. Now, Elapsed, Budget and Log must be set.
type Options struct {
	// Now is the clock of the buckets in this process. It should never step, as a clock.Clock.
	Now func() limit.Micros
	// Elapsed is a clock that never steps, by which leases are timed.
	Elapsed func() limit.Micros
	// Budget is how long one request may wait: what a config allows Redis beyond it does not count.
	Budget time.Duration
	Log    *slog.Logger
	// Away reports whether this process answers no requests, and so does not count as a live node; nil: it always does.
	Away func() bool

	MaxBuckets int // most buckets of the strategy local, and again as many for each Redis while it is away; 0: one million
	Nodes      int // the fewest nodes that share a limit while Redis is away; 0: one
	LeaseShare int // percent of a limit that all nodes together may have out on lease, at most lease.MaxSharePct; 0: nothing is leased

	MaxAddresses int // most addresses with buckets in each Redis by this node; 0: addresses.DefaultMost; negative: any number
	NewAddresses int // new ones a second; 0: addresses.DefaultRate; negative: any number
}

// Stores are the stores of one process: one in this process, and one for each Redis that a config names, opened for the
// first config whose settings lead to it, and ended with the last. They are safe for concurrent use. Make them with New.
type Stores struct {
	options   Options
	local     *memory.Store
	breakers  *outage.Breakers
	redis     *redis.Registry
	operators *redis.Registry // see OpenOperators
	ctx       context.Context // of what runs in the background; it has no end of its own
	running   sync.WaitGroup

	mu   sync.Mutex
	open map[redisPair]*shared
}

// New makes stores. It does no I/O and starts nothing: see [Stores.Run]. What runs in the background has the values of
// ctx, and not its end.
func New(ctx context.Context, o Options) *Stores {
	breakers := outage.NewBreakers(o.Log)
	gates := func(store, server string, timeout time.Duration) redis.Gate {
		return breakers.New(store, server, timeout)
	}
	return &Stores{
		options: o, local: memory.New(memory.Options{Now: o.Now, MaxBuckets: o.MaxBuckets}), breakers: breakers,
		redis: redis.NewRegistry(o.Log, gates), operators: redis.NewRegistry(slog.New(slog.DiscardHandler), nil), ctx: context.WithoutCancel(ctx), open: map[redisPair]*shared{},
	}
}

// Open answers the buckets of a config, which has its defaults, and what must be called once when they are no longer
// used. It waits for nothing, Redis may be away. It fails when the config names no Redis, or certificates that cannot be
// read.
func (s *Stores) Open(config *schema.Config) (buckets admit.Buckets, release func(), err error) {
	if config.Strategy != schema.StrategyRedis {
		return s.local, func() {}, nil
	}
	redis, closeRedis, err := s.connect(config)
	if err != nil {
		return nil, nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	of, ok := s.open[pairOf(redis)]
	if !ok {
		of = s.start(redis)
	}
	of.uses++
	view := of.outage.View(outage.ViewOptions{Namespace: config.Namespace, SharePct: int(config.LocalSharePct), Nodes: s.options.Nodes})
	buckets = of.lease.View(view)
	if of.addresses != nil {
		buckets = of.addresses.View(buckets, view)
	}
	return buckets, func() {
		view.Close()
		s.release(of, closeRedis)
	}, nil
}

// Shared are the buckets that all nodes share, as Redis has them: without leases or memory of refusals in front, and
// without a fallback behind. What Redis does not answer is left decision.Unanswered, with a failure.
type Shared interface {
	admit.Buckets
	// Forget empties buckets, which gives their owners all of their limits back, and tells how many there were. Before an
	// error some may have been emptied.
	Forget(ctx context.Context, keys []policy.Key) (int, error)
	// Ping returns nil when every server of the Redis answers, the one of addresses excepted.
	Ping(ctx context.Context) error
	// PingSecond returns nil when every server of the Redis of addresses answers, or there is none.
	PingSecond(ctx context.Context) error
}

// ErrNotShared is the error of a config whose buckets every node keeps for itself.
var ErrNotShared = errors.New("strategy is not redis: every node keeps its own buckets, and there is no one place to read them")

// OpenShared answers the buckets of a config themselves, to read what is used and to empty them, over the connection
// that its requests have. release and errors are those of [Stores.Open], and ErrNotShared.
func (s *Stores) OpenShared(config *schema.Config) (buckets Shared, release func(), err error) {
	if config.Strategy != schema.StrategyRedis {
		return nil, nil, ErrNotShared
	}
	return shareable(s.connect(config))
}

// shareable keeps a failed opening from being taken for buckets.
func shareable(redis *redis.Pair, release func(), err error) (Shared, func(), error) {
	if err != nil {
		return nil, nil, err
	}
	return redis, release, nil
}

// connect opens the Redis of a config. The time budget of a request is not exceeded for it: fail modes decide in time.
func (s *Stores) connect(config *schema.Config) (*redis.Pair, func(), error) {
	main, second := config.Redis, config.AddressRedis
	for _, block := range []*schema.Redis{&main, &second} {
		if !block.IsZero() {
			block.ReadTimeout = max(1, min(block.ReadTimeout, s.options.Budget.Milliseconds()))
		}
	}
	return s.redis.OpenPair(main, second, addresses.Counted)
}

// Run serves the stores until ctx ends. Leases are given back before this node takes its leave of the other nodes, and
// connections are closed when all stores have done that.
func (s *Stores) Run(ctx context.Context) error {
	var sweeping sync.WaitGroup
	sweeping.Go(func() { s.report("sweeping buckets", s.local.Run(ctx)) })
	sweeping.Go(func() { s.report("measuring stalls", s.breakers.Run(ctx)) })
	defer sweeping.Wait()
	connected, disconnect := context.WithCancel(context.WithoutCancel(ctx))
	defer disconnect()
	closed := make(chan error, 2)
	go func() { closed <- s.redis.Run(connected) }()
	go func() { closed <- s.operators.Run(connected) }()
	<-ctx.Done()
	s.mu.Lock()
	for _, of := range s.open {
		s.running.Go(of.end)
	}
	s.mu.Unlock()
	s.running.Wait()
	disconnect()
	return errors.Join(<-closed, <-closed)
}

// report logs the error with which something ended that should go on.
func (s *Stores) report(what string, err error) {
	if err != nil {
		s.options.Log.Error(what+" has ended", "error", err)
	}
}
