package app

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/admit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/bucket"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/bucket/memory"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/control"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/metrics"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/policy"
)

const (
	// serveBudget is how long one decision may wait for Redis, as -time-budget is for the plugin server.
	serveBudget = time.Second
	// serveBuckets is how many buckets are kept in this process, as -max-buckets is for the plugin server.
	serveBuckets = 1_000_000
)

// decider is what decides in the process that serves the API: the paths of the plugin server, with one config.
type decider struct {
	*paths
	path    *admit.Path                 // nil: no config was given
	inRedis control.Buckets             // nil: there are none
	patient control.Buckets             // the same for operators; nil: there are none
	ping    func(context.Context) error // asks that Redis; nil: there is none
	second  func(context.Context) error // asks the one of addresses; nil: there is none
	loaded  chan struct{}               // closed with the first rows, of the database or of an earlier run
	routes  map[string]string           // of the config's file, by name

	asked func(*policy.Policy) *policy.Policy // with which policy the buckets of one are asked; nil: itself
}

// decider makes what decides. Without a config it decides nothing, and follows no rows.
func (c *call) decider(ctx context.Context, s *serveSettings, log *slog.Logger) (*decider, error) {
	d := &decider{loaded: make(chan struct{}), paths: &paths{
		stores: bucket.New(ctx, bucket.Options{
			Now: bucketClock.Now, Elapsed: elapsed, Budget: serveBudget, Log: log,
			MaxBuckets: serveBuckets, Nodes: 1, LeaseShare: s.leaseShare,
			MaxAddresses: orAny(s.maxAddresses), NewAddresses: orAny(s.newAddresses),
		}),
		meta:     memory.New(memory.Options{Now: bucketClock.Now, MaxBuckets: serveBuckets}),
		observer: &observer{log: log},
		log:      log,
		live:     map[*admit.Path]*policy.Plan{},
		told:     map[policy.Fault]bool{},

		unfollowed: map[*admit.Path][]policy.Fault{},
	}}
	if s.config.file == "" {
		d.metrics = metrics.New(Version, metrics.Sources{})
		return d, nil
	}
	if err := c.followRows(d, s, log); err != nil {
		return nil, err
	}
	d.metrics = metrics.New(Version, metrics.Sources{
		Buckets: d.buckets, Stores: d.paths.shared, Limits: d.limits, Overrides: d.overrides,
		Policies: func() metrics.Policies { return policyNumbers(d.rows.Stats()) },
	})
	return d, c.openPath(d, s.config)
}

// followRows has the rows of the database followed.
func (c *call) followRows(d *decider, s *serveSettings, log *slog.Logger) error {
	node, err := nodeName("hostname")
	if err != nil {
		return err
	}
	from := &settings{DatabaseFile: c.database.file, SnapshotDir: s.snapshotDir}
	if from.DatabaseFile == "" {
		if from.Database, _, err = c.dsn(); err != nil {
			return err
		}
	}
	var once sync.Once
	d.rows, err = newRows(from, node+"/control", log, func(snapshot *policy.Snapshot) {
		d.follow(snapshot)
		once.Do(func() { close(d.loaded) })
	}, nil)
	return err
}

// isRoute tells whether a name is that of a route of the config's file.
func (d *decider) isRoute(name string) bool {
	_, is := d.routes[name]
	return is
}

// openPath opens the path of the config, and its buckets.
func (c *call) openPath(d *decider, from *configFlags) error {
	config, _, err := c.load(from)
	if err != nil {
		return err
	}
	c.fillPasswords(&config.Config)
	snapshot, err := policy.FromConfig(admit.ForKnown(config.Config))
	if err != nil {
		return fmt.Errorf("%s: %w", config.where, err)
	}
	// They are released with the process: what is open then is closed by run.
	if d.path, _, err = d.build(config.Config, snapshot); err != nil {
		return fmt.Errorf("%s: %w", config.where, err)
	}
	d.routes, d.metrics.Routes = config.routes, d.isRoute
	if leased, ok := d.path.Buckets.(interface {
		Asked(p *policy.Policy) *policy.Policy
	}); ok {
		d.asked = leased.Asked
	}
	shared, _, err := d.stores.OpenShared(&config.Config)
	switch {
	case errors.Is(err, bucket.ErrNotShared):
		d.log.Warn("usage is not available, and decisions apply to this process only", "config", config.where, "why", err)
	case err != nil:
		return fmt.Errorf("%s: %w", config.where, err)
	}
	if shared == nil {
		return nil
	}
	operators, _, err := d.stores.OpenOperators(&config.Config)
	if err != nil {
		return fmt.Errorf("%s: %w", config.where, err)
	}
	d.inRedis, d.ping, d.second, d.patient = shared, shared.Ping, shared.PingSecond, operators
	return nil
}

// awaitRows waits for the first rows, if some are followed, no longer than rowsPatience.
func (d *decider) awaitRows(ctx context.Context) {
	if d.rows == nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, rowsPatience)
	defer cancel()
	select {
	case <-d.loaded:
	case <-ctx.Done():
	}
}
