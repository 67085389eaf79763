// Package engine builds the decider of every plugin config, updates all deciders with the rows of Postgres, and
// counts their decisions. The plugin server, the control server and package limiter use it.
package engine

import (
	"context"
	"fmt"
	"log/slog"
	"math/bits"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/bucket"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/bucket/memory"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/bucket/reservation"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/admit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/decision"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/identity"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/limit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/resolve"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/response"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/database/policysync"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/node/process"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/observe/metrics"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

// Options are the settings of an engine.
type Options struct {
	Buckets bucket.Options // without clocks and log; 0 addresses: any number
	Denials DenialRecorder // nil: denials are not recorded
	Log     *slog.Logger
	Now     func() time.Time // replaces all clocks of the process, for tests and simulations; nil: none
}

// DenialRecorder records denials. Run writes the record until its context ends.
type DenialRecorder interface {
	admit.Observer
	Run(ctx context.Context) error
}

// Engine builds deciders and keeps their shared parts. Set Metrics before the first decider is built.
type Engine struct {
	Stores  *bucket.Stores
	Metrics *metrics.Metrics // nil: decisions are not measured, and there are no configs with usage_only
	Rows    *policysync.Sync // nil: there is no database

	// Mirror keeps a copy of the rows in each Redis, for nodes without Postgres. Set it before the first decider is built.
	Mirror bool

	// Reservations keeps what limits reserve, in a process with a log phase. Set it before the first decider is built.
	Reservations *reservation.Ledger // nil: what they reserve stays charged

	meta     *memory.Store // buckets of meta limits
	observer *observer
	denials  DenialRecorder // nil: they are not recorded
	usage    *usageReport   // nil: it is not counted

	candidates *candidates // nil: there is no database

	follows policysync.Options
	log     *slog.Logger

	wall, elapsed func() limit.Micros // clocks of deciders

	inventory inventory

	loaded   chan struct{} // closed with the first rows
	loadOnce sync.Once

	mu       sync.Mutex
	live     map[*admit.Decider]*resolve.Plan // each config without rows
	reported map[policy.Fault]bool            // logged faults of the snapshot, without keys

	unfollowed map[*admit.Decider][]policy.Fault // rows of the snapshot that a decider cannot apply
}

// New returns an engine without rows and metrics.
func New(ctx context.Context, o Options) *Engine {
	wall, elapsed := process.WallClock, process.Elapsed
	o.Buckets.Now = process.BucketClock.Now
	if o.Now != nil {
		began := o.Now()
		wall = func() limit.Micros { return limit.Micros(o.Now().UnixMicro()) }
		elapsed = func() limit.Micros { return limit.Micros(o.Now().Sub(began).Microseconds()) }
		o.Buckets.Now = wall
	}
	o.Buckets.Elapsed, o.Buckets.Log = elapsed, o.Log
	o.Buckets.MaxAddresses, o.Buckets.NewAddresses = orAny(o.Buckets.MaxAddresses), orAny(o.Buckets.NewAddresses)
	return &Engine{
		Stores:     bucket.New(ctx, o.Buckets),
		meta:       memory.New(memory.Options{Now: o.Buckets.Now, MaxBuckets: o.Buckets.MaxBuckets}),
		observer:   &observer{log: o.Log},
		denials:    o.Denials,
		log:        o.Log,
		wall:       wall,
		elapsed:    elapsed,
		loaded:     make(chan struct{}),
		live:       map[*admit.Decider]*resolve.Plan{},
		reported:   map[policy.Fault]bool{},
		unfollowed: map[*admit.Decider][]policy.Fault{},
	}
}

// Sources returns the sources of the engine's metrics.
func (e *Engine) Sources() metrics.Sources {
	sources := metrics.Sources{Stores: e.stores, Limits: e.limits}
	sources.Add(metrics.Read(e.Stores.Local), metrics.Read(e.Stores.Stats), metrics.Read(e.shares))
	if e.Rows != nil {
		sources.Add(metrics.Read(e.Rows.Stats), metrics.Read(e.overrides), metrics.Read(e.candidate))
	}
	if e.usage != nil {
		sources.Add(metrics.Read(e.usage.reporter.Stats))
	}
	return sources
}

// MetaDenied returns the number of requests that meta limits have denied.
func (e *Engine) MetaDenied() uint64 { return e.observer.metaDenied.Load() }

// releases are the functions that release what is open, in the order of opening.
type releases []func()

// run releases all, the last one first.
func (r releases) run() {
	for _, release := range slices.Backward(r) {
		release()
	}
}

// Build implements phase.Build.
func (e *Engine) Build(config schema.Config, plan *resolve.Plan) (*admit.Decider, func(), error) {
	decider := &admit.Decider{
		Now:        e.wall,
		Elapsed:    e.elapsed,
		Renderer:   response.New(config, rand.Int64N),
		Observers:  []admit.Observer{e.observer},
		FailClosed: config.OnInternalError == schema.FailClosed || config.UsageOnly,
	}
	if e.Metrics != nil {
		decider.Observers = append(decider.Observers, e.Metrics)
	}
	if e.denials != nil {
		decider.Observers = append(decider.Observers, e.denials)
		if config.DenialRequestID {
			decider.AtDenial |= identity.RequestIDFact
		}
		if config.DenialIP {
			decider.AtDenial |= identity.IPFact
		}
	}
	if e.usage != nil {
		decider.Observers = append(decider.Observers, e.usage)
	}
	if e.candidates != nil && !config.UsageOnly {
		decider.Candidates = e.view(config)
	}
	opened, err := e.open(&config, decider)
	if err != nil {
		opened.run()
		return nil, nil, err
	}
	e.add(decider, plan)
	return decider, func() {
		e.remove(decider)
		releaseCandidate(decider, true)
		opened.run()
	}, nil
}

// open opens what the decider of a config spends from. It returns the releases even with an error.
func (e *Engine) open(config *schema.Config, decider *admit.Decider) (opened releases, err error) {
	if config.MetaLimit > 0 {
		if decider.Meta, err = admit.NewMeta(config.MetaLimit, config.Namespace, e.meta); err != nil {
			return nil, fmt.Errorf("meta_limit: %w", err)
		}
	}
	pools, release, err := e.Stores.OpenPools(config)
	if err != nil {
		return nil, err
	}
	buckets := bucket.Route(pools)
	decider.Buckets, opened = buckets, append(opened, release)
	if release, err = e.openMirror(config); err != nil {
		return opened, err
	}
	opened = append(opened, release)
	if config.UsageOnly {
		decider.Usage, err = admit.NewUsageReader(buckets, config.Namespace, e.meta, e.elapsed)
		if err != nil {
			return opened, err
		}
		decider.Usage.Answered = e.Metrics.CountUsageAnswer
	}
	if decider.Shares, release, err = e.Stores.OpenShares(config); err != nil {
		return opened, err
	}
	if opened = append(opened, release); e.Reservations == nil {
		return opened, nil
	}
	records, release, err := e.Stores.OpenRecords(config)
	if err != nil {
		return opened, err
	}
	keepers := reservation.NewKeepers(e.Reservations, pools, records, append(opened, release).run) // at their end
	decider.Reservations = keepers
	return releases{keepers.Close}, nil
}

func (e *Engine) add(decider *admit.Decider, plan *resolve.Plan) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.live[decider] = plan
	e.setPolicies(decider, plan, e.snapshot())
	e.reportFaults()
}

