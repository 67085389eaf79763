// Package app wires the processes: one file for each, with its settings, its life cycle and its shutdown order.
package app

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"runtime"
	"runtime/debug"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/admit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/kongplugin"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/limit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/memstore"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/policy"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/redisstore"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/response"
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
	// Kong puts every line into its error log, so a line is one record.
	lines := newLogWriter(stderr)
	defer lines.close()
	log := slog.New(slog.NewJSONHandler(lines, &slog.HandlerOptions{Level: s.LogLevel}))
	runtime.GOMAXPROCS(s.maxProcs(getenv))
	if s.MemoryLimit > 0 {
		debug.SetMemoryLimit(s.MemoryLimit)
	}
	if err := servePlugin(ctx, &s, socket, log); err != nil {
		log.Error("the plugin server ends", "error", err)
		return 1
	}
	return 0
}

func fail(stderr io.Writer, err error) int {
	fmt.Fprintln(stderr, "tenant-rate-limiting:", err)
	return 1
}

// servePlugin runs until ctx ends. The socket is opened last, so that whoever finds it is served.
func servePlugin(ctx context.Context, s *settings, socket string, log *slog.Logger) error {
	local := memstore.New(memstore.Options{Now: clock, MaxBuckets: s.MaxBuckets})
	redis := redisstore.NewRegistry(log)
	observed := &observer{log: log}
	server := kongplugin.New(kongplugin.Options{
		Name:   schema.Name,
		Info:   kongplugin.PluginInfo(schema.Name, Version, schema.Priority, schema.KongSchema()),
		Budget: s.TimeBudget,
		Drain:  s.DrainTime,
		Log:    log,
		Build: func(config schema.Config, snapshot *policy.Snapshot) (*admit.Path, func(), error) {
			path := &admit.Path{
				Snapshot:   snapshot,
				Buckets:    local,
				Renderer:   response.New(config, rand.Int64N),
				Observers:  []admit.Observer{observed},
				FailClosed: config.OnInternalError == schema.FailClosed,
			}
			if config.Strategy != schema.StrategyRedis {
				return path, nil, nil
			}
			shared, release, err := redis.Open(config.Redis)
			if err != nil {
				return nil, nil, fmt.Errorf("redis: %w", err)
			}
			path.Buckets = shared
			return path, release, nil
		},
	})
	listener, err := listen(socket)
	if err != nil {
		return err
	}
	log.Info("serving Kong", "socket", socket, "version", Version, "threads", runtime.GOMAXPROCS(0))

	background, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	group, background := errgroup.WithContext(background)
	group.Go(func() error { return local.Run(background) })
	group.Go(func() error { return redis.Run(background) })
	group.Go(func() error { return report(background, log, observed, server.Counters(), local) })
	err = server.Serve(ctx, listener) // until ctx ends; then what runs in the background ends too
	stop()
	return errors.Join(err, group.Wait())
}

// clock is the clock of the buckets in this process.
func clock() limit.Micros { return limit.Micros(time.Now().UnixMicro()) }
