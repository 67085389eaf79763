package metrics

import "github.com/prometheus/client_golang/prometheus"

// number describes one metric that is read from a T.
type number[T any] struct {
	desc  *prometheus.Desc
	kind  prometheus.ValueType
	value func(*T) float64
}

func counter[T any](name, help string, value func(*T) float64, labels ...string) number[T] {
	return number[T]{prometheus.NewDesc(prefix+name, help, labels, nil), prometheus.CounterValue, value}
}

func gauge[T any](name, help string, value func(*T) float64, labels ...string) number[T] {
	return number[T]{prometheus.NewDesc(prefix+name, help, labels, nil), prometheus.GaugeValue, value}
}

// indicator returns 1 for true and 0 for false.
func indicator(is bool) float64 {
	if is {
		return 1
	}
	return 0
}

var processNumbers = []number[Process]{
	gauge("instances", "Plugin configs served now.", func(p *Process) float64 { return float64(p.Instances) }),
	counter(
		"events_total",
		"Access events of Kong for plugin configs that this process serves.",
		func(p *Process) float64 { return float64(p.Events) },
	),
	counter(
		"questions_total",
		"Questions to Kong about requests.",
		func(p *Process) float64 { return float64(p.Questions) },
	),
	counter("writes_total", "Writes to Kong's connections.", func(p *Process) float64 { return float64(p.Writes) }),
	counter(
		"panics_total",
		"Panics that were caught. on_internal_error decides an event that panicked.",
		func(p *Process) float64 { return float64(p.Panics) },
	),
	counter(
		"undecided_total",
		"Events that were not decided in time or at all, and so by on_internal_error.",
		func(p *Process) float64 { return float64(p.Undecided) },
	),
	counter(
		"unknown_instances_total",
		"Events for plugin configs that this process does not have; Kong starts them again.",
		func(p *Process) float64 { return float64(p.UnknownInstances) },
	),
	counter(
		"config_faults_total",
		"Plugin configs that could not be used, each time Kong started them.",
		func(p *Process) float64 { return float64(p.ConfigFaults) },
	),
	counter(
		"meta_limit_denials_total",
		"Requests denied by meta_limit, which protects this process, before any policy was resolved.",
		func(p *Process) float64 { return float64(p.MetaDenied) },
	),
}

var reservationNumbers = []number[Reservations]{
	gauge(
		"reservations",
		"Reservations that wait for the end of their requests now.",
		func(r *Reservations) float64 { return float64(r.Kept) },
	),
	gauge(
		"parked_settlements",
		"Requests that have ended and wait until their reservation can be claimed in Redis now.",
		func(r *Reservations) float64 { return float64(r.Parked) },
	),
	counter(
		"unknown_reservations_total",
		"Log phases with a reservation that no process has: settled before, forgotten, or never made.",
		func(r *Reservations) float64 { return float64(r.Unknown) },
	),
	counter(
		"unrecorded_reservations_total",
		"Reservations that could not be recorded in Redis, so that only the process that made them can settle them.",
		func(r *Reservations) float64 { return float64(r.Unrecorded) },
	),
	counter(
		"settled_elsewhere_total",
		"Reservations of this process whose record was gone: another one has settled them, or Redis has lost the record.",
		func(r *Reservations) float64 { return float64(r.Elsewhere) },
	),
	counter(
		"abandoned_settlements_total",
		"Requests that have ended and were not settled, because their reservation could not be claimed in Redis.",
		func(r *Reservations) float64 { return float64(r.Abandoned) },
	),
	counter(
		"unreserved_requests_total",
		"Log phases of requests that had reserved nothing, so that settling them cost Kong for nothing.",
		func(r *Reservations) float64 { return float64(r.Unreserved) },
	),
}

var bucketNumbers = []number[Buckets]{
	gauge("local_buckets", "Buckets kept in this process now.", func(b *Buckets) float64 { return float64(b.Kept) }),
	counter(
		"local_buckets_expired_total",
		"Buckets in this process dropped because they were full again.",
		func(b *Buckets) float64 { return float64(b.Expired) },
	),
	counter(
		"local_buckets_evicted_total",
		"Buckets in this process dropped for lack of room (max-buckets): the next request starts with a full one.",
		func(b *Buckets) float64 { return float64(b.Evicted) },
	),
}

var policyNumbers = []number[Policies]{
	gauge(
		"policies_connected",
		"1 while Postgres is followed; 0: the last good rows stay in force.",
		func(p *Policies) float64 { return indicator(p.Connected) },
	),
	gauge(
		"policies_standby",
		"1 if the Postgres server is a standby: it may lag, and has no report of this node; else 0.",
		func(p *Policies) float64 { return indicator(p.Standby) },
	),
	gauge(
		"snapshot_version",
		"Version of the rows of Postgres that are in force; 0: none.",
		func(p *Policies) float64 { return float64(p.Version) },
	),
	gauge(
		"snapshot_age_seconds",
		"Seconds since the rows in force were last confirmed to be the newest.",
		func(p *Policies) float64 { return p.AgeSeconds },
	),
	gauge("snapshot_rows", "Rows of Postgres that are in force.", func(p *Policies) float64 { return float64(p.Rows) }),
	gauge(
		"snapshot_faults",
		"Rows of Postgres that cannot be used: their last good values stay in force, "+
			"and the default tier for a tier that does not exist.",
		func(p *Policies) float64 { return float64(p.Faults) },
	),
	gauge(
		"propagation_seconds",
		"Seconds from the write of the last change in Postgres until it was in force here.",
		func(p *Policies) float64 { return p.PropagationSeconds },
	),
	counter(
		"snapshot_loads_total",
		"Loads of all rows from Postgres.",
		func(p *Policies) float64 { return float64(p.Loads) },
	),
	counter(
		"snapshot_catch_ups_total",
		"Fetches of what had changed in Postgres.",
		func(p *Policies) float64 { return float64(p.CatchUps) },
	),
	counter(
		"snapshot_saves_total",
		"Saves of the rows on disk, for a start without Postgres.",
		func(p *Policies) float64 { return float64(p.Saves) },
	),
}

