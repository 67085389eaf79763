package metrics

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/decision"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/limit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
)

const (
	orgLabel      = "org_id"
	endpointLabel = "endpoint"
)

var (
	requests = prometheus.NewDesc(prefix+"requests_total",
		"Requests decided, by tenant, endpoint, tier of the limits, result, and mode of the plugin config. "+
			"Only the busiest tenants have an org_id of their own, all others share other; (none) has no tenant.",
		[]string{orgLabel, endpointLabel, "tier", "result", "mode"}, nil)
	shadowDenied = prometheus.NewDesc(prefix+"tenant_shadow_denials_total",
		"Requests that limits in shadow or log mode would have denied, by tenant; each request once.",
		[]string{orgLabel}, nil)
	bucketTokens = prometheus.NewDesc(prefix+"bucket_tokens",
		"Tokens left in a busy tenant's own bucket at its last request; the fewest, if there are several of one scope.",
		[]string{"scope", orgLabel, endpointLabel}, nil)
	usageRatio = prometheus.NewDesc(
		prefix+"tenant_usage_ratio",
		"Share of the limit that a busy tenant has used, by policy per tenant, at its last request: 1 is all of it.",
		[]string{orgLabel, "policy"},
		nil,
	)
)

// Describe implements prometheus.Collector.
func (t *tenants) Describe(to chan<- *prometheus.Desc) {
	to <- requests
	to <- shadowDenied
	to <- bucketTokens
	to <- usageRatio
}

// Collect implements prometheus.Collector. A scrape also updates which tenants have a label, since only scrapes show
// it.
func (t *tenants) Collect(to chan<- prometheus.Metric) {
	defer recoverSource(to)
	now := time.Now()
	t.mu.Lock()
	t.rotate(now)
	all := t.withSeries()
	t.mu.Unlock()
	for _, who := range all {
		for _, l := range who.lanes.Load().all {
			l.collectResults(who.name, to)
		}
		if n := who.shadowDenied.Load(); n > 0 {
			to <- prometheus.MustNewConstMetric(shadowDenied, prometheus.CounterValue, float64(n), who.name)
		}
		collectBuckets(who.name, who.bucketsAt(limit.Micros(now.UnixMicro())), to)
	}
}

func (l *lane) collectResults(org string, to chan<- prometheus.Metric) {
	for i := range l.results {
		if n := l.results[i].Load(); n > 0 {
			to <- prometheus.MustNewConstMetric(requests, prometheus.CounterValue, float64(n),
				org, l.endpoint, l.tier, decision.Result(i).String(), l.mode.String())
		}
	}
}

// collectBuckets sends the tokens left in the emptiest bucket of each scope and endpoint, and the largest used share of
// each policy per tenant. Several configs may have limits of one name.
func collectBuckets(org string, all []bucket, to chan<- prometheus.Metric) {
	type bucketGroup struct {
		scope    policy.Scope
		endpoint string
	}
	left, used := map[bucketGroup]int64{}, map[string]float64{}
	for i := range all {
		b := &all[i]
		at := bucketGroup{b.scope, labelValue(orNone(b.endpoint))}
		if least, ok := left[at]; !ok || b.left < least {
			left[at] = b.left
		}
		if b.scope == policy.Tenant {
			name := labelValue(b.policy)
			used[name] = max(used[name], float64(b.used)/float64(b.size))
		}
	}
	for at, tokens := range left {
		to <- prometheus.MustNewConstMetric(bucketTokens, prometheus.GaugeValue, float64(tokens),
			at.scope.String(), org, at.endpoint)
	}
	for name, share := range used {
		to <- prometheus.MustNewConstMetric(usageRatio, prometheus.GaugeValue, share, org, name)
	}
}
