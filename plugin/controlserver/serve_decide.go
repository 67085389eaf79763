package controlserver

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/admit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/bucket"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/control"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/internal/deckfile"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/internal/engine"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/internal/process"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/metrics"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/policy"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/policysync"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

const (
	// serveBudget is how long one decision may wait for Redis, as -time-budget is for the plugin server.
	serveBudget = time.Second
	// serveBuckets is how many buckets are kept in this process, as -max-buckets is for the plugin server.
	serveBuckets = 1_000_000
)

// decider is what decides in the process that serves the API: the paths of the plugin server, with one config.
type decider struct {
	*engine.Engine
	path    *admit.Path                 // nil: no config was given
	inRedis control.Buckets             // nil: there are none
	patient control.Buckets             // the same for operators; nil: there are none
	ping    func(context.Context) error // asks that Redis; nil: there is none
	second  func(context.Context) error // asks the one of addresses; nil: there is none
	routes  map[string]string           // of the config's file, by name
	log     *slog.Logger

	asked func(*policy.Policy) *policy.Policy // with which policy the buckets of one are asked; nil: itself
}

// newDecider returns what decides. Without a config it decides nothing, and follows no rows.
func newDecider(ctx context.Context, s *Settings, log *slog.Logger) (*decider, error) {
	d := &decider{Engine: engine.New(ctx, engine.Options{Log: log, Buckets: bucket.Options{
		Budget: serveBudget, MaxBuckets: serveBuckets, Nodes: 1, LeaseShare: s.LeaseShare,
		MaxAddresses: s.MaxAddresses, NewAddresses: s.NewAddresses,
	}}), log: log}
	if s.Config == nil {
		d.Metrics = metrics.New(process.Version, metrics.Sources{})
		return d, nil
	}
	node, err := process.NodeName("hostname")
	if err != nil {
		return nil, err
	}
	source := policysync.Source{DSN: s.Database.DSN}
	if s.Database.File != "" {
		source = policysync.Source{File: s.Database.File}
	}
	if err := d.FollowRows(policysync.Options{Source: source, Node: node + "/control", Dir: s.SnapshotDir}); err != nil {
		return nil, err
	}
	d.Metrics = metrics.New(process.Version, d.Sources())
	return d, d.openPath(s.Config)
}

// isRoute reports whether a name is that of a route of the config's file.
func (d *decider) isRoute(name string) bool {
	_, is := d.routes[name]
	return is
}

// openPath opens the path of the config, and its buckets.
func (d *decider) openPath(config *deckfile.Config) error {
	snapshot, err := policy.ForCallers(config.Config)
	if err != nil {
		return fmt.Errorf("%s: %w", config.Where, err)
	}
	// They are released with the process: what is open then is closed by Run.
	if d.path, _, err = d.Build(config.Config, snapshot); err != nil {
		return fmt.Errorf("%s: %w", config.Where, err)
	}
	d.routes, d.Metrics.Routes = config.Routes, d.isRoute
	if config.Config.Strategy == schema.StrategyRedis {
		d.asked = d.Stores.StorePolicy
	}
	shared, _, err := d.Stores.OpenShared(&config.Config)
	switch {
	case errors.Is(err, bucket.ErrNotShared):
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
	d.inRedis, d.ping, d.second, d.patient = shared, shared.Ping, shared.PingSecond, operators
	return nil
}
