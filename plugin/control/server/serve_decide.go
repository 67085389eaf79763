package server

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/bucket"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/bucket/redis"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/bucket/reservation"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/control/api"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/control/envoy"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/control/forward"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/resolve"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/database/policysync"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/database/rows"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/node/engine"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/node/process"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/node/routeconfig"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/observe/denial"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/observe/metrics"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

const (
	// serveBudget bounds how long one decision waits for Redis, like -time-budget of the plugin server.
	serveBudget = time.Second
	// serveBuckets bounds the buckets in this process, like -max-buckets of the plugin server.
	serveBuckets = 1_000_000
)

// decider decides requests in the process that serves the API, as the plugin server does, with one config.
type decider struct {
	*engine.Engine
	rest   api.Options         // what the API needs of the config; zero: there is none
	config *routeconfig.Config // nil: none
	ledger *reservation.Ledger // what checks reserve
	log    *slog.Logger

	// What the leader reads and restores buckets by, as rest.OperatorBuckets; nil: the process reads no buckets.
	operators bucket.Central
	marks     []*redis.Records // of each pool
}

// newDecider returns a decider. Without a config it decides nothing and follows no rows.
func newDecider(ctx context.Context, s *Settings, log *slog.Logger) (*decider, error) {
	node, err := process.NodeName("hostname")
	if err != nil {
		return nil, err
	}
	node += "/control"
	options := engine.Options{Log: log, Buckets: bucket.Options{
		Budget: serveBudget, MaxBuckets: serveBuckets, Nodes: 1, LeaseShare: s.LeaseShare,
		MaxAddresses: s.MaxAddresses, NewAddresses: s.NewAddresses,
	}}
	record := s.newDenialRecord(node, log)
	if record != nil {
		options.Denials = record
	}
	d := &decider{Engine: engine.New(ctx, options), log: log}
	if s.Config == nil {
		d.Metrics = metrics.New(process.Version, metrics.Sources{})
		return d, nil
	}
	if !s.NoDatabase {
		o := policysync.Options{Source: s.Database.source(), Node: node, Dir: s.SnapshotDir}
		if err := d.FollowRows(o); err != nil {
			return nil, err
		}
	}
	if s.Usage {
		d.CountUsage()
	}
	sources := d.Sources()
	if record != nil {
		sources.Add(metrics.Read(record.Metrics))
	}
	sources.Settles = true
	sources.Add(metrics.Read(func() metrics.Reservations { return metrics.Reservations{Stats: d.ledger.Stats()} }))
	d.Metrics = metrics.New(process.Version, sources)
	d.ledger = reservation.New(reservation.Options{
		Elapsed: process.Elapsed, Now: process.WallClock, Observer: d.Settlements(), Log: log,
	})
	return d, d.openPath(s.Config)
}

// newDenialRecord returns what records the denials of checks for people to read, or nil if that is off or the process
// decides nothing.
func (s *Settings) newDenialRecord(node string, log *slog.Logger) *engine.DenialRecord {
	if s.Config == nil || !s.DenialRecent {
		return nil
	}
	options := denial.Options{Log: log, Node: node, Recent: true}
	if s.DenialSaltFile != "" {
		options.Salt = engine.ReadSalt("--denial-salt-file", s.DenialSaltFile, log)
	}
	return engine.NewDenialRecord(options, policysync.NewDenialSink(s.Database.source()))
}

// source returns how processes that follow rows connect.
func (d *Database) source() policysync.Source {
	if d.File != "" {
		return policysync.Source{File: d.File}
	}
	return policysync.Source{DSN: d.DSN}
}

// knownTiers returns what is known of the tiers of tenants without a row, or nil without a config or a database.
func (d *decider) knownTiers(store *rows.DB) *api.Tiers {
	if d.config == nil || store == nil {
		return nil
	}
	return api.NewTiers(store, d.rest.Decider.Policies.Load().Namespace(), d.config.Consumers, d.config.Changed)
}

