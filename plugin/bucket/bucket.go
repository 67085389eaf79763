// Package bucket puts stores together: it opens the buckets of a plugin config, in this process or in Redis. The plugin
// server, the REST API and package limiter all open their buckets here, so they count alike. What it opens is a
// [store.Store]: take, peek, settle. That interface is in a package below, where the stores can name it too.
//
// For Redis the decorators stand in this order: package addresses chooses the bucket that counts an address; package
// lease answers from leases and remembered denials; package outage calls Redis (package redis) and, where Redis does
// not answer, applies fail modes with this node's share in memory (package memory). Beside them stands package share,
// which keeps tenants to their fair shares of a bucket.
//
// Elsewhere: settings of processes, metrics, which policies apply, and the path of a request.
package bucket

import (
	"context"
	"encoding/gob"
	"errors"
	"log/slog"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/bucket/memory"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/bucket/outage"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/bucket/redis"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/bucket/reservation"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/bucket/share"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/bucket/store"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/limit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

// Options configures Stores. Now, Elapsed, Budget and Log must be set.
type Options struct {
	// Now is the clock of the buckets in this process. It should never step, like a clock.Clock.
	Now func() limit.Micros
	// Elapsed is a monotonic clock, which times leases.
	Elapsed func() limit.Micros
	// Budget bounds the time that one request may wait. It caps the Redis timeouts of a config.
	Budget time.Duration
	Log    *slog.Logger
	// Superseded reports whether this process answers no requests, and so does not count as a live node; nil: it does.
	Superseded func() bool

	MaxBuckets int // most buckets of strategy local, and again for each Redis that is unavailable; 0: one million
	Nodes      int // the fewest nodes that share a limit while Redis is unavailable; 0: one
	LeaseShare int // percent of a limit that may be out on lease, at most lease.MaxSharePct; 0: none

	// MaxAddresses bounds the addresses with buckets in each Redis by this node; 0: addresses.DefaultMost; negative: none.
	MaxAddresses int
	NewAddresses int // new ones a second; 0: addresses.DefaultRate; negative: any number
}

// Stores holds the stores of one process: one in memory, and one for each Redis that a config names. It opens that of a
// Redis for the first config that uses it, and closes it with the last. It is safe for concurrent use. Make it with
// New.
type Stores struct {
	options   Options
	breakers  *outage.Breakers
	operators *redis.Registry // see OpenOperators
	ctx       context.Context // of background work; it does not end by itself
	running   sync.WaitGroup

	active set
	// candidates holds the stores in which candidates count: in the same Redis as requests, and yet apart from them. They
	// have connections of their own and no breaker, no fallback and no budget of addresses, so nothing that a candidate
	// does or waits for changes what requests get.
	candidates set

	mu sync.Mutex // of what the sets have open
}

// set holds the stores of requests, or those of candidates.
type set struct {
	redis  *redis.Registry
	local  *memory.Store
	shares *share.Divider // of local
	open   map[*redis.Store]*layers
}

func newSet(o *Options, registry *redis.Registry) set {
	return set{
		redis:  registry,
		local:  memory.New(memory.Options{Now: o.Now, MaxBuckets: o.MaxBuckets}),
		shares: share.New(share.Options{Now: o.Elapsed}),
		open:   map[*redis.Store]*layers{},
	}
}

// New returns stores. It does no I/O and starts nothing: see [Stores.Run]. Background work has the values of ctx, but
// not its end.
func New(ctx context.Context, o Options) *Stores {
	breakers := outage.NewBreakers(o.Log, time.Now)
	newGate := func(store, server string, timeout time.Duration) redis.Gate {
		return breakers.New(store, server, timeout)
	}
	quiet := slog.New(slog.DiscardHandler)
	return &Stores{
		options:    o,
		breakers:   breakers,
		operators:  redis.NewRegistry(quiet, nil),
		ctx:        context.WithoutCancel(ctx),
		active:     newSet(&o, redis.NewRegistry(o.Log, newGate)),
		candidates: newSet(&o, redis.NewRegistry(quiet, nil)),
	}
}

// Open returns the buckets of a config, which must have its defaults, and a function that releases them. It does not
// block; Redis may be unavailable. It fails if the config names no Redis, or certificates that cannot be read.
func (s *Stores) Open(config *schema.Config) (buckets store.Store, release func(), err error) {
	return openRouted(config, s.openPool, Route)
}

// OpenPools returns the buckets of each pool of a config by its number: one, unless the config has pools. release and
// errors are those of [Stores.Open].
func (s *Stores) OpenPools(config *schema.Config) (buckets []store.Store, release func(), err error) {
	return openEach(config, s.openPool)
}

func (s *Stores) openPool(config *schema.Config) (buckets store.Store, release func(), err error) {
	if config.Strategy != schema.StrategyRedis {
		return s.active.local, func() {}, nil
	}
	used, releaseShared, err := s.use(config)
	if err != nil {
		return nil, nil, err
	}
	view := used.outage.Store(outage.StoreOptions{
		Namespace: config.Namespace, SharePct: int(config.LocalSharePct), Nodes: s.options.Nodes,
	})
	buckets = used.lease.Store(view)
	if used.addresses != nil {
		buckets = used.addresses.Store(buckets, view.Local())
	}
	return buckets, func() {
		view.Close()
		releaseShared()
	}, nil
}

// OpenShares returns what keeps tenants to their fair shares of the buckets of a config. release and errors are those
// of [Stores.Open].
func (s *Stores) OpenShares(config *schema.Config) (shares share.Dividers, release func(), err error) {
	return openEach(config, s.openShares)
}

func (s *Stores) openShares(config *schema.Config) (shares *share.Divider, release func(), err error) {
	if config.Strategy != schema.StrategyRedis {
		return s.active.shares, func() {}, nil
	}
	used, release, err := s.use(config)
	if err != nil {
		return nil, nil, err
	}
	return used.shares, release, nil
}

// use opens the Redis of a config with its decorators, and returns the function that releases them.
func (s *Stores) use(config *schema.Config) (used *layers, release func(), err error) {
	return s.useOf(&s.active, config, s.start)
}

// useOf opens the Redis of a config for a set. It returns its layers, which it starts unless they are open, and the
// function that releases them.
func (s *Stores) useOf(
	in *set, config *schema.Config, start func(*redis.Store) *layers,
) (used *layers, release func(), err error) {
	opened, closeRedis, err := s.openRedis(in.redis, config)
	if err != nil {
		return nil, nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	used, ok := in.open[opened]
	if !ok {
		used = start(opened)
		in.open[opened] = used
	}
	used.uses++
	return used, func() { s.release(in, used, closeRedis) }, nil
}

// Central is the store that all nodes share, as Redis has it: without leases or remembered denials in front, and
// without a fallback behind. Bounds that Redis does not answer stay decision.Unanswered, with a failure.
type Central interface {
	store.Keeper
	// Ping returns nil if every server of the Redis answers.
	Ping(ctx context.Context) error
	// Raise charges fixed windows and periods with what is missing to so many tokens, see [redis.Store.Raise].
	Raise(ctx context.Context, bounds []policy.Bound, least []int64) (charged []int64, err error)
}

// ErrNotCentral is the error of a config whose buckets each node keeps for itself.
var ErrNotCentral = errors.New("strategy is not redis: each node keeps its own buckets, so they cannot be read in " +
	"one place")

// OpenCentral returns the shared buckets of a config, to read usage and to reset, over the connection of its requests.
// release and errors are as with [Stores.Open], or ErrNotCentral.
func (s *Stores) OpenCentral(config *schema.Config) (buckets Central, release func(), err error) {
	return openRouted(config, func(pool *schema.Config) (Central, func(), error) {
		return s.openRedis(s.active.redis, pool)
	}, routeCentral)
}

// OpenRecords returns the records beside the shared buckets of each pool of a config, over the connection of its
// requests. A config without shared buckets has none: then its one element is nil. release and errors are as with
// [Stores.Open].
func (s *Stores) OpenRecords(config *schema.Config) (records []reservation.Central, release func(), err error) {
	return openEach(config, s.openRecords)
}

func (s *Stores) openRecords(config *schema.Config) (records reservation.Central, release func(), err error) {
	opened, release, err := s.openRedis(s.active.redis, config)
	switch {
	case errors.Is(err, ErrNotCentral):
		return nil, func() {}, nil
	case err != nil:
		return nil, nil, err
	}
	return opened.Records(config.Namespace), release, nil
}

// openRedis opens the Redis of a config from a registry, or returns ErrNotCentral. Its timeout is capped by the time
// budget of a request, so that fail modes decide in time.
func (s *Stores) openRedis(from *redis.Registry, config *schema.Config) (*redis.Store, func(), error) {
	if config.Strategy != schema.StrategyRedis {
		return nil, nil, ErrNotCentral
	}
	block := config.Redis
	block.ReadTimeout = max(1, min(block.ReadTimeout, s.options.Budget.Milliseconds()))
	return from.Open(block)
}

// Run serves the stores until ctx ends. Then it releases leases, leaves the list of live nodes, and closes connections,
// in this order.
func (s *Stores) Run(ctx context.Context) error {
	end := run(ctx, s.active.local.Run, s.active.shares.Run, s.candidates.local.Run, s.candidates.shares.Run,
		s.breakers.Run)
	defer end()
	connected, disconnect := context.WithCancel(context.WithoutCancel(ctx))
	defer disconnect()
	var registries errgroup.Group
	for _, r := range []*redis.Registry{s.active.redis, s.operators, s.candidates.redis} {
		registries.Go(func() error { return r.Run(connected) })
	}
	<-ctx.Done()
	s.mu.Lock()
	for _, open := range []map[*redis.Store]*layers{s.active.open, s.candidates.open} {
		for _, used := range open {
			s.running.Go(used.end)
		}
	}
	s.mu.Unlock()
	s.running.Wait()
	disconnect()
	return registries.Wait()
}

// Save writes the buckets of strategy local for another process.
func (s *Stores) Save(to *gob.Encoder) error {
	return errors.Join(s.active.local.Save(to), s.candidates.local.Save(to))
}

// Load reads what the Save of another process has written, and returns the function that adds it.
func (s *Stores) Load(from *gob.Decoder) (add func(), err error) {
	addActive, err := s.active.local.Load(from)
	if err != nil {
		return nil, err
	}
	addCandidates, err := s.candidates.local.Load(from)
	return func() { addActive(); addCandidates() }, err
}

// run starts background work that does not end by itself, and returns the function that ends it and waits.
func run(ctx context.Context, loops ...func(context.Context) error) (end func()) {
	ctx, cancel := context.WithCancel(ctx)
	var running sync.WaitGroup
	for _, loop := range loops {
		running.Go(func() { _ = loop(ctx) }) // none has errors: each ends with ctx
	}
	return func() {
		cancel()
		running.Wait()
	}
}

// operatorTimeout is the shortest timeout of operators, in milliseconds: a Redis that is too slow for requests still
// answers them.
const operatorTimeout = 2000

// OpenOperators opens a config's buckets with operatorTimeout and connections of its own, without a breaker. So
// requests and operators do not affect each other's breakers.
func (s *Stores) OpenOperators(config *schema.Config) (buckets Central, release func(), err error) {
	return openRouted(config, func(pool *schema.Config) (Central, func(), error) {
		return s.openOperators(pool)
	}, routeCentral)
}

func (s *Stores) openOperators(config *schema.Config) (*redis.Store, func(), error) {
	if config.Strategy != schema.StrategyRedis {
		return nil, nil, ErrNotCentral
	}
	return s.operators.Open(WithTimeouts(config.Redis, operatorTimeout))
}

// OpenOperatorRecords is OpenRecords over the connections of [Stores.OpenOperators]: a large record delays no request,
// and no breaker counts it. It fails with ErrNotCentral if there are no shared buckets.
func (s *Stores) OpenOperatorRecords(config *schema.Config) (records []*redis.Records, release func(), err error) {
	return openEach(config, func(pool *schema.Config) (*redis.Records, func(), error) {
		opened, release, err := s.openOperators(pool)
		if err != nil {
			return nil, nil, err
		}
		return opened.Records(pool.Namespace), release, nil
	})
}

// WithTimeouts returns a block with its defaults, and with no timeout below least, in milliseconds.
func WithTimeouts(block schema.Redis, least int64) schema.Redis {
	block = schema.Config{Redis: block}.WithDefaults().Redis
	for _, timeout := range []*int64{&block.ConnectTimeout, &block.SendTimeout, &block.ReadTimeout} {
		*timeout = max(*timeout, least)
	}
	return block
}
