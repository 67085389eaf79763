package server

import (
	"context"
	"io"
	"log/slog"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/bucket"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/bucket/reservation"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/database/policysync"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/kong/phase"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/node/engine"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/node/process"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/observe/metrics"
)

// servers holds the two servers of the process. They are set before its metrics are read.
type servers struct {
	limiting *phase.Server
	settling *phase.Settling
}

// newEngine returns the engine that the settings want. A node whose Kong g reports as gone serves no requests any more,
// and so is no live node. lines returns how many lines were logged by level. The error is about a setting.
func newEngine(
	ctx context.Context,
	s *settings,
	stderr io.Writer,
	log *slog.Logger,
	served *servers,
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
	record, err := newDenials(s, node, stderr, log)
	if err != nil {
		return nil, err
	}
	if record != nil {
		options.Denials = record
	}
	e := engine.New(ctx, options)
	if s.Database != "" || s.DatabaseFile != "" {
		if err := e.FollowRows(s.rows(node, g)); err != nil {
			return nil, err
		}
		if s.Usage {
			e.CountUsage()
		}
	}
	sources := e.Sources()
	sources.Settles = true
	sources.Add(
		metrics.Read(func() phase.Counters { return served.limiting.Counters() }),
		metrics.Read(func() metrics.MetaLimit { return metrics.MetaLimit{Denied: e.MetaDenied()} }),
		metrics.Read(func() metrics.LogLines { return metrics.LogLines{ByLevel: lines()} }),
		metrics.Read(func() metrics.Reservations {
			return metrics.Reservations{Stats: e.Reservations.Stats(), Unreserved: served.settling.Unreserved()}
		}),
	)
	if record != nil {
		sources.Add(metrics.Read(record.Metrics))
	}
	e.Metrics = metrics.NewWithTenants(process.Version, sources, s.tenantLabels())
	e.Reservations = reservation.New(reservation.Options{
		Elapsed: process.Elapsed, Now: process.WallClock, Observer: e.Settlements(), Log: log,
	})
	return e, nil
}

// rows returns how the rows of Postgres are followed.
func (s *settings) rows(node string, g *guard) policysync.Options {
	return policysync.Options{
		Source: policysync.Source{DSN: s.Database, File: s.DatabaseFile}, Node: node,
		Dir: s.SnapshotDir, MaxRows: s.SnapshotMaxRows, Superseded: g.Superseded,
	}
}
