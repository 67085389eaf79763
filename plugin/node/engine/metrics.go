package engine

import (
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/bucket"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/bucket/share"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/database/policysync"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/observe/metrics"
)

// buckets returns the metrics of buckets of configs with the strategy local.
func (e *Engine) buckets() metrics.Buckets {
	stats := e.Stores.Local()
	return metrics.Buckets{Kept: stats.Buckets, Expired: stats.Expired, Evicted: stats.Evicted}
}

// stores returns the metrics of all Redis in use.
func (e *Engine) stores() []metrics.Store {
	var list []metrics.Store
	for _, stats := range e.Stores.Stats() {
		list = append(list, storeMetrics(&stats))
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

// shares returns the metrics of limits that are shared fairly.
func (e *Engine) shares() metrics.Shares {
	var sum metrics.Shares
	add := func(s share.Stats) {
		sum.Limits, sum.Leads, sum.Tenants = sum.Limits+s.Limits, sum.Leads+s.Leads, sum.Tenants+s.Tenants
		sum.Failed += s.Failed
	}
	add(e.Stores.LocalShares())
	for _, stats := range e.Stores.Stats() {
		add(stats.Shares)
	}
	return sum
}

// storeMetrics converts the numbers of one store.
func storeMetrics(s *bucket.Stats) metrics.Store {
	numbers := metrics.Store{
		Name:            s.Name,
		Second:          s.Second,
		Degraded:        s.Degraded,
		DegradedSeconds: s.DegradedFor.Seconds(),
		Waiting:         int(s.Outage.Waiting),
		Foreign:         s.Redis.Foreign,
		Taken:           s.Redis.Taken,
		LostRefunds:     s.Redis.LostRefunds,
		LostSettlements: s.Redis.LostSettlements,
		RoundTrips:      s.Redis.Calls,
		LiveNodes:       s.Outage.Live,
		Leases: metrics.Leases{
			FromLease: s.Lease.FromLease, FromMemory: s.Lease.FromMemory, FromStore: s.Lease.FromStore,
			Renewals: s.Lease.Renewals, Failed: s.Lease.Failed, Refunds: s.Lease.Refunds,
			Held: s.Lease.Leases, Out: s.Lease.Out, Granted: uint64(s.Lease.Tokens.Granted), Spent: uint64(s.Lease.Tokens.Spent),
			Returned: uint64(s.Lease.Tokens.Returned), Expired: uint64(s.Lease.Tokens.Expired),
		},
		Addresses: metrics.Addresses{
			Own: s.Addresses.Apart, Prefix: s.Addresses.Prefix, Local: s.Addresses.Local,
			Kept: s.Addresses.Kept, Most: s.Addresses.Most, Rate: s.Addresses.Rate,
			LogBytes: s.Addresses.LogBytes, MostLogBytes: s.Addresses.MostLogBytes,
		},
	}
	for _, tally := range s.Outage.Policies {
		numbers.Charged += uint64(tally.Charged)
		numbers.WrittenOff += uint64(tally.WrittenOff)
	}
	return numbers
}
