package engine

import (
	"context"
	"path/filepath"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/bucket/reservation"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/database/policysync"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/observe/metrics"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/observe/usage"
)

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
	counter, sink := usage.NewCounter(usage.CounterOptions{}), policysync.NewUsageSink(e.follows.Source)
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

// metrics returns the metrics of the metrics. Every reason is there from the start, so that an alert sees the first
// loss.
func (u *usageReport) metrics() metrics.Usage {
	s := u.reporter.Stats()
	n := metrics.Usage{
		Stored: s.Stored, Failed: s.Failed, Waiting: s.Waiting + s.Left, Oldest: s.Oldest, Backlog: s.Backlog,
		Rows: u.Rows(), DroppedCounts: u.Dropped(), Dropped: map[string]uint64{},
	}
	for reason, dropped := range s.Dropped {
		n.Dropped[usage.Reason(reason).String()] = dropped
	}
	return n
}

// SetRoutes sets which names are names of routes: others are no labels of metrics and no endpoints of usage. Call it
// before the first decision if requests name their routes themselves.
func (e *Engine) SetRoutes(isRoute func(name string) bool) {
	e.Metrics.Routes = isRoute
	if e.usage != nil {
		e.usage.SetRoutes(isRoute)
	}
	if e.candidates != nil {
		e.candidates.SetRoutes(isRoute)
	}
}

// Settlements returns the observer of what becomes of reservations.
func (e *Engine) Settlements() reservation.Observer {
	if e.usage == nil {
		return e.Metrics.Settlements()
	}
	return settlements{e.Metrics.Settlements(), e.usage}
}

// settlements is a list of observers.
type settlements []reservation.Observer

// Reserved implements reservation.Observer.
func (all settlements) Reserved(b *policy.Bound) {
	for _, o := range all {
		o.Reserved(b)
	}
}

// Settled implements reservation.Observer.
func (all settlements) Settled(b *policy.Bound, s reservation.Settlement) {
	for _, o := range all {
		o.Settled(b, s)
	}
}
