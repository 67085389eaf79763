// Package server is the process that Kong starts: its settings, its life cycle and its shutdown order.
package server

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"runtime"
	"runtime/debug"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/bucket"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/bucket/reservation"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/database/policysync"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/kong/phase"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/node/engine"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/node/process"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/node/supervisor"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/observe/metrics"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

// Run serves Kong until ctx ends. The result is the process's exit code.
func Run(ctx context.Context, args []string, getenv func(string) string, stdout, stderr io.Writer) int {
	s, err := parseSettings(args, getenv, stderr)
	switch {
	case errors.Is(err, flag.ErrHelp):
		return 0
	case err != nil:
		return fail(stderr, err)
	case s.Version:
		fmt.Fprintln(stdout, process.VersionLine())
		return 0
	}
	socket, err := s.socketPath()
	if err != nil {
		return fail(stderr, err)
	}
	if s.Dump || s.DumpSettling {
		if _, err := stdout.Write(s.dump(socket)); err != nil {
			return fail(stderr, fmt.Errorf("write the dump: %w", err))
		}
		return 0
	}
	// Kong puts every line of stderr into its error log, so a line is one record.
	log := newLogging(&s, stderr)
	defer log.close()
	if supervisor.IsWorker(getenv) {
		if s.MemoryLimit > 0 {
			debug.SetMemoryLimit(s.MemoryLimit)
		}
		threads := s.maxProcs(getenv)
		hurry(threads)
		err = servePlugin(ctx, &s, socket, threads, stderr, log)
	} else {
		err = supervise(ctx, &s, []string{socket, s.settlingSocketPath()}, args, getenv, stderr, log.Logger)
	}
	if err != nil {
		log.Error("the plugin server failed", "error", err)
		return 1
	}
	return 0
}

// hurry speeds up the start of a worker, for which requests wait. It runs on all cores in the first second, then on
// some. No garbage is collected in its first 32 MiB; the first collection ends that.
func hurry(procs int) {
	time.AfterFunc(time.Second, func() { runtime.GOMAXPROCS(procs) })
	usual := debug.SetGCPercent(800) // of the 4 MiB at which it begins with 100
	runtime.AddCleanup(new([16]byte), func(usual int) { debug.SetGCPercent(usual) }, usual)
}

func (s *settings) dump(socket string) []byte {
	if s.DumpSettling {
		return schema.Settling(process.Version).Dump(s.settlingSocketPath())
	}
	return schema.Limiting(process.Version).Dump(socket)
}

func fail(stderr io.Writer, err error) int {
	fmt.Fprintln(stderr, "tenant-rate-limiting:", err)
	return 1
}

// servePlugin serves the sockets of the supervisor until ctx ends, or the supervisor, or the next worker takes over. It
// accepts connections last, so that every one is served.
func servePlugin(
	ctx context.Context, s *settings, socket string, threads int, stderr io.Writer, lines *logging,
) error {
	log := lines.Logger
	background, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	ctx, end := context.WithCancel(ctx)
	defer end()
	sockets, err := supervisor.Join(2)
	if err != nil {
		return err
	}
	var served servers
	g := &guard{
		ends:    s.EndWithKong == "true",
		log:     log,
		clients: func() (int, uint64) { return served.limiting.Connections() },
	}
	g.replaced, g.setReplaced = context.WithCancel(context.WithoutCancel(ctx))
	defer g.setReplaced()
	e, err := newEngine(background, s, stderr, lines, &served, g)
	if err != nil {
		return err
	}
	served = newServers(s, e, log)
	monitor, err := metrics.NewServer(metrics.ServerOptions{
		Metrics: e.Metrics, Address: s.MetricsListen, AllowRemote: s.MetricsAllowRemote, ReadyNeedsStore: s.ReadyNeedsRedis,
		Superseded: g.replaced.Done(), Log: log,
	})
	if err != nil {
		return err
	}
	e.AwaitSaved(ctx)
	if err := supervisor.Report(supervisor.Ready); err != nil {
		return err
	}
	served.limiting.Adopt(sockets[0].In, sockets[0].Out)
	loadState(e, served.settling.Adopt(sockets[1].In, sockets[1].Out), log)
	limiting, endLimiting := context.WithCancel(ctx)
	defer endLimiting()
	settling, endSettling := context.WithCancel(ctx)
	defer endSettling()
	go g.followOrders(end, func() {
		// Requests come first, and then log phases. So all is decided and settled when the counters are saved, and
		// nothing is by the next worker before it has them.
		served.limiting.HandOver(func() *os.File { endSettling(); return nil })
		served.settling.HandOver(func() *os.File { return saveState(e, log) })
		endLimiting()
	})
	log.Info("serving Kong", "socket", socket, "version", process.Version, "threads", threads)
	monitor.SetState(metrics.Serving)
	context.AfterFunc(limiting, func() { monitor.SetState(metrics.Draining) })

	group, background := errgroup.WithContext(background)
	group.Go(func() error { return e.Run(background) })
	group.Go(func() error { return monitor.Run(background) })
	group.Go(func() error { return g.watch(background) })
	group.Go(func() error { return e.Reservations.Run(background) })
	settled := make(chan error, 1)
	go func() { settled <- served.settling.Serve(settling, sockets[1]) }()
	err = served.limiting.Serve(limiting, sockets[0]) // until it ends; then what runs in the background ends too
	end()
	err = errors.Join(err, <-settled)
	stop()
	return errors.Join(err, group.Wait())
}

