// Package server runs the process that serves the REST API: its settings, life cycle and shutdown order.
package server

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/migrations"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/bucket/memory"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/control/api"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/control/envoy"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/database/rows"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/events/webhook/sender"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/leader/abuse"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/node/process"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/observe/jsonline"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/observe/metrics"
)

const (
	// serveConnections bounds the connections of the API to the database, besides those that follow its rows.
	serveConnections = 10
	// rowsTimeout bounds how long the address stays closed until the first rows are loaded. Without them, for example
	// while Postgres is unavailable, requests that need rows are answered with 503.
	rowsTimeout = 2 * time.Second
	// databaseTimeout bounds the check of the database at the start.
	databaseTimeout = 5 * time.Second
	// ownBuckets bounds the buckets of the API's own limits: one for each token or address.
	ownBuckets = 100_000
)

// Run serves the REST API until ctx ends, and logs to stderr. It opens the address last and closes it first. Then it
// finishes running requests, returns leases, and disconnects from Redis and Postgres.
func Run(ctx context.Context, s *Settings, stderr io.Writer) error {
	lines := process.NewLogWriter(stderr)
	defer lines.Close()
	log := s.newLog(lines)
	encryption, err := s.TLS.config(log)
	if err != nil {
		return err
	}
	// The address is checked before the database, so that a fault of its own is not hidden behind warnings.
	if listener, err := s.listen(ctx); err != nil {
		return err
	} else if err := listener.Close(); err != nil {
		return fmt.Errorf("--listen: %w", err)
	}
	var pool *pgxpool.Pool // nil: there is no database
	if !s.NoDatabase {
		if pool, err = s.Database.open(ctx); err != nil {
			return err
		}
		defer pool.Close()
		if err := s.checkTokens(ctx, pool, log); err != nil {
			return err
		}
	}
	background, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	d, err := newDecider(background, s, log)
	if err != nil {
		return err
	}
	server, err := s.assemble(d, pool, log)
	if err != nil {
		return err
	}
	server.http.TLSConfig = encryption

	group, background := errgroup.WithContext(background)
	for _, run := range server.background {
		group.Go(func() error { return run(background) })
	}
	ctx, end := context.WithCancel(ctx)
	defer end()
	defer context.AfterFunc(background, end)() // if a background task fails, serving ends
	d.AwaitRows(ctx, rowsTimeout)
	err = s.listenAndServe(ctx, server, log)
	stop()
	return errors.Join(err, group.Wait())
}

// newLog returns a log that writes to w.
func (s *Settings) newLog(w io.Writer) *slog.Logger {
	return slog.New(slog.NewJSONHandler(jsonline.Writer(w), &slog.HandlerOptions{
		Level: s.LogLevel, ReplaceAttr: process.ConnectFaults(func() string { return s.Database.Name }),
	}))
}

// assemble returns the server; pool is nil if there is no database.
func (s *Settings) assemble(d *decider, pool *pgxpool.Pool, log *slog.Logger) (*drainingServer, error) {
	numbers := prometheus.NewRegistry()
	own := memory.New(memory.Options{Now: process.BucketClock.Now, MaxBuckets: ownBuckets})
	background := []func(context.Context) error{d.Run, own.Run}
	options := d.rest
	if pool != nil {
		options.Rows = rows.New(pool)
		callers := newTokens(options.Rows, log)
		options.Tokens, background = callers, append(background, callers.Run)
	}
	tiers := d.knownTiers(options.Rows)
	options.Version = process.Version
	options.Log = log
	options.Tiers = tiers
	options.IsConsumer = s.isConsumer
	options.Webhooks = s.Webhooks
	options.Limits = own
	options.Metrics = numbers
	options.Rates.Subjects = int64(s.NewSubjects)
	rest, err := api.New(options)
	if err != nil {
		return nil, err
	}
	d.Metrics.Gatherer = prometheus.Gatherers{d.Metrics.Gatherer, numbers}
	monitor, err := metrics.NewServer(metrics.ServerOptions{
		Metrics: d.Metrics, Address: s.MetricsListen, AllowRemote: s.MetricsRemote, Log: log,
	})
	if err != nil {
		return nil, err
	}
	pages, err := s.newPortal(rest, numbers, log)
	if err != nil {
		return nil, err
	}
	server := newDraining(s.httpServer(rest, pages, s.newForward(d, numbers, log)), monitor, log)
	background = append(background, monitor.Run)
	if s.Envoy.Listen != "" {
		if server.envoy, err = s.newEnvoy(d, numbers, log); err != nil {
			return nil, err
		}
		background = append(background, server.envoy.Run)
	}
	if d.ledger != nil {
		background = append(background, d.ledger.Run)
	}
	if tiers != nil {
		background = append(background, func(ctx context.Context) error { return tiers.Run(ctx, log) })
	}
	if s.Keeper != nil {
		background = append(background, s.newLeading(d, tiers, options.Rows, numbers, log)...)
	}
	relays, err := s.newTopics(numbers, log)
	background = append(background, relays...)
	server.background = background
	return server, err
}

// newLeading returns the tasks of the process that leads, and registers their numbers.
func (s *Settings) newLeading(
	d *decider, tiers *api.Tiers, store *rows.DB, numbers *prometheus.Registry, log *slog.Logger,
) []func(context.Context) error {
	watcher := d.newWatcher(tiers, store)
	s.Abuse.Log, s.Abuse.TierOf = log, tiers.Trusted
	detector := abuse.New(s.Abuse)
	leader := s.Keeper.newLeader(log, watcher, detector)
	webhooks := sender.New(sender.Options{
		Connect: s.Keeper.connect, Targets: s.Webhooks, Log: log, Advice: leaderAdvice,
	})
	numbers.MustRegister(metrics.Read(leader.Stats), metrics.Read(detector.Stats), metrics.Read(webhooks.Stats))
	if watcher != nil {
		numbers.MustRegister(metrics.Read(watcher.Stats))
	}
	return []func(context.Context) error{leader.Run, webhooks.Run}
}

