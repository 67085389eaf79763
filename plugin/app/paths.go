package app

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sync/errgroup"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/admit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/bucket"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/bucket/memory"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/kongplugin"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/metrics"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/policy"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/policysync"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/response"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

// paths builds the paths of all plugin configs, and keeps what they have in common.
type paths struct {
	stores   *bucket.Stores
	meta     *memory.Store // buckets of meta limits, which are no policy's
	observer *observer
	metrics  *metrics.Metrics
	denials  *denials         // nil: they are not recorded
	rows     *policysync.Sync // nil: there is no database
	log      *slog.Logger

	inventory inventory

	mu   sync.Mutex
	live map[*admit.Path]*policy.Plan // each config without rows
	told map[policy.Fault]bool        // what of the snapshot cannot be followed, without keys: it is logged already

	unfollowed map[*admit.Path][]policy.Fault // of the snapshot, by the paths that cannot
}

// newPaths makes paths. server returns the one that serves them, once metrics are read. away reports whether this
// process serves no Kong any more, and so is no live node; lines returns how many lines were logged by level. The error
// is about a setting.
func newPaths(
	ctx context.Context, s *settings, stderr io.Writer, log *slog.Logger, server func() *kongplugin.Server, away func() bool,
	lines func() map[string]uint64,
) (*paths, error) {
	node, err := nodeName(s.NodeName)
	if err != nil {
		return nil, err
	}
	p := &paths{
		stores: bucket.New(ctx, bucket.Options{
			Now: bucketClock.Now, Elapsed: elapsed, Budget: s.TimeBudget, Log: log, MaxBuckets: s.MaxBuckets, Nodes: s.Nodes, LeaseShare: s.LeaseShare, Away: away,
			MaxAddresses: orAny(s.MaxAddresses), NewAddresses: orAny(s.NewAddresses),
		}),
		meta:     memory.New(memory.Options{Now: bucketClock.Now, MaxBuckets: s.MaxBuckets}),
		observer: &observer{log: log},
		log:      log,
		live:     map[*admit.Path]*policy.Plan{},
		told:     map[policy.Fault]bool{},

		unfollowed: map[*admit.Path][]policy.Fault{},
	}
	sources := metrics.Sources{
		Process: func() metrics.Process { return p.process(server()) }, Buckets: p.buckets, Stores: p.shared, Limits: p.limits,
		LogLines: lines,
	}
	if p.denials, err = newDenials(s, node, stderr, log); err != nil {
		return nil, err
	}
	if p.denials != nil {
		sources.Denial = p.denials.numbers
	}
	if s.Database != "" || s.DatabaseFile != "" {
		if p.rows, err = newRows(s, node, log, p.follow, away); err != nil {
			return nil, err
		}
		sources.Policies = func() metrics.Policies { return policyNumbers(p.rows.Stats()) }
		sources.Overrides = p.overrides
	}
	p.metrics = metrics.NewWithTenants(Version, sources, s.tenantLabels())
	return p, nil
}

// build implements kongplugin.Build.
func (p *paths) build(config schema.Config, plan *policy.Plan) (*admit.Path, func(), error) {
	path := &admit.Path{
		Now:        wallClock,
		Elapsed:    elapsed,
		Renderer:   response.New(config, rand.Int64N),
		Observers:  []admit.Observer{p.metrics, p.observer},
		FailClosed: config.OnInternalError == schema.FailClosed,
	}
	if p.denials != nil {
		path.Observers = append(path.Observers, p.denials)
		path.RequestIDs = config.DenialRequestID
	}
	if config.MetaLimit > 0 {
		meta, err := admit.NewMeta(config.MetaLimit, config.Namespace, p.meta)
		if err != nil {
			return nil, nil, fmt.Errorf("meta_limit: %w", err)
		}
		path.Meta = meta
	}
	buckets, release, err := p.stores.Open(&config)
	if err != nil {
		return nil, nil, err
	}
	path.Buckets = buckets
	p.add(path, plan)
	return path, func() {
		p.remove(path)
		release()
	}, nil
}

// add has a path follow the rows of Postgres from now on.
func (p *paths) add(path *admit.Path, config *policy.Plan) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.live[path] = config
	p.use(path, config, p.snapshot())
	p.tell()
}

// snapshot is the rows of Postgres in force; nil: there are none.
func (p *paths) snapshot() *policy.Snapshot {
	if p.rows == nil {
		return nil
	}
	return p.rows.Snapshot()
}

func (p *paths) remove(path *admit.Path) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.live, path)
	delete(p.unfollowed, path)
	p.tell()
}

// follow has all paths enforce the rows of a snapshot. Requests that have begun are decided by the snapshot before.
func (p *paths) follow(snapshot *policy.Snapshot) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for path, config := range p.live {
		p.use(path, config, snapshot)
	}
	p.tell()
}

// use puts a snapshot, if there is one, beside a path's config. p.mu is held.
func (p *paths) use(path *admit.Path, config *policy.Plan, snapshot *policy.Snapshot) {
	if snapshot == nil {
		path.Policies.Store(config)
		return
	}
	both := config.With(snapshot)
	path.Policies.Store(both)
	// Looking for them may take as long as there are tenants, so it is done once for a path and a snapshot.
	p.unfollowed[path] = both.Faults()
}

// tell tells what of the rows the live configs cannot follow: in the metrics and the reports of this node as long as it is
// so, and in the log once, and once more when it is so again. p.mu is held.
func (p *paths) tell() {
	if p.rows == nil {
		return
	}
	now, told := []policy.Fault{}, map[policy.Fault]bool{}
	for _, faults := range p.unfollowed {
		for _, fault := range faults {
			same := fault
			same.Key = "" // one row stands for all that have the problem, and not always the same
			if told[same] {
				continue
			}
			told[same] = true
			now = append(now, fault)
			if !p.told[same] {
				p.log.Warn("a row of Postgres cannot be applied", "table", fault.Table, "key", fault.Key, "field", fault.Field, "problem", fault.Problem)
			}
		}
	}
	p.told = told
	slices.SortFunc(now, func(a, b policy.Fault) int { return strings.Compare(a.Problem, b.Problem) })
	p.rows.Unfollowed(now)
}

// run forgets what has expired and watches the shared stores until ctx ends.
func (p *paths) run(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return p.meta.Run(ctx) })
	group.Go(func() error { return p.stores.Run(ctx) })
	if p.rows != nil {
		group.Go(func() error { return p.rows.Run(ctx) })
	}
	if p.denials != nil {
		group.Go(func() error { return p.denials.Run(ctx) })
	}
	return group.Wait()
}

// process returns the numbers of the process.
func (p *paths) process(server *kongplugin.Server) metrics.Process {
	c := server.Counters()
	return metrics.Process{
		Instances: server.Instances(), Events: c.Events, Questions: c.Questions, Writes: c.Writes,
		Panics: c.Panics, Undecided: c.Undecided, UnknownInstances: c.UnknownInstances,
		ConfigFaults: c.ConfigFaults, MetaDenied: p.observer.metaDenied.Load(),
	}
}

// orAny returns how the stores are given a most of which 0 means that there is none.
func orAny(most int) int {
	if most == 0 {
		return -1
	}
	return most
}
