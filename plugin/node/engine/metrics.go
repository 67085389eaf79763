package engine

import (
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/bucket/share"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/database/policysync"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/observe/metrics"
)

// stores returns how all Redis in use are.
func (e *Engine) stores() (list []metrics.Store) {
	for _, s := range e.Stores.Stats() {
		list = append(list, metrics.Store{Name: s.Name, Degraded: s.Degraded, Second: s.Second})
	}
	return list
}

// condition returns what the reports of this process have besides its rows.
func (e *Engine) condition() (c policysync.Condition) {
	for _, stats := range e.Stores.Stats() {
		c.Leases += stats.Lease.Leases
		c.Redis = append(c.Redis, policysync.Redis{Name: stats.Name, AwaySeconds: stats.UnavailableFor.Seconds()})
	}
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