// snapshot returns the rows of Postgres in force, or nil.
func (e *Engine) snapshot() *policy.Snapshot {
	if e.Rows == nil {
		return nil
	}
	return e.Rows.Snapshot()
}

func (e *Engine) remove(decider *admit.Decider) {
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.live, decider)
	delete(e.unfollowed, decider)
	e.reportFaults()
}

// follow makes all deciders enforce the rows of a snapshot. Requests that have begun keep the earlier snapshot.
func (e *Engine) follow(snapshot *policy.Snapshot) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for decider, plan := range e.live {
		e.setPolicies(decider, plan, snapshot)
	}
	e.reportFaults()
	e.loadOnce.Do(func() { close(e.loaded) })
}

// setPolicies combines a decider's config with a snapshot, if there is one. e.mu is held.
func (e *Engine) setPolicies(decider *admit.Decider, plan *resolve.Plan, snapshot *policy.Snapshot) {
	if snapshot == nil {
		decider.Policies.Store(plan)
		return
	}
	both := plan.With(snapshot)
	decider.Policies.Store(both)
	if both.Candidate() == nil {
		releaseCandidate(decider, false)
	}
	// Finding the faults takes time for each tenant, so it is done once for a decider and a snapshot.
	e.unfollowed[decider] = both.Faults()
}