var storeNumbers = []number[Store]{
	gauge(
		"degraded",
		"1 while the shared store, or a part of it, does not answer and fail modes decide; else 0.",
		func(s *Store) float64 { return indicator(s.Degraded) },
		"store",
	),
	counter(
		"degraded_seconds_total",
		"Seconds for which servers of the shared store did not answer: "+
			"two servers of a cluster that are away for one second count as two.",
		func(s *Store) float64 { return s.DegradedSeconds },
		"store",
	),
	gauge(
		"waiting_requests",
		"Requests that wait for the shared store.",
		func(s *Store) float64 { return float64(s.Waiting) },
		"store",
	),
	counter(
		"foreign_values_total",
		"Values of a foreign format in the shared store, read as empty buckets.",
		func(s *Store) float64 { return float64(s.Foreign) },
		"store",
	),
	counter(
		"taken_keys_total",
		"Keys of the plugin in the shared store that held another type, so that their limits were left out.",
		func(s *Store) float64 { return float64(s.Taken) },
		"store",
	),
	counter(
		"lost_refunds_total",
		"Failed calls to refund what a denied request had spent.",
		func(s *Store) float64 { return float64(s.LostRefunds) },
		"store",
	),
	counter(
		"lost_settlements_total",
		"Limits of requests whose settlement Redis did not answer, so that their reservations may have stayed charged.",
		func(s *Store) float64 { return float64(s.LostSettlements) },
		"store",
	),
	counter(
		"redis_round_trips_total",
		"Scripts sent to Redis for decisions: one for each group of a request's buckets, and one for each refund.",
		func(s *Store) float64 { return float64(s.RoundTrips) },
		"store",
	),
	counter(
		"lease_renewals_total",
		"Calls of the shared store to renew leases, up to 32 leases each.",
		func(s *Store) float64 { return float64(s.Leases.Renewals) },
		"store",
	),
	counter(
		"lease_failures_total",
		"Leases that failed because the shared store did not answer.",
		func(s *Store) float64 { return float64(s.Leases.Failed) },
		"store",
	),
	counter(
		"lease_refunds_total",
		"Calls of the shared store that returned unused tokens of leases.",
		func(s *Store) float64 { return float64(s.Leases.Refunds) },
		"store",
	),
	gauge(
		"leases",
		"Limits of which this node has a lease.",
		func(s *Store) float64 { return float64(s.Leases.Held) },
		"store",
	),
	gauge(
		"lease_tokens_out",
		"Tokens that this node has on lease.",
		func(s *Store) float64 { return float64(s.Leases.Out) },
		"store",
	),
	gauge(
		"addresses",
		"Addresses for which this node keeps, or may keep, a bucket in the shared store.",
		func(s *Store) float64 { return float64(s.Addresses.Kept) },
		"store",
	),
	gauge(
		"addresses_max",
		"Addresses that can have a bucket (max-addresses); 0: any number.",
		func(s *Store) float64 { return float64(s.Addresses.Most) },
		"store",
	),
	gauge("address_log_bytes", "Bytes to which this node's sliding logs of addresses may grow in the shared store.",
		func(s *Store) float64 { return float64(s.Addresses.LogBytes) }, "store"),
	gauge("address_log_bytes_max", "Bytes that these logs can have: 230 for each of max-addresses; 0: any number.",
		func(s *Store) float64 { return float64(s.Addresses.MostLogBytes) }, "store"),
	gauge(
		"new_addresses_per_second_max",
		"New addresses a second that get a bucket (new-addresses); 0: any number.",
		func(s *Store) float64 { return float64(s.Addresses.Rate) },
		"store",
	),
}

var (
	liveNodes = prometheus.NewDesc(
		prefix+"live_nodes",
		"Nodes that share the namespace's buckets, this one included, as last counted.",
		[]string{"store", "namespace"},
		nil,
	)
	answeredBounds = prometheus.NewDesc(prefix+"answered_limits_total",
		"Limits of requests that were answered without fail modes, by source: redis, lease (leased tokens), "+
			"or memory (a remembered denial).", []string{"store", "by"}, nil)
	leasedTokens = prometheus.NewDesc(
		prefix+"leased_tokens_total",
		"Tokens that this node leased from the shared store (granted), and their outcomes: spent, returned or expired (lost).",
		[]string{"store", "outcome"},
		nil,
	)
	newAddresses = prometheus.NewDesc(
		prefix+"new_addresses_total",
		"Addresses, and sliding logs of addresses, that were new to this node and got a bucket of their own (counted by own), "+
			"and requests of new ones above max-addresses or new-addresses, by what counted them instead: "+
			"prefix (a bucket that a /24 or /48 shares) or local (this process).",
		[]string{"store", "by"},
		nil,
	)
	reconciledTokens = prometheus.NewDesc(
		prefix+"reconciled_tokens_total",
		"Tokens admitted without the shared store, by the outcome when it answered again.",
		[]string{"store", "outcome"},
		nil,
	)
)