// isRoute reports whether the config's file has a route of a name.
func (d *decider) isRoute(name string) bool {
	_, ok := d.config.Routes[name]
	return ok
}

// isConsumer reports whether the config's file has a consumer of a name.
func (s *Settings) isConsumer(name string) bool {
	return s.Config != nil && s.Config.ConsumerNames[name]
}

func (d *decider) openPath(config *routeconfig.Config) error {
	snapshot, err := resolve.ForCallers(config.Config)
	if err != nil {
		return fmt.Errorf("%s: %w", config.Where, err)
	}
	// The path is released with the process: Run closes its stores.
	if d.rest.Decider, _, err = d.Build(config.Config, snapshot); err != nil {
		return fmt.Errorf("%s: %w", config.Where, err)
	}
	d.config = config
	d.rest.IsRoute = d.isRoute
	d.SetRoutes(d.isRoute)
	if config.Config.Strategy == schema.StrategyRedis {
		d.rest.RequestPolicy = d.Stores.StorePolicy
	}
	if d.rest.Reservations, err = d.openReservations(&config.Config); err != nil {
		return fmt.Errorf("%s: %w", config.Where, err)
	}
	shared, _, err := d.Stores.OpenCentral(&config.Config)
	switch {
	case errors.Is(err, bucket.ErrNotCentral):
		d.log.Warn("usage is not available, and decisions apply to this process only", "config", config.Where, "why", err)
	case err != nil:
		return fmt.Errorf("%s: %w", config.Where, err)
	}
	if shared == nil {
		return nil
	}
	operators, _, err := d.Stores.OpenOperators(&config.Config)
	if err != nil {
		return fmt.Errorf("%s: %w", config.Where, err)
	}
	if d.marks, _, err = d.Stores.OpenOperatorRecords(&config.Config); err != nil {
		return fmt.Errorf("%s: %w", config.Where, err)
	}
	d.operators = operators
	d.rest.Buckets, d.rest.Ping, d.rest.OperatorBuckets = shared, shared.Ping, operators
	return nil
}

// openReservations opens what keeps the reservations of checks: beside the buckets, in Redis or in this process.
func (d *decider) openReservations(config *schema.Config) (reservation.Keepers, error) {
	buckets, release, err := d.Stores.OpenPools(config)
	if err != nil {
		return nil, err
	}
	records, _, err := d.Stores.OpenRecords(config)
	if err != nil {
		return nil, err
	}
	return reservation.NewKeepers(d.ledger, buckets, records, release), nil
}

// newEnvoy returns the server of Envoy's protocol.
func (s *Settings) newEnvoy(d *decider, numbers prometheus.Registerer, log *slog.Logger) (*envoy.Server, error) {
	encryption, err := s.Envoy.TLS.config(log)
	if err != nil {
		return nil, err
	}
	buckets, _, err := d.Stores.Open(&s.Config.Config) // the decider's; released with the process
	if err != nil {
		return nil, err
	}
	return envoy.NewServer(envoy.Options{
		Listen: s.Envoy.Listen, TLS: encryption, Mapping: s.Envoy.Mapping, Decider: d.rest.Decider, Peeker: buckets,
		Metrics: numbers, Log: log, Ready: d.ready,
	}), nil
}

// newForward returns the door of forward auth, or nil if it is off.
func (s *Settings) newForward(d *decider, numbers prometheus.Registerer, log *slog.Logger) *forward.Door {
	if s.Forward == nil {
		return nil
	}
	return forward.New(forward.Options{
		Mapping: s.Forward, Decider: d.rest.Decider, ClientOf: s.ForwardProxies.clientBehind,
		Metrics: numbers, Log: log, Ready: d.ready,
	})
}

// ready reports whether the policies of the database are loaded, if there is one.
func (d *decider) ready() bool {
	return d.Rows == nil || d.rest.Decider.Policies.Load().Snapshot() != nil
}
