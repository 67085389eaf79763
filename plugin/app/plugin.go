// Package app wires the processes: one file for each, with its settings, its life cycle and its shutdown order.
package app

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"runtime"
	"runtime/debug"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/clock"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/kongplugin"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/limit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/metrics"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

// Version is the version of all programs and of the plugin in Kong.
const Version = "0.1.0"

// Plugin is the plugin server's program: it serves Kong until ctx ends. The result is the process's exit code.
func Plugin(ctx context.Context, args []string, getenv func(string) string, stdout, stderr io.Writer) int {
	s, err := parseSettings(args, getenv, stderr)
	switch {
	case errors.Is(err, flag.ErrHelp):
		return 0
	case err != nil:
		return fail(stderr, err)
	case s.Version:
		fmt.Fprintln(stdout, Version)
		return 0
	}
	socket, err := s.socketPath()
	if err != nil {
		return fail(stderr, err)
	}
	if s.Dump {
		if _, err := stdout.Write(schema.Dump(Version, socket)); err != nil {
			return fail(stderr, fmt.Errorf("write the dump: %w", err))
		}
		return 0
	}
	// Kong puts every line of stderr into its error log, so a line is one record.
	log := newLogging(&s, stderr)
	defer log.close()
	runtime.GOMAXPROCS(s.maxProcs(getenv))
	if s.MemoryLimit > 0 {
		debug.SetMemoryLimit(s.MemoryLimit)
	}
	if err := servePlugin(ctx, &s, socket, stderr, log); err != nil {
		log.Error("the plugin server failed", "error", err)
		return 1
	}
	return 0
}

func fail(stderr io.Writer, err error) int {
	fmt.Fprintln(stderr, "tenant-rate-limiting:", err)
	return 1
}

// servePlugin runs until ctx ends. The socket is opened last, so that whoever finds it is served.
func servePlugin(ctx context.Context, s *settings, socket string, stderr io.Writer, lines *logging) error {
	log := lines.Logger
	background, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	ctx, end := context.WithCancel(ctx)
	defer end()
	var server *kongplugin.Server
	g := &guard{path: socket, taken: make(chan struct{}), log: log, clients: func() (int, uint64) { return server.Connections() }}
	if s.endsWithKong(os.Environ(), os.Getppid()) {
		g.parent = os.Getppid()
	}
	p, err := newPaths(background, s, stderr, log, func() *kongplugin.Server { return server }, g.away.Load, lines.counted)
	if err != nil {
		return err
	}
	server = kongplugin.New(kongplugin.Options{
		Version: Version,
		Budget:  s.TimeBudget,
		Drain:   s.DrainTime,
		Log:     log,
		Build:   p.build,
	})
	monitor, err := metrics.NewServer(metrics.ServerOptions{
		Metrics: p.metrics, Address: s.MetricsListen, AllowRemote: s.MetricsAllowRemote, ReadyNeedsStore: s.ReadyNeedsRedis,
		Superseded: g.taken, Log: log,
	})
	if err != nil {
		return err
	}
	p.awaitSaved(ctx)
	listener, own, err := listen(socket)
	if err != nil {
		return err
	}
	g.own = own
	log.Info("serving Kong", "socket", socket, "version", Version, "threads", runtime.GOMAXPROCS(0))
	monitor.SetState(metrics.Serving)
	context.AfterFunc(ctx, func() { monitor.SetState(metrics.Draining) })

	group, background := errgroup.WithContext(background)
	group.Go(func() error { return p.run(background) })
	group.Go(func() error { return monitor.Run(background) })
	group.Go(func() error { return g.watch(background, end) })
	err = server.Serve(ctx, listener) // until ctx ends; then what runs in the background ends too
	stop()
	return errors.Join(err, group.Wait())
}

// started is what elapsed counts from.
var started = time.Now()

// elapsed is a clock that never steps.
func elapsed() limit.Micros { return limit.Micros(time.Since(started).Microseconds()) }

// wallClock is the time of day, by which overrides hold. It may step.
func wallClock() limit.Micros { return limit.Micros(time.Now().UnixMicro()) }

// bucketClock is the clock of the buckets in this process.
var bucketClock = clock.New()
