package engine

import (
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/bucket/share"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/database/policysync"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/node/process"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/observe/metrics"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

// stores returns how all Redis in use are.
func (e *Engine) stores() (list []metrics.Store) {
	for _, s := range e.Stores.Stats() {
		list = append(list, metrics.Store{Name: s.Name, Degraded: s.Degraded})
	}
	return list
}

// condition returns what the reports of this process have besides its rows.
func (e *Engine) condition() (c policysync.Condition) {
	for _, stats := range e.Stores.Stats() {
		c.Leases += stats.Lease.Leases
		c.Redis = append(c.Redis, policysync.Redis{Name: stats.Name, AwaySeconds: stats.UnavailableFor.Seconds()})
	}
	c.Took = e.observer.recentDurations()
	return c
}

// shares returns the numbers of limits that are shared fairly, in this process and by each Redis.
func (e *Engine) shares() []share.Stats {
	list := []share.Stats{e.Stores.LocalShares()}
	for _, stats := range e.Stores.Stats() {
		list = append(list, stats.Shares)
	}
	return list
}

// inventory counts the rows of a snapshot for metrics. Counting a million rows takes a while, so it is done once for
// each snapshot, and again when some overrides may have begun or ended.
type inventory struct {
	mu        sync.Mutex
	snapshot  *policy.Snapshot
	at        time.Time
	overrides metrics.Overrides
	limits    []metrics.Limit // of rows for tiers
}

const maxAge = time.Minute

// count returns the counts of a snapshot. It counts again if they are older than maxAge.
func (i *inventory) count(snapshot *policy.Snapshot) (metrics.Overrides, []metrics.Limit) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if snapshot == i.snapshot && time.Since(i.at) < maxAge {
		return i.overrides, i.limits
	}
	i.snapshot, i.at, i.overrides, i.limits = snapshot, time.Now(), metrics.Overrides{}, nil
	if snapshot == nil {
		return i.overrides, nil
	}
	now := process.WallClock()
	for o := range snapshot.Overrides() {
		switch {
		case !o.ActiveAt(now):
		case o.Kind == schema.KindBan:
			i.overrides.Bans++
		case o.Kind == schema.KindExempt:
			i.overrides.Exemptions++
		case o.Source == schema.SourceDetector:
			i.overrides.Penalties++
		default:
			i.overrides.Limits++
		}
	}
	for row := range snapshot.Policies() {
		if row.Tier != "" {
			i.limits = append(i.limits, metrics.Limit{Policy: row.Limit.Name, Tier: row.Tier, Tokens: row.Limit.Limit})
		}
	}
	return i.overrides, i.limits
}

func (e *Engine) overrides() metrics.Overrides {
	overrides, _ := e.inventory.count(e.snapshot())
	return overrides
}

// limits returns the limits of all live configs, and of the rows for tiers.
func (e *Engine) limits() []metrics.Limit {
	_, rows := e.inventory.count(e.snapshot())
	all := slices.Clone(rows)
	e.mu.Lock()
	configs := slices.Collect(maps.Values(e.live))
	e.mu.Unlock()
	for _, config := range configs {
		for _, one := range config.Policies() {
			all = append(all, metrics.Limit{Policy: one.Name, Tier: one.Tier, Tokens: one.Limit.Spec().Quantity})
		}
	}
	return all
}
