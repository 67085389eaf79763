package app

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/migrations"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/bucket/memory"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/control"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/internal/jsonline"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/metrics"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/pgstore"
)

const (
	// serveConnections is how many connections to the database the API has at most, beside the one that follows its rows.
	serveConnections = 10
	// rowsPatience is how long the address stays closed for the first rows, so that few requests find them missing. Longer
	// than that Postgres may be away; until rows come, what needs them answers 503.
	rowsPatience = 2 * time.Second
	// ownBuckets is how many buckets the API's own limits may have: one for each token or address.
	ownBuckets = 100_000
)

// serve serves the REST API until ctx ends. The address is opened last, and closed first: then running requests are
// finished, leases given back, and Redis and Postgres left.
func (c *call) serve(ctx context.Context, s *serveSettings) error {
	lines := newLogWriter(c.stderr)
	defer lines.close()
	log := c.serveLog(lines, s.logLevel)
	encryption, err := s.tls.config(log)
	if err != nil {
		return err
	}
	pool, err := c.servePool(ctx)
	if err != nil {
		return err
	}
	defer pool.Close()
	if err := s.anybody(ctx, pool, log); err != nil {
		return err
	}
	background, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	d, err := c.decider(background, s, log)
	if err != nil {
		return err
	}
	server, err := s.assemble(d, pool, log)
	if err != nil {
		return err
	}
	server.http.TLSConfig = encryption

	group, background := errgroup.WithContext(background)
	for _, run := range server.beside {
		group.Go(func() error { return run(background) })
	}
	ctx, end := context.WithCancel(ctx)
	defer end()
	defer context.AfterFunc(background, end)() // nothing is served without what runs beside
	d.awaitRows(ctx)
	err = s.listenAndServe(ctx, server, log)
	stop()
	return errors.Join(err, group.Wait())
}

// serveLog returns the log of serve, which writes to w.
func (c *call) serveLog(w io.Writer, level slog.Level) *slog.Logger {
	return slog.New(slog.NewJSONHandler(jsonline.Writer(w), &slog.HandlerOptions{
		Level: level, ReplaceAttr: connectFaults(func() string { return c.source }),
	}))
}

// assemble puts the API together, with what runs beside its server.
func (s *serveSettings) assemble(d *decider, pool *pgxpool.Pool, log *slog.Logger) (*draining, error) {
	store, numbers := pgstore.New(pool), prometheus.NewRegistry()
	own, callers := memory.New(memory.Options{Now: bucketClock.Now, MaxBuckets: ownBuckets}), newTokens(store, log)
	api, err := control.New(control.Options{
		Version: Version, Store: store, Tokens: callers, Log: log,
		Buckets: d.inRedis, OperatorBuckets: d.patient, Ping: d.ping, PingSecond: d.second, Path: d.path, RequestPolicy: d.asked,
		IsRoute: d.isRoute, Limits: own, Metrics: numbers,
		Rates: control.Rates{Subjects: int64(s.newSubjects)},
	})
	if err != nil {
		return nil, err
	}
	d.metrics.Gatherer = prometheus.Gatherers{d.metrics.Gatherer, numbers}
	monitor, err := metrics.NewServer(metrics.ServerOptions{
		Metrics: d.metrics, Address: s.metricsListen, AllowRemote: s.metricsRemote, Log: log,
	})
	if err != nil {
		return nil, err
	}
	server := newDraining(api.HTTPServer(), monitor, log)
	server.beside = []func(context.Context) error{d.run, own.Run, callers.Run, monitor.Run}
	return server, nil
}

// servePool are the connections to the database, none of which is made yet. The file of the connection string is read for
// every one, so that a new password is used.
func (c *call) servePool(ctx context.Context) (*pgxpool.Pool, error) {
	config, err := c.connection()
	if err != nil {
		return nil, err
	}
	config.MaxConns = serveConnections
	if c.database.file != "" {
		config.BeforeConnect = func(_ context.Context, to *pgx.ConnConfig) error {
			now, err := c.connection()
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

// anybody tells whether there is a token that somebody could have. Without one a process that other machines reach is a
// mistake. Nor can it work on a database without tables; but one that is away may come back, and until then nobody gets
// in.
func (s *serveSettings) anybody(ctx context.Context, pool *pgxpool.Pool, log *slog.Logger) error {
	ctx, cancel := context.WithTimeout(ctx, connectTime)
	defer cancel()
	live, err := 0, ready(ctx, pool)
	if err == nil {
		err = migrations.CheckBehind(ctx, pool)
	}
	if err == nil {
		live, err = pgstore.New(pool).LiveTokens(ctx)
	}
	const how = "no request can be authenticated: create a token with ratelimit token create"
	switch away := new(pgconn.ConnectError); {
	case errors.As(err, &away), errors.Is(err, context.DeadlineExceeded):
		log.Warn("no connection to the database: all tokens are denied until there is one", "error", err)
		return nil
	case err != nil:
		return err
	case live == 0 && s.public():
		return fmt.Errorf("--listen: other machines reach %s, and there is no live token: %s", s.listen, how)
	case live == 0:
		log.Warn("there is no live token: " + how)
	}
	return nil
}

// listenAndServe serves until ctx ends, and then as long as requests run.
func (s *serveSettings) listenAndServe(ctx context.Context, d *draining, log *slog.Logger) error {
	if ctx.Err() != nil {
		return nil
	}
	var config net.ListenConfig
	listener, err := config.Listen(ctx, "tcp", s.listen)
	if err != nil {
		return fmt.Errorf("--listen: %w", err)
	}
	encrypted := d.http.TLSConfig != nil
	log.Info("serving the API", "address", listener.Addr().String(), "tls", encrypted, "decides", s.config.file != "", "version", Version, "pid", os.Getpid())
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
	d.drain(s.drainTime)
	if err := d.shutDown(s.shutdownTime); err != nil {
		log.Warn("requests were aborted, because they took longer than --shutdown-time", "error", err)
	}
	if err := <-served; !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve the API: %w", err)
	}
	return nil
}
