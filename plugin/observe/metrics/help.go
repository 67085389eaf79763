package metrics

// help describes the numbers that other packages keep, by the names in the tags of their fields.
var help = map[string]string{
	"abandoned_settlements_total": "Requests that have ended and were not settled, because their reservation could " +
		"not be claimed in Redis.",
	"abuse_detection_flags_total": "Minutes in which abuse detection flagged an org, by signal: denied_share, spike, " +
		"breadth. The first orgs have an org_id of their own, all others share other.",
	"abuse_orgs": "Orgs on each step of the ladder of abuse detection, when this process last scored them as the " +
		"leader; in mode shadow steps have no effect.",
	"active_overrides": "Overrides in force, by what they do: ban, exempt, limit (a commercial override changes a " +
		"limit), penalty (a detector's lowers one).",
	"address_log_bytes":     "Bytes to which this node's sliding logs of addresses may grow in the shared store.",
	"address_log_bytes_max": "Bytes that these logs can have: 230 for each of max-addresses; 0: any number.",
	"addresses":             "Addresses for which this node keeps, or may keep, a bucket in the shared store.",
	"addresses_max":         "Addresses that can have a bucket (max-addresses); 0: any number.",
	"answered_limits_total": "Limits of requests that were answered without fail modes, by source: redis, lease " +
		"(leased tokens), or memory (a remembered denial).",
	"candidate_age_seconds": "Age of the open candidate; 0: none is open, or it was read from a file.",
	"candidate_dropped_total": "Requests that were not compared under the open candidate, by reason; queue: too " +
		"many waited, facts: what only the candidate needs could not be read, store: Redis did not answer, rows: " +
		"counted in part, for lack of rows, panic: a fault of the plugin. report: batches of counts that Postgres " +
		"never stored.",
	"candidate_enforced_total": "Requests of tenants that the open candidate is enforced for, by result.",
	"candidate_open":           "1 while a candidate is open at this node, else 0.",
	"candidate_report_failures_total": "Calls of Postgres that did not store counts of a candidate: they wait and " +
		"are sent again.",
	"candidate_requests_total": "Requests that were compared under the open candidate, once for each set of " +
		"policies, by what that set decided; denied also where the config only rehearses its limits.",
	"candidate_waiting":   "Requests that wait to be tried under the open candidate.",
	"config_faults_total": "Plugin configs that could not be used, each time Kong started them.",
	"degraded":            "1 while the shared store, or a part of it, does not answer and fail modes decide; else 0.",
	"degraded_seconds_total": "Seconds for which servers of the shared store did not answer: two servers of a " +
		"cluster that are away for one second count as two.",
	"denial_events_dropped_total": "Denials without an event, by reason and sink; groups: an event without the " +
		"tenant's name covers them.",
	"denial_events_total": "Events about denials that were written, by sink; one covers one denial, or all denials " +
		"of a tenant by a policy in a second.",
	"denial_queue_depth":  "Events about denials that wait to be written, by sink.",
	"denial_sink_failing": "1 if the last write of a sink of denials failed, else 0.",
	"events_total":        "Access events of Kong for plugin configs that this process serves.",
	"fair_share_capped_tenants": "Tenants that demand more of a shared bucket at this node than their share, once " +
		"for each bucket.",
	"fair_share_failed_exchanges_total": "Exchanges of demand and caps with the other nodes that failed: after a " +
		"second without caps the bucket alone decides.",
	"fair_share_leading":   "Buckets that this node divides for all nodes: each bucket has one such node.",
	"fair_share_limits":    "Buckets that tenants share fairly and demand tokens of at this node.",
	"foreign_values_total": "Values of a foreign format in the shared store, read as empty buckets.",
	"instances":            "Plugin configs served now.",
	"lease_failures_total": "Leases that failed because the shared store did not answer.",
	"lease_refunds_total":  "Calls of the shared store that returned unused tokens of leases.",
	"lease_renewals_total": "Calls of the shared store to renew leases, up to 32 leases each.",
	"lease_tokens_out":     "Tokens that this node has on lease.",
	"leased_tokens_total": "Tokens that this node leased from the shared store (granted), and their outcomes: " +
		"spent, returned or expired (lost).",
	"leases":        "Limits of which this node has a lease.",
	"live_nodes":    "Nodes that share the namespace's buckets, this one included, as last counted.",
	"local_buckets": "Buckets kept in this process now.",
	"local_buckets_evicted_total": "Buckets in this process dropped for lack of room (max-buckets): the next " +
		"request starts with a full one.",
	"local_buckets_expired_total": "Buckets in this process dropped because they were full again.",
	"log_lines_total": "Lines that the process has logged, by level: debug, info, warn or error. Those below " +
		"log-level are not counted.",
	"lost_refunds_total": "Failed calls to refund what a denied request had spent.",
	"lost_settlements_total": "Limits of requests whose settlement Redis did not answer, so that their reservations " +
		"may have stayed charged.",
	"meta_limit_denials_total": "Requests denied by meta_limit, which protects this process, before any policy was " +
		"resolved.",
	"new_addresses_per_second_max": "New addresses a second that get a bucket (new-addresses); 0: any number.",
	"new_addresses_total": "Addresses, and sliding logs of addresses, that were new to this node and got a bucket " +
		"of their own (counted by own), and requests of new ones above max-addresses or new-addresses, by what " +
		"counted them instead: prefix (a bucket that a /24 or /48 shares) or local (this process).",
	"panics_total":       "Panics that were caught. on_internal_error decides an event that panicked.",
	"parked_settlements": "Requests that have ended and wait until their reservation can be claimed in Redis now.",
	"periods_restored_total": "Counts of calendar periods that this process raised as the leader, after Redis had " +
		"lost its data.",
	"policies_connected": "1 while Postgres is followed; 0: the last good rows stay in force.",
	"policies_mirrored": "1 while the rows in force are a copy in Redis, after a start without Postgres and without " +
		"saved rows; else 0.",
	"policies_standby": "1 if the Postgres server is a standby: it may lag, and has no report of this node; " +
		"else 0.",
	"propagation_seconds": "Seconds from the write of the last change in Postgres until it was in force here.",
	"questions_total":     "Questions to Kong about requests.",
	"quota_checked_timestamp_seconds": "When this process had last looked at all quotas that were in use, as the " +
		"leader, in seconds since 1970; 0: never.",
	"quota_notices_total": "Notices that a tenant has used a percentage of a quota, which this process wrote as the " +
		"leader, by threshold in percent.",
	"reconciled_tokens_total": "Tokens admitted without the shared store, by the outcome when it answered again.",
	"redis_round_trips_total": "Scripts sent to Redis for decisions: one for each group of a request's buckets, and " +
		"one for each refund.",
	"requests_in_flight": "Slots of concurrency limits that requests in flight, which this process has admitted, hold " +
		"now. A slot that has ended by its deadline is not counted, unless its request has reserved tokens for longer.",
	"reservations": "Reservations that wait for the end of their requests now.",
	"settled_elsewhere_total": "Reservations of this process whose record was gone: another one has settled them, " +
		"or Redis has lost the record.",
	"snapshot_age_seconds":     "Seconds since the rows in force were last confirmed to be the newest.",
	"snapshot_catch_ups_total": "Fetches of what had changed in Postgres.",
	"snapshot_faults": "Rows of Postgres that cannot be used: their last good values stay in force, and the default " +
		"tier for a tier that does not exist.",
	"snapshot_loads_total": "Loads of all rows from Postgres.",
	"snapshot_rows":        "Rows of Postgres that are in force.",
	"snapshot_saves_total": "Saves of the rows on disk, for a start without Postgres.",
	"snapshot_version":     "Version of the rows of Postgres that are in force; 0: none.",
	"taken_keys_total": "Keys of the plugin in the shared store that held another type, so that their limits were " +
		"left out.",
	"topic_dropped_events": "Events that left the outbox before a topic had them; only of its leader.",
	"topic_events_total": "Events that this process handled for a topic, by result; rejected: Kafka will never take " +
		"them.",
	"topic_failing": "1 if the last try to send events to a topic failed; else 0.",
	"topic_leader":  "1 while this process sends the events of a topic; else 0.",
	"topic_oldest_event_seconds": "Seconds since the oldest event that a topic has not got was added to the outbox; " +
		"only of its leader.",
	"undecided_total":         "Events that were not decided in time or at all, and so by on_internal_error.",
	"unknown_instances_total": "Events for plugin configs that this process does not have; Kong starts them again.",
	"unknown_reservations_total": "Log phases with a reservation that no process has: settled before, forgotten, or " +
		"never made.",
	"unrecorded_reservations_total": "Reservations that could not be recorded in Redis, so that only the process " +
		"that made them can settle them.",
	"unreserved_requests_total": "Log phases of requests that had reserved nothing, so that settling them cost Kong " +
		"for nothing.",
	"usage_backlog_seconds": "Seconds since Postgres got the oldest batch of usage, of any node, that no process " +
		"has unpacked, as read once a minute; 0: none waits, or it cannot be read.",
	"usage_batches_dropped_total": "Batches of usage that were dropped, by reason; room: too many waited, rejected: " +
		"Postgres will never store them, damaged: their files cannot be read, shutdown: Postgres was unavailable and " +
		"there is no folder.",
	"usage_batches_total":        "Batches of usage that Postgres has stored.",
	"usage_batches_waiting":      "Batches of usage of this process that Postgres has not stored yet.",
	"usage_counts_dropped_total": "Counts of usage that were dropped because there were too many rows.",
	"usage_lag_seconds": "Seconds since the oldest batch of usage of this process began that Postgres has not " +
		"stored; 0: none waits.",
	"usage_leader": "1 while this process leads: it unpacks the usage that nodes report, and tidies; " +
		"else 0.",
	"usage_report_failures_total": "Calls of Postgres that did not store a batch of usage: it waits and is sent again.",
	"usage_rows":                  "Rows of usage that this process counts for its next batch.",
	"usage_unpacked_batches_total": "Batches of usage that this process handled as the leader, by result; repeated: " +
		"added before, gap: it did not come, too_late: older than the minutes that are kept, faulty: set aside.",
	"usage_unpacked_timestamp_seconds": "When this process had last unpacked all batches of usage that were ready, in " +
		"seconds since 1970; 0: never.",
	"waiting_requests":           "Requests that wait for the shared store.",
	"webhook_deliveries_waiting": "Deliveries that wait for their first or next try. 0 unless this process sends.",
	"webhook_events_dropped_total": "Events that a webhook does not get, because its queue was full or the delivery " +
		"was given up.",
	"webhook_leader": "1 while this process sends events to webhooks; else 0.",
	"webhook_subscriptions": "Webhooks, by state; failing: the last try failed, disabled: by the sender, because all " +
		"tries of a day failed or the receiver is gone. 0 unless this process sends.",
	"webhook_tries_total": "Requests to webhooks, by result; failed: it is tried again, given_up: it was the last try.",
	"writes_total":        "Writes to Kong's connections.",
}