// servers holds the two servers of the process. They are set before its metrics are read.
type servers struct {
	limiting *phase.Server
	settling *phase.Settling
}

func newServers(s *settings, e *engine.Engine, log *slog.Logger) servers {
	return servers{
		limiting: phase.New(phase.Options{Budget: s.TimeBudget, Drain: s.DrainTime, Log: log, Build: e.Build}),
		settling: phase.NewSettling(phase.SettlingOptions{
			Budget: s.TimeBudget, Drain: s.DrainTime, Reservations: e.Reservations, Log: log,
		}),
	}
}

// followOrders follows the orders of the supervisor. It calls handOver, or end if the supervisor is gone.
func (g *guard) followOrders(end, handOver func()) {
	if err := supervisor.Follow(g.setState); err != nil {
		g.log.Error("shutting down: the supervisor is gone", "error", err)
		end()
		return
	}
	g.setReplaced()
	handOver()
}

// newEngine returns the engine that the settings want. A node whose Kong g reports as gone serves no requests any more,
// and so is no live node. The error is about a setting.
func newEngine(
	ctx context.Context, s *settings, stderr io.Writer, log *logging, served *servers, g *guard,
) (*engine.Engine, error) {
	node, err := process.NodeName(s.NodeName)
	if err != nil {
		return nil, err
	}
	options := engine.Options{Log: log.Logger, Buckets: bucket.Options{
		Budget: s.TimeBudget, MaxBuckets: s.MaxBuckets, Nodes: s.Nodes, LeaseShare: s.LeaseShare,
		Superseded: g.superseded.Load, MaxAddresses: s.MaxAddresses, NewAddresses: s.NewAddresses,
	}}
	record, err := newDenials(s, node, stderr, log.Logger)
	if err != nil {
		return nil, err
	}
	if record != nil {
		options.Denials = record
	}
	e := engine.New(ctx, options)
	e.Mirror = s.SnapshotMirror
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
		metrics.Read(func() metrics.Process { return metrics.Process{MetaDenied: e.MetaDenied(), LogLines: log.counted()} }),
		metrics.Read(func() metrics.Reservations {
			return metrics.Reservations{Stats: e.Reservations.Stats(), Unreserved: served.settling.Unreserved()}
		}),
	)
	if record != nil {
		sources.Add(metrics.Read(record.Metrics))
	}
	e.Metrics = metrics.NewWithTenants(process.Version, sources, s.tenantLabels())
	e.Reservations = reservation.New(reservation.Options{
		Elapsed: process.Elapsed, Now: process.WallClock, Observer: e.Settlements(), Log: log.Logger,
	})
	return e, nil
}

func (s *settings) rows(node string, g *guard) policysync.Options {
	return policysync.Options{
		Source: policysync.Source{DSN: s.Database, File: s.DatabaseFile}, Node: node,
		Dir: s.SnapshotDir, MaxRows: s.SnapshotMaxRows, Superseded: g.superseded.Load,
	}
}
