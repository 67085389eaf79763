package grafana

// throttling shows where requests are denied, and by which limit.
var throttling = dashboard{
	name:        "throttling",
	title:       "Rate limiter: throttle rate by endpoint",
	description: "Which endpoints are throttled, how much, and by which policies.",
	variables: []variable{
		{name: "endpoint", title: "Endpoint", metric: "rate_limiter_requests_total", label: "endpoint"},
	},
	panels: []panel{
		{
			title: "Denied share", kind: timeseries, unit: share, width: 12,
			description: "Share of each endpoint's requests that was denied.",
			queries: []query{{
				expression: `sum by (endpoint) (rate(rate_limiter_requests_total{endpoint=~"$endpoint", ` +
					`result="hard_throttled"}[$__rate_interval])) / sum by (endpoint) ` +
					`(rate(rate_limiter_requests_total{endpoint=~"$endpoint"}[$__rate_interval]))`,
				legend: "{{endpoint}}",
			}},
		},
		{
			title: "Warned share", kind: timeseries, unit: share, width: 12,
			description: "Share of each endpoint's requests that was allowed above a soft threshold, with a warning header.",
			queries: []query{{
				expression: `sum by (endpoint) (rate(rate_limiter_requests_total{endpoint=~"$endpoint", ` +
					`result="soft_throttled"}[$__rate_interval])) / sum by (endpoint) ` +
					`(rate(rate_limiter_requests_total{endpoint=~"$endpoint"}[$__rate_interval]))`,
				legend: "{{endpoint}}",
			}},
		},
		{
			title: "Denied requests", kind: timeseries, unit: perSecond, width: 12,
			description: "Denied requests per second by endpoint.",
			queries: []query{{
				expression: `sum by (endpoint) (rate(rate_limiter_requests_total{endpoint=~"$endpoint", ` +
					`result="hard_throttled"}[$__rate_interval]))`,
				legend: "{{endpoint}}",
			}},
		},
		{
			title: "Denials by policy", kind: timeseries, unit: perSecond, width: 12,
			description: "At all endpoints. A request counts once for each policy that had no room; a reason in " +
				"parentheses is no policy.",
			queries: []query{{
				expression: `sum by (policy, scope) (rate(rate_limiter_denials_total[$__rate_interval]))`,
				legend:     "{{policy}} {{scope}}",
			}},
		},
		{
			title: "Fullness of buckets", kind: timeseries, unit: share, width: 12, warnAt: 1,
			description: "Used share of the limits that requests met, at all endpoints: nine of ten were less full.",
			queries: []query{{
				expression: `histogram_quantile(0.9, sum by (scope, le) ` +
					`(rate(rate_limiter_bucket_fullness_bucket[$__rate_interval])))`,
				legend: "{{scope}}",
			}},
		},
		{
			title: "Limits in force", kind: table, unit: count, width: 12,
			description: "As configured, in tokens per window; overrides of single tenants come on top.",
			queries:     []query{{expression: `max by (policy, tier) (rate_limiter_limit)`, legend: "Limit", unit: count}},
		},
	},
}

// rollout shows what would happen if a policy in shadow were enforced.
var rollout = dashboard{
	name:  "rollout",
	title: "Rate limiter: rollout, enforce against shadow",
	description: "What policies in shadow and log mode would deny, beside what enforced ones deny. Enforce a " +
		"policy when its denials are expected.",
	panels: []panel{
		{
			title: "Would be denied", kind: stat, unit: perSecond, width: 8,
			description: "Denials per second by policies in shadow or log mode, which denied no request.",
			queries: []query{{
				expression: `sum(rate(rate_limiter_shadow_denials_total[$__rate_interval]))`,
				legend:     "shadow",
			}},
		},
		{
			title: "Denied", kind: stat, unit: perSecond, width: 8,
			description: "Denials per second by enforced policies.",
			queries:     []query{{expression: `sum(rate(rate_limiter_denials_total[$__rate_interval]))`, legend: "enforce"}},
		},
		{
			title: "Overrides in force", kind: stat, unit: count, width: 8,
			description: "Rows of Postgres that change the limits of one tenant, user, credential, address or endpoint.",
			queries: []query{{
				expression: `sum by (override_type) (max by (job, override_type) (rate_limiter_active_overrides))`,
				legend:     "{{override_type}}",
			}},
		},
		{
			title: "Shadow denials by policy", kind: timeseries, unit: perSecond, width: 12,
			description: "A request counts once for each policy that had no room.",
			queries: []query{{
				expression: `sum by (policy, tier) (rate(rate_limiter_shadow_denials_total[$__rate_interval]))`,
				legend:     "{{policy}} {{tier}}",
			}},
		},
		{
			title: "Enforced denials by policy", kind: timeseries, unit: perSecond, width: 12,
			description: "A request counts once for each policy that had no room.",
			queries: []query{{
				expression: `sum by (policy, tier) (rate(rate_limiter_denials_total[$__rate_interval]))`,
				legend:     "{{policy}} {{tier}}",
			}},
		},
		{
			title: "Denials per request of a tier", kind: timeseries, unit: share, width: 12,
			description: "What each tier would meet if shadow policies were enforced, beside what it meets. Above 100 % where " +
				"several policies deny one request.",
			queries: []query{
				{
					expression: `sum by (tier) (rate(rate_limiter_shadow_denials_total[$__rate_interval])) / sum by (tier) ` +
						`(rate(rate_limiter_requests_total[$__rate_interval]))`,
					legend: "{{tier}} shadow",
				},
				{
					expression: `sum by (tier) (rate(rate_limiter_denials_total[$__rate_interval])) / sum by (tier) ` +
						`(rate(rate_limiter_requests_total[$__rate_interval]))`,
					legend: "{{tier}} enforced",
				},
			},
		},
		{
			title: "Requests by mode", kind: timeseries, unit: perSecond, width: 12,
			description: "By the mode of the plugin config: enforce, shadow or log. A policy can have a mode of its own.",
			queries: []query{{
				expression: `sum by (mode) (rate(rate_limiter_requests_total[$__rate_interval]))`,
				legend:     "{{mode}}",
			}},
		},
		{
			title: "Enforce against shadow", kind: table, unit: perSecond, width: 12,
			description: "Denials per second over the shown time, and the limit as configured.",
			queries: []query{
				{
					expression: `sum by (policy, tier) (rate(rate_limiter_shadow_denials_total[$__range]))`,
					legend:     "Shadow",
					unit:       perSecond,
				},
				{
					expression: `sum by (policy, tier) (rate(rate_limiter_denials_total[$__range]))`,
					legend:     "Enforced",
					unit:       perSecond,
				},
				{expression: `max by (policy, tier) (rate_limiter_limit)`, legend: "Limit", unit: count},
			},
		},
		{
			title: "Overrides applied", kind: timeseries, unit: perSecond, width: 12,
			description: "How often an override decided, by its type and what it is for.",
			queries: []query{{
				expression: `sum by (override_type, scope) (rate(rate_limiter_override_applied_total[$__rate_interval]))`,
				legend:     "{{override_type}} {{scope}}",
			}},
		},
	},
}
