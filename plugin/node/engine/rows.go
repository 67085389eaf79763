package engine

import (
	"context"
	"crypto/rand"
	"path/filepath"
	"time"
	_ "time/tzdata" // tenants' time zones, where the system has none

	"golang.org/x/sync/errgroup"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/bucket/reservation"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/admit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/database/policysync"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/node/candidate"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/observe/usage"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

// FollowRows makes the engine follow the rows of Postgres while Run runs. The options need no log and no callbacks.
func (e *Engine) FollowRows(o policysync.Options) (err error) {
	// Two processes of one node run while one replaces the other, and each reports for itself.
	o.Node += "/" + rand.Text()[:8]
	o.Log, o.Changed, o.Condition = e.log, e.follow, e.condition
	e.follows = o
	evaluator, sink := candidate.New(candidate.Options{}), policysync.NewCandidateSink(o.Source)
	e.candidates = &candidates{evaluator, candidate.NewReporter(candidate.ReporterOptions{
		Counter: evaluator.Counter(), Sink: sink, Source: o.Node, Log: e.log,
	}), sink}
	e.Rows, err = policysync.New(o)
	return err
}

// openMirror keeps a copy of the rows in each Redis of a config, see policysync.Sync.Mirror. It does not block.
func (e *Engine) openMirror(config *schema.Config) (release func(), err error) {
	if e.Rows == nil || !e.Mirror || config.Strategy != schema.StrategyRedis {
		return func() {}, nil
	}
	records, closeRecords, err := e.Stores.OpenOperatorRecords(config)
	if err != nil {
		return nil, err
	}
	opened := releases{closeRecords}
	for _, one := range records {
		opened = append(opened, e.Rows.Mirror(one))
	}
	return opened.run, nil
}

// savedWait bounds the wait for the saved rows before the process accepts connections. It suffices for a hundred
// thousand rows on a busy machine. More rows apply shortly after the first requests: at a cold start Kong has no socket
// before.
const savedWait = time.Second

// AwaitSaved reads the rows that an earlier run has saved. It waits for at most savedWait.
func (e *Engine) AwaitSaved(ctx context.Context) {
	if e.Rows == nil {
		return
	}
	read := make(chan struct{})
	go func() {
		defer close(read)
		e.Rows.Load()
	}()
	waitFor(ctx, read, savedWait)
}

// AwaitRows waits for the first rows, if there is a database, for at most limit.
func (e *Engine) AwaitRows(ctx context.Context, limit time.Duration) {
	if e.Rows != nil {
		waitFor(ctx, e.loaded, limit)
	}
}

func waitFor(ctx context.Context, done <-chan struct{}, limit time.Duration) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	select {
	case <-done:
	case <-ctx.Done():
	}
}

// usageFolder is the folder of batches that Postgres has not stored, in the folder of the saved rows.
const usageFolder = "usage"

// usageReport counts what tenants use, and reports it to Postgres.
type usageReport struct {
	*usage.Counter
	reporter *usage.Reporter
	sink     *policysync.UsageSink
}

// CountUsage makes the engine count what tenants use, and report it while Run runs to the database of FollowRows. Call
// it after FollowRows, and before Sources and the first decider.
func (e *Engine) CountUsage() {
	counter, sink := usage.NewCounter(), policysync.NewUsageSink(e.follows.Source)
	o := usage.ReporterOptions{Counter: counter, Sink: sink, Log: e.log, Node: e.follows.Node}
	if e.follows.Dir != "" {
		o.Dir = filepath.Join(e.follows.Dir, usageFolder)
	}
	e.usage = &usageReport{counter, usage.NewReporter(o), sink}
}

// Run reports until ctx ends, and then what was counted last.
func (u *usageReport) Run(ctx context.Context) error {
	defer u.sink.Close()
	return u.reporter.Run(ctx)
}

// SetRoutes sets which names are names of routes: others are no labels of metrics and no endpoints of usage. Call it
// before the first decision if requests name their routes themselves.
func (e *Engine) SetRoutes(isRoute func(name string) bool) {
	e.Metrics.Routes = isRoute
	if e.usage != nil {
		e.usage.Routes = isRoute
	}
	if e.candidates != nil {
		e.candidates.SetRoutes(isRoute)
	}
}

// Settlements returns the observer of what becomes of reservations.
func (e *Engine) Settlements() reservation.Observer {
	var all settlements
	if e.Metrics != nil {
		all = append(all, e.Metrics.Settlements())
	}
	if e.usage != nil {
		all = append(all, e.usage)
	}
	return all
}

// settlements is an observer made of several.
type settlements []reservation.Observer

func (all settlements) Reserved(b *policy.Bound) {
	for _, o := range all {
		o.Reserved(b)
	}
}

func (all settlements) Settled(b *policy.Bound, s reservation.Settlement) {
	for _, o := range all {
		o.Settled(b, s)
	}
}

// candidates tries the open candidate beside requests, and reports to Postgres what it would change.
type candidates struct {
	*candidate.Evaluator
	reporter *candidate.Reporter
	sink     *policysync.CandidateSink
}

// Run tries and reports until ctx ends, and then reports what was counted last.
func (c *candidates) Run(ctx context.Context) error {
	defer c.sink.Close()
	var group errgroup.Group
	group.Go(func() error { return c.Evaluator.Run(ctx) })
	group.Go(func() error { return c.reporter.Run(ctx) })
	return group.Wait()
}

// view returns what tries candidates beside the requests of a config.
func (e *Engine) view(config schema.Config) *candidate.View {
	return e.candidates.View(func() (candidate.Buckets, error) {
		buckets, shares, release, err := e.Stores.OpenCandidate(&config)
		return candidate.Buckets{Buckets: buckets, Shares: shares, Release: release}, err
	})
}

// releaseCandidate releases the buckets in which a candidate counts for a decider.
func releaseCandidate(decider *admit.Decider, end bool) {
	if view, ok := decider.Candidates.(*candidate.View); ok {
		view.Release(end)
	}
}

// candidateNumbers are the numbers of what the open candidate would change.
type candidateNumbers struct {
	candidate.Stats `metric:""`

	Open   bool          `metric:"candidate_open"`                  // a candidate is open at this node
	Age    time.Duration `metric:"candidate_age_seconds"`           // since it was created; 0: none is open, or unknown
	Failed uint64        `metric:"candidate_report_failures_total"` // calls of Postgres
}

func (e *Engine) candidate() candidateNumbers {
	c, open := e.candidates, e.snapshot().CandidateSet()
	n := candidateNumbers{Stats: c.Stats(), Open: open != nil, Failed: c.reporter.Failed()}
	n.Dropped[candidate.NotStored] = c.reporter.Lost()
	if open != nil && open.Created > 0 {
		n.Age = max(0, time.Since(time.UnixMicro(int64(open.Created))))
	}
	return n
}
