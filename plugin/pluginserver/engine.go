package pluginserver

import (
	"context"
	"io"
	"log/slog"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/bucket"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/internal/engine"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/internal/process"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/kongplugin"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/metrics"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/policysync"
)

// newEngine returns the engine that the settings want. server returns the server of its paths, once metrics are read. A
// node whose Kong g reports as gone serves no requests any more, and so is no live node. lines returns how many lines
// were logged by level. The error is about a setting.
func newEngine(
	ctx context.Context,
	s *settings,
	stderr io.Writer,
	log *slog.Logger,
	server func() *kongplugin.Server,
	g *guard,
	lines func() map[string]uint64,
) (*engine.Engine, error) {
	node, err := process.NodeName(s.NodeName)
	if err != nil {
		return nil, err
	}
	options := engine.Options{Log: log, Buckets: bucket.Options{
		Budget: s.TimeBudget, MaxBuckets: s.MaxBuckets, Nodes: s.Nodes, LeaseShare: s.LeaseShare, Process: g,
		MaxAddresses: s.MaxAddresses, NewAddresses: s.NewAddresses,
	}}
	record := newDenials(s, node, stderr, log)
	if record != nil {
		options.Denials = record
	}
	e := engine.New(ctx, options)
	if s.Database != "" || s.DatabaseFile != "" {
		if err := e.FollowRows(s.rows(node, g)); err != nil {
			return nil, err
		}
	}
	sources := e.Sources()
	sources.Process = func() metrics.Process { return processNumbers(server(), e.MetaDenied()) }
	sources.LogLines = lines
	if record != nil {
		sources.Denial = record.numbers
	}
	e.Metrics = metrics.NewWithTenants(process.Version, sources, s.tenantLabels())
	return e, nil
}

// rows returns how the rows of Postgres are followed.
func (s *settings) rows(node string, g *guard) policysync.Options {
	return policysync.Options{
		Source: policysync.Source{DSN: s.Database, File: s.DatabaseFile}, Node: node,
		Dir: s.SnapshotDir, MaxRows: s.SnapshotMaxRows, Superseded: g.Superseded,
	}
}

// processNumbers returns the numbers of the process.
func processNumbers(server *kongplugin.Server, metaDenied uint64) metrics.Process {
	c := server.Counters()
	return metrics.Process{
		Instances: server.Instances(), Events: c.Events, Questions: c.Questions, Writes: c.Writes,
		Panics: c.Panics, Undecided: c.Undecided, UnknownInstances: c.UnknownInstances,
		ConfigFaults: c.ConfigFaults, MetaDenied: metaDenied,
	}
}
