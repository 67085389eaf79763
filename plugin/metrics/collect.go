package metrics

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/decision"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/limit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/policy"
)

const (
	orgLabel      = "org_id"
	endpointLabel = "endpoint"
)

var (
	requests = prometheus.NewDesc(prefix+"requests_total",
		"Requests decided, by tenant, by endpoint, by the tier whose limits applied, by result, and by the mode of the plugin config. "+
			"Only the busiest tenants have an org_id of their own, the rest is other; (none) has no tenant.",
		[]string{orgLabel, endpointLabel, "tier", "result", "mode"}, nil)
	bucketTokens = prometheus.NewDesc(prefix+"bucket_tokens",
		"Tokens left in a busy tenant's own bucket as last seen, or in the emptiest if there are several of one scope.",
		[]string{"scope", orgLabel, endpointLabel}, nil)
	usageRatio = prometheus.NewDesc(prefix+"tenant_usage_ratio",
		"Share of the limit that a busy tenant has used of its policies per tenant, as last seen: 1 is all of it.",
		[]string{orgLabel, "policy"}, nil)
)

// Describe implements prometheus.Collector.
func (t *tenants) Describe(to chan<- *prometheus.Desc) {
	to <- requests
	to <- bucketTokens
	to <- usageRatio
}

// Collect implements prometheus.Collector. A scrape is also the occasion to look who is busiest: nobody else reads it.
func (t *tenants) Collect(to chan<- prometheus.Metric) {
	defer spare(requests, to)
	now := time.Now()
	t.mu.Lock()
	t.turn(now)
	all := t.shown()
	t.mu.Unlock()
	for _, who := range all {
		for _, l := range who.lanes.Load().all {
			l.collect(who.name, to)
		}
		collectBuckets(who.name, who.seen(limit.Micros(now.UnixMicro())), to)
	}
}

func (l *lane) collect(org string, to chan<- prometheus.Metric) {
	for i := range l.results {
		if n := l.results[i].Load(); n > 0 {
			to <- prometheus.MustNewConstMetric(requests, prometheus.CounterValue, float64(n),
				org, l.endpoint, l.tier, decision.Result(i).String(), l.mode.String())
		}
	}
}

// collectBuckets shows what is left of the emptiest bucket of each scope and endpoint, and for each policy per tenant
// the largest share that is used; there is more than one where several configs have limits of one name.
func collectBuckets(org string, all []bucket, to chan<- prometheus.Metric) {
	type place struct {
		scope    policy.Scope
		endpoint string
	}
	left, used := map[place]int64{}, map[string]float64{}
	for i := range all {
		b := &all[i]
		at := place{b.scope, labelValue(orNone(b.endpoint))}
		if least, ok := left[at]; !ok || b.left < least {
			left[at] = b.left
		}
		if b.scope == policy.Tenant {
			name := labelValue(b.policy)
			used[name] = max(used[name], float64(b.used)/float64(b.size))
		}
	}
	for at, tokens := range left {
		to <- prometheus.MustNewConstMetric(bucketTokens, prometheus.GaugeValue, float64(tokens), at.scope.String(), org, at.endpoint)
	}
	for name, share := range used {
		to <- prometheus.MustNewConstMetric(usageRatio, prometheus.GaugeValue, share, org, name)
	}
}