// reportFaults reports the rows that a live config cannot apply: in the metrics and the reports of this node while that
// lasts, and once in the log. e.mu is held.
func (e *Engine) reportFaults() {
	if e.Rows == nil {
		return
	}
	now, reported := []policy.Fault{}, map[policy.Fault]bool{}
	for _, faults := range e.unfollowed {
		for _, fault := range faults {
			same := fault
			same.Key = "" // one row represents all with the same problem
			if reported[same] {
				continue
			}
			reported[same] = true
			now = append(now, fault)
			if !e.reported[same] {
				e.log.Warn("a row of Postgres cannot be applied",
					"table", fault.Table, "key", fault.Key, "field", fault.Field, "problem", fault.Problem)
			}
		}
	}
	e.reported = reported
	slices.SortFunc(now, func(a, b policy.Fault) int { return strings.Compare(a.Problem, b.Problem) })
	e.Rows.Unfollowed(now)
}

// Run drops expired buckets, follows the rows, watches the central stores and reports usage until ctx ends. All of the
// usage is reported if ctx ends after the last decision.
func (e *Engine) Run(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return e.meta.Run(ctx) })
	group.Go(func() error { return e.Stores.Run(ctx) })
	if e.Rows != nil {
		group.Go(func() error { return e.Rows.Run(ctx) })
	}
	if e.denials != nil {
		group.Go(func() error { return e.denials.Run(ctx) })
	}
	if e.usage != nil {
		group.Go(func() error { return e.usage.Run(ctx) })
	}
	if e.candidates != nil {
		if e.Reservations != nil {
			e.candidates.SetReservations(e.Reservations)
		}
		group.Go(func() error { return e.candidates.Run(ctx) })
	}
	return group.Wait()
}

// orAny converts a bound for the stores: 0 means none here, and a negative one means none there.
func orAny(most int) int {
	if most == 0 {
		return -1
	}
	return most
}

// observer is an admit.Observer. It logs the requests that policies in log mode would have denied, and counts denials
// of the meta limit, and decisions by duration.
type observer struct {
	log        *slog.Logger
	metaDenied atomic.Uint64
	took       [durations]atomic.Int64 // since the last report, as policysync.Condition has them
	recent     [durations]float64      // before it
}

// durations is the number of durations that reports distinguish: the last one begins at 4 s.
const durations = 24

// recentDurations returns the decisions of about the last minute by duration. Reports alone call it, one every 5 s.
func (o *observer) recentDurations() []int64 {
	const kept = 11. / 12 // of a minute of reports
	list := make([]int64, durations)
	for i := range list {
		o.recent[i] = o.recent[i]*kept + float64(o.took[i].Swap(0))
		list[i] = int64(o.recent[i] + 0.5)
	}
	return list
}

func (o *observer) Observe(d *decision.Decision) {
	if d.Took > 0 {
		o.took[min(bits.Len64(uint64(d.Took)), durations-1)].Add(1)
	}
	if d.Reason == decision.MetaLimited || d.ShadowReason == decision.MetaLimited {
		o.metaDenied.Add(1)
	}
	if d.ShadowDenied {
		o.logWouldDeny(d)
	}
}

func (o *observer) logWouldDeny(d *decision.Decision) {
	if d.ShadowReason != decision.Counted && d.Mode == policy.Log {
		o.log.Info("would deny",
			"reason", d.ShadowReason.String(), "tenant", d.Identity.Tenant.ID, "endpoint", d.Resolution.Endpoint)
	}
	for i := range d.Statuses {
		bound, status := &d.Resolution.Bounds[i], &d.Statuses[i]
		if bound.Policy.Mode != policy.Log || status.Source == decision.Unanswered || status.Admits() {
			continue
		}
		o.log.Info("would deny",
			"policy", bound.Policy.Name, "scope", bound.Policy.Scope.String(), "tenant", d.Identity.Tenant.ID,
			"tier", d.Resolution.Tier, "endpoint", d.Resolution.Endpoint,
			"cost", bound.Cost, "used", status.Used, "limit", bound.Policy.Describe())
	}
}
