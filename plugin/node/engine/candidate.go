package engine

import (
	"context"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/admit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/database/policysync"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/node/candidate"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/observe/metrics"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

// candidates tries the open candidate beside requests, and reports to Postgres what it would change.
type candidates struct {
	*candidate.Evaluator
	reporter *candidate.Reporter
	sink     *policysync.CandidateSink
}

// newCandidates returns what tries the candidates of a database.
func (e *Engine) newCandidates(o policysync.Options) *candidates {
	evaluator, sink := candidate.New(candidate.Options{}), policysync.NewCandidateSink(o.Source)
	reporter := candidate.NewReporter(candidate.ReporterOptions{
		Counter: evaluator.Counter(), Sink: sink, Source: o.Node, Log: e.log,
	})
	return &candidates{evaluator, reporter, sink}
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

// candidate returns the metrics of candidates. Every reason is there from the start.
func (e *Engine) candidate() metrics.Candidate {
	c, open := e.candidates, e.snapshot().CandidateSet()
	s := c.Stats()
	n := metrics.Candidate{
		Open: open != nil, Waiting: s.Waiting,
		Active: metrics.CandidateResults(s.Active), Candidate: metrics.CandidateResults(s.Candidate),
		Enforced: metrics.CandidateResults(s.Enforced),
		Failed:   c.reporter.Failed(), Dropped: map[string]uint64{"report": c.reporter.Lost()},
	}
	for reason, dropped := range s.Dropped {
		n.Dropped[candidate.Drop(reason).String()] = dropped
	}
	if open != nil && open.Created > 0 {
		n.Age = max(0, time.Since(time.UnixMicro(int64(open.Created))))
	}
	return n
}
