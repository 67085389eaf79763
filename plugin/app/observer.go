package app

import (
	"context"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/decision"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/kongplugin"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/memstore"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/policy"
)

// observer counts decisions and logs what policies in log mode would have denied.
type observer struct {
	log *slog.Logger

	allowed, softThrottled, hardThrottled atomic.Uint64
	shadowDenied                          atomic.Uint64
	strangers, usersMissing, unknownTiers atomic.Uint64
}

// Observe implements admit.Observer.
func (o *observer) Observe(d *decision.Decision) {
	switch d.Result {
	case decision.Allowed:
		o.allowed.Add(1)
	case decision.SoftThrottled:
		o.softThrottled.Add(1)
	case decision.HardThrottled:
		o.hardThrottled.Add(1)
	}
	if d.Identity.Stranger {
		o.strangers.Add(1)
	}
	if d.Identity.UserMissing {
		o.usersMissing.Add(1)
	}
	if d.Identity.Tier != "" && d.Identity.Tier != d.Resolution.Tier {
		o.unknownTiers.Add(1)
	}
	if d.ShadowDenied {
		o.shadowDenied.Add(1)
		o.logWouldDeny(d)
	}
}

func (o *observer) logWouldDeny(d *decision.Decision) {
	if d.ShadowReason != decision.Counted && d.Mode == policy.Log {
		o.log.Info("would deny", "reason", d.ShadowReason.String(), "tenant", d.Identity.Tenant.ID, "endpoint", d.Resolution.Endpoint)
	}
	for i := range d.Statuses {
		bound, status := &d.Resolution.Bounds[i], &d.Statuses[i]
		if bound.Policy.Mode != policy.Log || status.Admits() {
			continue
		}
		o.log.Info("would deny", "policy", bound.Policy.Name, "scope", bound.Policy.Scope.String(), "tenant", d.Identity.Tenant.ID,
			"tier", d.Resolution.Tier, "endpoint", d.Resolution.Endpoint, "cost", bound.Cost, "used", status.Used, "limit", bound.Policy.Describe())
	}
}

// reportEvery is how often the numbers are logged, if they changed.
const reportEvery = time.Minute

// report logs the numbers of this process every minute in which they changed, and at the end.
func report(ctx context.Context, log *slog.Logger, o *observer, c *kongplugin.Counters, buckets *memstore.Store) error {
	ticker := time.NewTicker(reportEvery)
	defer ticker.Stop()
	var last uint64
	for {
		running := true
		select {
		case <-ctx.Done():
			running = false
		case <-ticker.C:
		}
		if events := c.Events.Load() + c.ConfigFaults.Load(); events != last {
			last = events
			stats := buckets.Stats()
			log.Info("numbers since the start",
				"events", c.Events.Load(), "questions", c.Questions.Load(), "writes", c.Writes.Load(),
				"allowed", o.allowed.Load(), "soft_throttled", o.softThrottled.Load(), "hard_throttled", o.hardThrottled.Load(), "shadow_denied", o.shadowDenied.Load(),
				"missing_tenants", o.strangers.Load(), "missing_users", o.usersMissing.Load(), "unknown_tiers", o.unknownTiers.Load(),
				"panics", c.Panics.Load(), "undecided", c.Undecided.Load(), "unknown_instances", c.UnknownInstances.Load(), "config_faults", c.ConfigFaults.Load(),
				"buckets", stats.Buckets, "buckets_evicted", stats.Evicted)
		}
		if !running {
			return nil
		}
	}
}
