package grafana

// health shows the state of the limiter itself, node by node, in the order of the runbook.
var health = dashboard{
	name:        "limiter-health",
	title:       "Rate limiter: limiter health",
	description: "The state of the limiter itself: stores, time, policies, records and the process.",
	variables:   []variable{{name: "instance", title: "Node", metric: "rate_limiter_build_info", label: "instance"}},
	panels: []panel{
		{
			title: "Nodes", kind: stat, unit: count, width: 4,
			description: "Plugin processes that are scraped.",
			queries:     []query{{expression: `count(rate_limiter_build_info{instance=~"$instance"})`, legend: "nodes"}},
		},
		{
			title: "Degraded", kind: stat, unit: count, width: 4, warnAt: 1,
			description: "Pairs of a node and a store that do not reach each other: fail modes decide.",
			queries:     []query{{expression: `sum(rate_limiter_degraded{instance=~"$instance"})`, legend: "degraded"}},
		},
		{
			title: "Follow Postgres", kind: stat, unit: yesNo, width: 4,
			description: "No: at least one node decides by the last good policies. Empty where there is no database.",
			queries: []query{{
				expression: `min(rate_limiter_policies_connected{instance=~"$instance"})`,
				legend:     "connected",
			}},
		},
		{
			title: "Panics", kind: stat, unit: count, width: 4, warnAt: 1,
			description: "Panics that were caught in the shown time.",
			queries: []query{{
				expression: `sum(increase(rate_limiter_panics_total{instance=~"$instance"}[$__range]))`,
				legend:     "panics",
			}},
		},
		{
			title: "Undecided", kind: stat, unit: count, width: 4, warnAt: 1,
			description: "Events that on_internal_error answered in the shown time.",
			queries: []query{{
				expression: `sum(increase(rate_limiter_undecided_total{instance=~"$instance"}[$__range]))`,
				legend:     "undecided",
			}},
		},
		{
			title: "Plugin configs", kind: stat, unit: count, width: 4,
			description: "Served now; every worker of Kong has its own instance of each.",
			queries:     []query{{expression: `sum(rate_limiter_instances{instance=~"$instance"})`, legend: "instances"}},
		},
		{
			title: "Time of a check, p99", kind: timeseries, unit: seconds, width: 12, warnAt: 0.005,
			description: "How long the buckets took to answer, by their store. The line is where RateLimiterSlow begins.",
			queries: []query{{
				expression: `histogram_quantile(0.99, sum by (source, le) ` +
					`(rate(rate_limiter_check_duration_seconds_bucket{instance=~"$instance"}[$__rate_interval])))`,
				legend: "{{source}}",
			}},
		},
		{
			title: "Time of a check, median", kind: timeseries, unit: seconds, width: 12,
			description: "How long the buckets took to answer, by their store.",
			queries: []query{{
				expression: `histogram_quantile(0.5, sum by (source, le) ` +
					`(rate(rate_limiter_check_duration_seconds_bucket{instance=~"$instance"}[$__rate_interval])))`,
				legend: "{{source}}",
			}},
		},
		{
			title: "Degraded time", kind: timeseries, unit: share, width: 12,
			description: "Share of the time in which a store did not answer a node. In a cluster the shares of its " +
				"servers add up.",
			queries: []query{{
				expression: `rate(rate_limiter_degraded_seconds_total{instance=~"$instance"}[$__rate_interval])`,
				legend:     "{{instance}} {{store}}",
			}},
		},
		{
			title: "Why fail modes decided", kind: timeseries, unit: perSecond, width: 12,
			description: "Limits that the shared store did not answer for, by the reason.",
			queries: []query{{
				expression: `sum by (reason) ` +
					`(rate(rate_limiter_fallback_activations_total{instance=~"$instance"}[$__rate_interval]))`,
				legend: "{{reason}}",
			}},
		},
		{
			title: "What fail modes decided", kind: timeseries, unit: perSecond, width: 12,
			description: "Admitted by local and open ones without the shared store, and denied with 503 by closed ones.",
			queries: []query{
				{
					expression: `sum by (policy, fail_mode) ` +
						`(rate(rate_limiter_unverified_total{instance=~"$instance"}[$__rate_interval]))`,
					legend: "admitted: {{policy}} {{fail_mode}}",
				},
				{
					expression: `sum by (policy) (rate(rate_limiter_unavailable_total{instance=~"$instance"}[$__rate_interval]))`,
					legend:     "denied: {{policy}}",
				},
			},
		},
		{
			title: "Redis", kind: timeseries, unit: count, width: 12,
			description: "Round trips per decision, requests that wait for an answer, and nodes that share the buckets.",
			queries: []query{
				{
					expression: `sum(rate(rate_limiter_redis_round_trips_total{instance=~"$instance"}[$__rate_interval])) / ` +
						`sum(rate(rate_limiter_requests_total{instance=~"$instance"}[$__rate_interval]))`,
					legend: "round trips per decision",
				},
				{
					expression: `sum by (store) (rate_limiter_waiting_requests{instance=~"$instance"})`,
					legend:     "waiting for {{store}}",
				},
				{
					expression: `max by (store, namespace) (rate_limiter_live_nodes{instance=~"$instance"})`,
					legend:     "live nodes {{namespace}}",
				},
			},
		},
		{
			title: "What answers limits", kind: timeseries, unit: perSecond, width: 12,
			description: "Limits of requests answered by Redis, from a lease without a round trip, or from a remembered denial.",
			queries: []query{
				{
					expression: `sum by (by) (rate(rate_limiter_answered_limits_total{instance=~"$instance"}[$__rate_interval]))`,
					legend:     "{{by}}",
				},
			},
		},
		{
			title: "Tokens on lease", kind: timeseries, unit: perSecond, width: 12,
			description: "Taken from Redis ahead of need, by their outcome. Expired ones are lost to their tenants.",
			queries: []query{
				{
					expression: `sum by (outcome) (rate(rate_limiter_leased_tokens_total{instance=~"$instance"}[$__rate_interval]))`,
					legend:     "{{outcome}}",
				},
			},
		},
		{
			title: "Age of the policies", kind: timeseries, unit: seconds, width: 12, warnAt: 300,
			description: "Time since Postgres last had nothing newer, and the delay of the last change. The line is where " +
				"RateLimiterPoliciesStale begins.",
			queries: []query{
				{
					expression: `max by (instance) (rate_limiter_snapshot_age_seconds{instance=~"$instance"})`,
					legend:     "age {{instance}}",
				},
				{expression: `max(rate_limiter_propagation_seconds{instance=~"$instance"})`, legend: "last change, slowest node"},
			},
		},
		{
			title: "Version of the policies", kind: timeseries, unit: count, width: 12,
			description: "Enforced by each node; lines that stay apart are a node that lags. Rows that cannot be " +
				"used should be 0.",
			queries: []query{
				{
					expression: `max by (instance) (rate_limiter_snapshot_version{instance=~"$instance"})`,
					legend:     "version {{instance}}",
				},
				{expression: `max(rate_limiter_snapshot_faults{instance=~"$instance"})`, legend: "rows that cannot be used"},
			},
		},
		{
			title: "Denial events", kind: timeseries, unit: count, width: 12,
			description: "Written and dropped per second, and waiting to be written.",
			queries: []query{
				{
					expression: `sum(rate(rate_limiter_denial_events_total{instance=~"$instance"}[$__rate_interval]))`,
					legend:     "written per second",
				},
				{
					expression: `sum by (reason) ` +
						`(rate(rate_limiter_denial_events_dropped_total{instance=~"$instance"}[$__rate_interval]))`,
					legend: "dropped per second: {{reason}}",
				},
				{expression: `sum(rate_limiter_denial_queue_depth{instance=~"$instance"})`, legend: "waiting"},
			},
		},
		{
			title: "Work for Kong", kind: timeseries, unit: count, width: 12,
			description: "Questions and writes per event: each question costs Kong's worker and the plugin some 10 " +
				"µs. Buckets in memory that were evicted start full.",
			queries: []query{
				{
					expression: `sum(rate(rate_limiter_questions_total{instance=~"$instance"}[$__rate_interval])) / ` +
						`sum(rate(rate_limiter_events_total{instance=~"$instance"}[$__rate_interval]))`,
					legend: "questions per event",
				},
				{
					expression: `sum(rate(rate_limiter_writes_total{instance=~"$instance"}[$__rate_interval])) / ` +
						`sum(rate(rate_limiter_events_total{instance=~"$instance"}[$__rate_interval]))`,
					legend: "writes per event",
				},
				{
					expression: `sum(rate(rate_limiter_local_buckets_evicted_total{instance=~"$instance"}[$__rate_interval]))`,
					legend:     "buckets evicted per second",
				},
			},
		},
		{
			title: "New addresses", kind: timeseries, unit: perSecond, width: 12,
			description: "New addresses with a bucket of their own, and requests that had none because there was no room: by " +
				"prefix, or in the process.",
			queries: []query{
				{
					expression: `sum by (by) (rate(rate_limiter_new_addresses_total{instance=~"$instance"}[$__rate_interval]))`,
					legend:     "{{by}}",
				},
				{
					expression: `sum(rate_limiter_new_addresses_per_second_max{instance=~"$instance"})`,
					legend:     "most with their own (0: any number)",
				},
			},
		},
		{
			title: "Room for addresses", kind: timeseries, unit: share, width: 12, warnAt: 1,
			description: "Share of -max-addresses, and of what their sliding logs may grow to, that is taken. Above it, " +
				"addresses share buckets.",
			queries: []query{
				{
					expression: `max by (instance, store) (rate_limiter_addresses{instance=~"$instance"} / ` +
						`(rate_limiter_addresses_max > 0))`,
					legend: "addresses {{instance}} {{store}}",
				},
				{
					expression: `max by (instance, store) (rate_limiter_address_log_bytes{instance=~"$instance"} / ` +
						`(rate_limiter_address_log_bytes_max > 0))`,
					legend: "sliding logs {{instance}} {{store}}",
				},
			},
		},
		{
			title: "Processors", kind: timeseries, unit: count, width: 12,
			description: "Processor seconds per second that the plugin process uses.",
			queries: []query{{
				expression: `sum by (instance) (rate(process_cpu_seconds_total{instance=~"$instance"}[$__rate_interval]) and on ` +
					`(job, instance) rate_limiter_build_info)`,
				legend: "{{instance}}",
			}},
		},
		{
			title: "Memory", kind: timeseries, unit: bytesUsed, width: 12,
			description: "Resident memory of the plugin process.",
			queries: []query{{
				expression: `sum by (instance) (process_resident_memory_bytes{instance=~"$instance"} and on (job, instance) ` +
					`rate_limiter_build_info)`,
				legend: "{{instance}}",
			}},
		},
	},
}
