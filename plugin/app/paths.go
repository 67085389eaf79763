package app

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"

	"golang.org/x/sync/errgroup"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/admit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/kongplugin"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/memstore"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/metrics"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/policy"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/response"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

// paths builds the paths of all plugin configs, and keeps what they have in common.
type paths struct {
	local    *memstore.Store // buckets of configs with the strategy local
	meta     *memstore.Store // buckets of meta limits, which are no policy's
	shared   *sharedStores
	observer *observer
	metrics  *metrics.Metrics
}

// newPaths makes paths. server answers the one that serves them, once metrics are read.
func newPaths(ctx context.Context, s *settings, log *slog.Logger, server func() *kongplugin.Server) *paths {
	p := &paths{
		local:    memstore.New(memstore.Options{Now: clock, MaxBuckets: s.MaxBuckets}),
		meta:     memstore.New(memstore.Options{Now: clock, MaxBuckets: s.MaxBuckets}),
		shared:   newSharedStores(ctx, s, log),
		observer: &observer{log: log},
	}
	process := func() metrics.Process { return p.process(server()) }
	p.metrics = metrics.New(Version, metrics.Sources{Process: process, Buckets: p.buckets, Stores: p.shared.stores})
	return p
}

// build implements kongplugin.Build.
func (p *paths) build(config schema.Config, snapshot *policy.Snapshot) (*admit.Path, func(), error) {
	path := &admit.Path{
		Now:        clock,
		Buckets:    p.local,
		Renderer:   response.New(config, rand.Int64N),
		Observers:  []admit.Observer{p.metrics, p.observer},
		FailClosed: config.OnInternalError == schema.FailClosed,
	}
	path.Policies.Store(snapshot)
	if config.MetaLimit > 0 {
		meta, err := admit.NewMeta(config.MetaLimit, config.Namespace, p.meta)
		if err != nil {
			return nil, nil, fmt.Errorf("meta_limit: %w", err)
		}
		path.Meta = meta
	}
	if config.Strategy != schema.StrategyRedis {
		return path, nil, nil
	}
	view, release, err := p.shared.view(&config)
	if err != nil {
		return nil, nil, fmt.Errorf("redis: %w", err)
	}
	path.Buckets = view
	return path, release, nil
}

// run forgets what has expired and watches the shared stores until ctx ends.
func (p *paths) run(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return p.local.Run(ctx) })
	group.Go(func() error { return p.meta.Run(ctx) })
	group.Go(func() error { return p.shared.Run(ctx) })
	return group.Wait()
}

// process are the numbers of the process.
func (p *paths) process(server *kongplugin.Server) metrics.Process {
	c := server.Counters()
	return metrics.Process{
		Instances: server.Instances(), Events: c.Events.Load(), Questions: c.Questions.Load(), Writes: c.Writes.Load(),
		Panics: c.Panics.Load(), Undecided: c.Undecided.Load(), UnknownInstances: c.UnknownInstances.Load(),
		ConfigFaults: c.ConfigFaults.Load(), MetaDenied: p.observer.metaDenied.Load(),
	}
}

// buckets are the numbers of the buckets of configs with the strategy local.
func (p *paths) buckets() metrics.Buckets {
	stats := p.local.Stats()
	return metrics.Buckets{Kept: stats.Buckets, Expired: stats.Expired, Evicted: stats.Evicted}
}
