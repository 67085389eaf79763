package grafana

// nearQuota is the usage above which a tenant counts as near its quota, here and in the alert
// RateLimiterTenantNearQuota.
const nearQuota = 0.9

// busiest selects the tenants that sent most in the shown time.
const busiest = `topk($top, sum by (org_id) (rate(rate_limiter_requests_total[$__range])))`

var tenants = variable{name: "org", title: "Tenant", metric: "rate_limiter_requests_total", label: "org_id"}

// tenantUsage shows what a tenant uses, of which limits, and why it was denied.
var tenantUsage = dashboard{
	name:  "tenant-usage",
	title: "Rate limiter: tenant usage",
	description: "What one tenant, or some, use of their limits. Only the busiest tenants have a name; the rest are " +
		"'other'.",
	variables: []variable{tenants},
	panels: []panel{
		{
			title: "Requests", kind: stat, unit: perSecond, width: 6,
			description: "Requests decided per second, denied ones included.",
			queries: []query{{
				expression: `sum(rate(rate_limiter_requests_total{org_id=~"$org"}[$__rate_interval]))`,
				legend:     "requests",
			}},
		},
		{
			title: "Denied", kind: stat, unit: share, width: 6, warnAt: 0.05,
			description: "Share of the requests that was denied.",
			queries: []query{{
				expression: `sum(rate(rate_limiter_requests_total{org_id=~"$org", result="hard_throttled"}[$__rate_interval])) / ` +
					`sum(rate(rate_limiter_requests_total{org_id=~"$org"}[$__rate_interval]))`,
				legend: "denied",
			}},
		},
		{
			title: "Fullest limit", kind: stat, unit: share, width: 6, warnAt: nearQuota,
			description: "Used share of the limit per tenant that is used most, as the nodes last saw it.",
			queries:     []query{{expression: `max(rate_limiter_tenant_usage_ratio{org_id=~"$org"})`, legend: "used"}},
		},
		{
			title: "Endpoints", kind: stat, unit: count, width: 6,
			description: "Endpoints called in the shown time.",
			queries: []query{{
				expression: `count(sum by (endpoint) (increase(rate_limiter_requests_total{org_id=~"$org"}[$__range])) > 0)`,
				legend:     "endpoints",
			}},
		},
		{
			title: "Requests by result", kind: timeseries, unit: perSecond, width: 12,
			description: "allowed; soft_throttled: allowed with a warning header; hard_throttled: denied.",
			queries: []query{{
				expression: `sum by (result) (rate(rate_limiter_requests_total{org_id=~"$org"}[$__rate_interval]))`,
				legend:     "{{result}}",
			}},
		},
		{
			title: "Used share of each limit", kind: timeseries, unit: share, width: 12, warnAt: nearQuota,
			description: "Of limits per tenant, as the nodes last saw it: the fullest of what they saw.",
			queries: []query{{
				expression: `max by (org_id, policy) (rate_limiter_tenant_usage_ratio{org_id=~"$org"})`,
				legend:     "{{org_id}} {{policy}}",
			}},
		},
		{
			title: "Requests by endpoint", kind: timeseries, unit: perSecond, width: 12,
			description: "By the route, or the policy's pattern that matched; never by a raw path.",
			queries: []query{{
				expression: `sum by (endpoint) (rate(rate_limiter_requests_total{org_id=~"$org"}[$__rate_interval]))`,
				legend:     "{{endpoint}}",
			}},
		},
		{
			title: "Tokens left", kind: timeseries, unit: count, width: 12,
			description: "In the busiest buckets, as last seen: the least of what the nodes saw.",
			queries: []query{{
				expression: `min by (org_id, scope, endpoint) (rate_limiter_bucket_tokens{org_id=~"$org"})`,
				legend:     "{{org_id}} {{scope}} {{endpoint}}",
			}},
		},
	},
}

// topConsumers shows which tenants make the load.
var topConsumers = dashboard{
	name:        "top-consumers",
	title:       "Rate limiter: top consumers",
	description: "The tenants that send most, that are denied most, and that are near a quota.",
	variables:   []variable{{name: "top", title: "Show", choices: "10,5,25,100"}},
	panels: []panel{
		{
			title: "Busiest tenants", kind: table, unit: perSecond, width: 14,
			description: "Over the shown time. '(none)' are requests without a tenant, 'other' the tenants without a name of " +
				"their own.",
			queries: []query{
				{expression: busiest, legend: "Requests", unit: perSecond},
				{
					expression: `sum by (org_id) (rate(rate_limiter_requests_total{result="hard_throttled"}[$__range])) and on ` +
						`(org_id) ` + busiest,
					legend: "Denied",
					unit:   perSecond,
				},
				{
					expression: `max by (org_id) (rate_limiter_tenant_usage_ratio) and on (org_id) ` + busiest,
					legend:     "Fullest limit",
					unit:       share,
				},
			},
		},
		{
			title: "Nearest to a limit", kind: bargauge, unit: share, width: 10, warnAt: nearQuota,
			description: "Used share of limits per tenant, as the nodes last saw it.",
			queries: []query{{
				expression: `topk($top, max by (org_id, policy) (rate_limiter_tenant_usage_ratio))`,
				legend:     "{{org_id}} {{policy}}",
			}},
		},
		{
			title: "Requests", kind: timeseries, unit: perSecond, width: 12,
			description: "Requests of the busiest tenants per second, denied ones included.",
			queries: []query{{
				expression: `topk($top, sum by (org_id) (rate(rate_limiter_requests_total[$__rate_interval])))`,
				legend:     "{{org_id}}",
			}},
		},
		{
			title: "Denied requests", kind: timeseries, unit: perSecond, width: 12,
			description: "Of the tenants that are denied most.",
			queries: []query{{
				expression: `topk($top, sum by (org_id) ` +
					`(rate(rate_limiter_requests_total{result="hard_throttled"}[$__rate_interval])))`,
				legend: "{{org_id}}",
			}},
		},
		{
			title: "Requests of tenants with a name", kind: timeseries, unit: share, width: 12,
			description: "The rest is 'other' and '(none)'. If it is large, more tenants need a label of their own.",
			queries: []query{{
				expression: `sum(rate(rate_limiter_requests_total{org_id!~"other|\\(none\\)"}[$__rate_interval])) / ` +
					`sum(rate(rate_limiter_requests_total[$__rate_interval]))`,
				legend: "named",
			}},
		},
		{
			title: "Requests by tier", kind: timeseries, unit: perSecond, width: 12,
			description: "By the tier whose limits applied.",
			queries: []query{{
				expression: `sum by (tier) (rate(rate_limiter_requests_total[$__rate_interval]))`,
				legend:     "{{tier}}",
			}},
		},
	},
}