// open returns a pool without connecting. It reads the file of the connection string for every connection, so that a
// new password is used.
func (d *Database) open(ctx context.Context) (*pgxpool.Pool, error) {
	config, err := d.Connect()
	if err != nil {
		return nil, err
	}
	config.MaxConns = serveConnections
	if d.File != "" {
		config.BeforeConnect = func(_ context.Context, to *pgx.ConnConfig) error {
			now, err := d.Connect()
			if err != nil {
				return err
			}
			*to = *now.ConnConfig
			return nil
		}
	}
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		return nil, fmt.Errorf("open the database: %w", err)
	}
	return pool, nil
}

// checkTokens returns an error if there is no live token although other machines reach the process, or if the database
// lacks tables. While the database is unavailable, every token is denied.
func (s *Settings) checkTokens(ctx context.Context, pool *pgxpool.Pool, log *slog.Logger) error {
	ctx, cancel := context.WithTimeout(ctx, databaseTimeout)
	defer cancel()
	var live []rows.Token
	err := migrations.CheckReady(ctx, pool)
	if err == nil {
		err = migrations.CheckBehind(ctx, pool)
	}
	if err == nil {
		live, err = rows.New(pool).Tokens(ctx, rows.TokenFilter{State: rows.TokenLive, Max: 1})
	}
	const how = "no request can be authenticated: create a token with ratelimit token create"
	switch unreachable := new(pgconn.ConnectError); {
	case errors.As(err, &unreachable), errors.Is(err, context.DeadlineExceeded):
		log.Warn("no connection to the database: all tokens are denied until there is one", "error", err)
		return nil
	case err != nil:
		return err
	case len(live) == 0 && isPublic(s.Listen):
		return fmt.Errorf("--listen: other machines reach %s, and there is no live token: %s", s.Listen, how)
	case len(live) == 0:
		log.Warn("there is no live token: " + how)
	}
	return nil
}

func (s *Settings) listen(ctx context.Context) (net.Listener, error) {
	var config net.ListenConfig
	listener, err := config.Listen(ctx, "tcp", s.Listen)
	if err != nil {
		return nil, fmt.Errorf("--listen: %w", err)
	}
	return listener, nil
}

// listenAndServe serves until ctx ends, then finishes running requests.
func (s *Settings) listenAndServe(ctx context.Context, d *drainingServer, log *slog.Logger) error {
	if ctx.Err() != nil {
		return nil
	}
	listener, err := s.listen(ctx)
	if err != nil {
		return err
	}
	encrypted := d.http.TLSConfig != nil
	log.Info("serving the API", "address", listener.Addr().String(), "tls", encrypted, "decides", s.Config != nil,
		"version", process.Version, "pid", os.Getpid())
	served := make(chan error, 1)
	go func() {
		if encrypted {
			served <- d.http.ServeTLS(listener, "", "")
			return
		}
		served <- d.http.Serve(listener)
	}()
	d.monitor.SetState(metrics.Serving)
	select {
	case err := <-served:
		return errors.Join(fmt.Errorf("serve the API: %w", err), d.http.Close())
	case <-ctx.Done():
	}
	d.drain(s.DrainTime)
	ending, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.ShutdownTime)
	defer cancel()
	var stopped sync.WaitGroup // both doors have all of the time
	if d.envoy != nil {
		stopped.Go(func() { d.envoy.Stop(ending) })
	}
	defer stopped.Wait()
	if err := d.http.Shutdown(ending); err != nil {
		err = errors.Join(err, d.http.Close())
		log.Warn("requests were aborted, because they took longer than --shutdown-time", "error", err)
	}
	if err := <-served; !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve the API: %w", err)
	}
	return nil
}

// drainingServer is a server that ends without dropping a request.
type drainingServer struct {
	http       *http.Server
	monitor    *metrics.Server
	envoy      *envoy.Server                 // nil: off
	background []func(context.Context) error // tasks that run until their context ends, as long as the server
	log        *slog.Logger
	begun      atomic.Bool
}

func newDraining(server *http.Server, monitor *metrics.Server, log *slog.Logger) *drainingServer {
	d := &drainingServer{http: server, monitor: monitor, log: log}
	next := server.Handler
	server.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if d.begun.Load() {
			// A request may arrive on an idle connection just as the server closes it, so let clients close connections.
			w.Header().Set("Connection", "close")
			if r.URL.Path == "/readyz" {
				w.Header().Set("Content-Type", "application/problem+json")
				w.Header().Set("Cache-Control", "no-store")
				w.WriteHeader(http.StatusServiceUnavailable)
				// The client may have disconnected.
				_, _ = io.WriteString(w, `{"title":"Service Unavailable","status":503,"detail":"the process is shutting down"}`)
				return
			}
		}
		// A request whose answer can no longer be written is canceled.
		ctx, cancel := context.WithTimeout(r.Context(), server.WriteTimeout)
		defer cancel()
		next.ServeHTTP(w, r.WithContext(ctx))
	})
	return d
}

// drain serves for a time while /readyz fails and connections are closed after each response.
func (d *drainingServer) drain(length time.Duration) {
	d.begun.Store(true)
	d.monitor.SetState(metrics.Draining)
	if d.envoy != nil {
		d.envoy.Drain()
	}
	d.log.Info("shutting down: requests are still answered, /readyz fails", "seconds", length.Seconds())
	time.Sleep(length)
}
