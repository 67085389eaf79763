package metrics

import (
	"fmt"
	"maps"
	"slices"

	"github.com/prometheus/client_golang/prometheus"
)

// Sources are where numbers come from that others keep. They are read at every scrape, by several goroutines at
// once, and must neither block nor be slow. What is nil is absent from the metrics.
type Sources struct {
	Process func() Process
	Buckets func() Buckets
	// Stores are the shared stores in use now. Those of one name count as one.
	Stores func() []Store
	// Policies are there where policies come from Postgres.
	Policies func() Policies
	// Limits are the limits of all configs and rows for tiers. Which tenant has another limit it does not say.
	Limits func() []Limit
	// Overrides are there where policies come from Postgres.
	Overrides func() Overrides
	// LogLines returns how many lines the process has logged, by level; nil: they are not counted.
	LogLines func() map[string]uint64
	// Denial is there where denials are recorded.
	Denial func() Denial
}

// Process are the numbers of the process's conversation with Kong, all but Instances since its start.
type Process struct {
	Instances        int    // plugin configs served now
	Events           uint64 // access events of known instances
	Questions        uint64 // questions asked of Kong
	Writes           uint64 // writes to Kong's sockets
	Panics           uint64 // events, compilations of configs and other calls that panicked
	Undecided        uint64 // events without a decision: on_internal_error answered
	UnknownInstances uint64 // events of instances that are not known here, and questions for their status
	ConfigFaults     uint64 // configs that could not be used
	MetaDenied       uint64 // requests refused by meta_limit
}

// Buckets are the numbers of the buckets in this process.
type Buckets struct {
	Kept    int    // now
	Expired uint64 // forgotten because their state meant nothing any more
	Evicted uint64 // forgotten for want of room, with what was spent from them
}

// Store are the numbers of one shared store, all but Degraded, Waiting and LiveNodes since it was opened.
type Store struct {
	Name            string  // where it is, without credentials
	Degraded        bool    // it, or a part of it, does not answer
	Second          bool    // it keeps the buckets of addresses for others and none else: a node needs none of it
	DegradedSeconds float64 // how long its servers have been away in total, the present time included
	Waiting         int     // requests that wait for it now
	Charged         uint64  // tokens admitted without it, charged to it later
	WrittenOff      uint64  // tokens admitted without it that will never be charged
	Foreign         uint64  // values that were not of our form, read as empty buckets
	Taken           uint64  // keys of ours that hold something else, whose bounds were left out
	LostRefunds     uint64  // calls that were to give back what a refused request had spent, and failed
	RoundTrips      uint64  // scripts sent to its servers for decisions

	LiveNodes map[string]int // by namespace: the nodes that share it, as last counted
	Leases    Leases
	Addresses Addresses
}

// Addresses are the numbers of the addresses that have buckets in a shared store by this node.
type Addresses struct {
	Own    uint64 // new ones that got a bucket of their own, since the store was opened
	Prefix uint64 // requests of new ones that were counted by their prefix, since then
	Local  uint64 // requests of new ones that were counted in this process, since then
	Kept   int    // with a bucket now
	Most   int    // that can have one; 0: any number
	Rate   int    // new ones a second; 0: any number

	LogBytes     int64 // that their sliding logs may have now
	MostLogBytes int64 // that those can have; 0: any number
}

// Leases are the numbers of what a node takes from a shared store ahead of need, all but Held and Out since it was opened.
type Leases struct {
	Drawn      uint64 // answers to limits of requests, from a lease
	Remembered uint64 // answers to limits of requests, by a refusal that is remembered
	Asked      uint64 // answers to limits of requests, by the shared store
	Renewals   uint64 // calls for leases
	Failed     uint64 // buckets for which such a call brought no answer
	Refunds    uint64 // calls that gave leases back
	Held       int    // buckets of which there is a lease now
	Out        int64  // tokens that are, or may be, out on lease to this node now
	Granted    uint64 // tokens
	Spent      uint64 // tokens of these that requests have spent
	Returned   uint64 // tokens of these that were given back
	Expired    uint64 // tokens of these that were lost
}

// Policies are the numbers of the rows that come from Postgres.
type Policies struct {
	Connected          bool    // Postgres is being followed
	Standby            bool    // it is a standby, which may be late
	Version            int64   // that is enforced; 0: none
	AgeSeconds         float64 // since Postgres was last known to have nothing newer
	PropagationSeconds float64 // of the last change: from its writing until it was in force here
	Rows               int
	Faults             int    // rows that cannot be used
	Loads              uint64 // of all rows
	CatchUps           uint64 // of changes alone
	Saves              uint64 // of the rows on disk
}

// number is one metric that is read from a T.
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

// indicator is 1 for true.
func indicator(is bool) float64 {
	if is {
		return 1
	}
	return 0
}

var processNumbers = []number[Process]{
	gauge("instances", "Plugin configs served now.", func(p *Process) float64 { return float64(p.Instances) }),
	counter("events_total", "Access events of Kong's for known plugin configs.", func(p *Process) float64 { return float64(p.Events) }),
	counter("questions_total", "Questions asked of Kong about requests.", func(p *Process) float64 { return float64(p.Questions) }),
	counter("writes_total", "Writes to Kong's connections.", func(p *Process) float64 { return float64(p.Writes) }),
	counter("panics_total", "Panics that were caught. An event that panicked is answered as on_internal_error says.", func(p *Process) float64 { return float64(p.Panics) }),
	counter("undecided_total", "Events that could not be decided in time or at all, and were answered as on_internal_error says.", func(p *Process) float64 { return float64(p.Undecided) }),
	counter("unknown_instances_total", "Events for plugin configs that are not known here, which Kong starts again.", func(p *Process) float64 { return float64(p.UnknownInstances) }),
	counter("config_faults_total", "Plugin configs that could not be used, each time Kong started them.", func(p *Process) float64 { return float64(p.ConfigFaults) }),
	counter("meta_limit_denials_total", "Requests refused by meta_limit, which guards this process, before any policy was asked.", func(p *Process) float64 { return float64(p.MetaDenied) }),
}

var bucketNumbers = []number[Buckets]{
	gauge("local_buckets", "Buckets kept in this process now.", func(b *Buckets) float64 { return float64(b.Kept) }),
	counter("local_buckets_expired_total", "Buckets in this process forgotten because their state meant nothing any more.", func(b *Buckets) float64 { return float64(b.Expired) }),
	counter("local_buckets_evicted_total", "Buckets in this process forgotten for want of room (max-buckets): their owners start with fresh ones.", func(b *Buckets) float64 { return float64(b.Evicted) }),
}

var policyNumbers = []number[Policies]{
	gauge("policies_connected", "1 while Postgres is followed; 0: the last good rows stay in force.", func(p *Policies) float64 { return indicator(p.Connected) }),
	gauge("policies_standby", "1 where the Postgres that is followed is a standby: it is asked every second, may be late, and has no report of this node; else 0.", func(p *Policies) float64 { return indicator(p.Standby) }),
	gauge("snapshot_version", "Version of the rows of Postgres that are enforced; 0: none.", func(p *Policies) float64 { return float64(p.Version) }),
	gauge("snapshot_age_seconds", "Seconds since Postgres was last known to have nothing newer.", func(p *Policies) float64 { return p.AgeSeconds }),
	gauge("snapshot_rows", "Rows of Postgres that are enforced.", func(p *Policies) float64 { return float64(p.Rows) }),
	gauge("snapshot_faults", "Rows of Postgres that cannot be used: their last good values stay in force, and the default tier where a tenant's is not known.", func(p *Policies) float64 { return float64(p.Faults) }),
	gauge("propagation_seconds", "Seconds that the last change in Postgres took until it was enforced here.", func(p *Policies) float64 { return p.PropagationSeconds }),
	counter("snapshot_loads_total", "Loads of all rows from Postgres.", func(p *Policies) float64 { return float64(p.Loads) }),
	counter("snapshot_catch_ups_total", "Fetches of what had changed in Postgres.", func(p *Policies) float64 { return float64(p.CatchUps) }),
	counter("snapshot_saves_total", "Times that the rows were saved on disk, for a start without Postgres.", func(p *Policies) float64 { return float64(p.Saves) }),
}

var storeNumbers = []number[Store]{
	gauge("degraded", "1 while the shared store, or a part of it, does not answer and fail modes decide; else 0.", func(s *Store) float64 { return indicator(s.Degraded) }, "store"),
	counter("degraded_seconds_total", "Seconds for which servers of the shared store did not answer: two of a cluster that are away for one second count as two.", func(s *Store) float64 { return s.DegradedSeconds }, "store"),
	gauge("waiting_requests", "Requests that wait for the shared store now.", func(s *Store) float64 { return float64(s.Waiting) }, "store"),
	counter("foreign_values_total", "Values in the shared store that were not of our form, read as empty buckets.", func(s *Store) float64 { return float64(s.Foreign) }, "store"),
	counter("taken_keys_total", "Keys of ours in the shared store that held something else, so that their limits were left out.", func(s *Store) float64 { return float64(s.Taken) }, "store"),
	counter("lost_refunds_total", "Calls that were to give back what a refused request had spent, and failed.", func(s *Store) float64 { return float64(s.LostRefunds) }, "store"),
	counter("redis_round_trips_total", "Scripts sent to Redis for decisions: one for each group of a request's buckets, and one for each that gives something back.", func(s *Store) float64 { return float64(s.RoundTrips) }, "store"),
	counter("lease_renewals_total", "Calls of the shared store for tokens ahead of need, up to 32 leases each.", func(s *Store) float64 { return float64(s.Leases.Renewals) }, "store"),
	counter("lease_failures_total", "Leases that were asked for without an answer of the shared store.", func(s *Store) float64 { return float64(s.Leases.Failed) }, "store"),
	counter("lease_refunds_total", "Calls of the shared store that gave tokens back that nobody needed.", func(s *Store) float64 { return float64(s.Leases.Refunds) }, "store"),
	gauge("leases", "Limits that this node has a lease of now.", func(s *Store) float64 { return float64(s.Leases.Held) }, "store"),
	gauge("lease_tokens_out", "Tokens that this node has out on lease now.", func(s *Store) float64 { return float64(s.Leases.Out) }, "store"),
	gauge("addresses", "Addresses that have, or may have, a bucket in the shared store by this node now.", func(s *Store) float64 { return float64(s.Addresses.Kept) }, "store"),
	gauge("addresses_max", "Addresses that can have one (max-addresses); 0: any number.", func(s *Store) float64 { return float64(s.Addresses.Most) }, "store"),
	gauge("address_log_bytes", "Bytes that sliding logs of addresses may grow to in the shared store by this node now.",
		func(s *Store) float64 { return float64(s.Addresses.LogBytes) }, "store"),
	gauge("address_log_bytes_max", "Bytes that they can have: 230 for each of max-addresses; 0: any number.",
		func(s *Store) float64 { return float64(s.Addresses.MostLogBytes) }, "store"),
	gauge("new_addresses_per_second_max", "New addresses a second that get one (new-addresses); 0: any number.", func(s *Store) float64 { return float64(s.Addresses.Rate) }, "store"),
}

var (
	liveNodes = prometheus.NewDesc(prefix+"live_nodes",
		"Nodes that share the namespace's buckets, this one included, as last counted.", []string{"store", "namespace"}, nil)
	answeredBounds = prometheus.NewDesc(prefix+"answered_limits_total",
		"Limits of requests that were answered without fail modes, by what answered: redis, lease (tokens that this node took ahead), "+
			"or memory (a refusal that it remembers).", []string{"store", "by"}, nil)
	leasedTokens = prometheus.NewDesc(prefix+"leased_tokens_total",
		"Tokens that this node took from the shared store ahead of need (granted), and what became of them: spent, returned or expired (lost).",
		[]string{"store", "outcome"}, nil)
	newAddresses = prometheus.NewDesc(prefix+"new_addresses_total",
		"Addresses, and sliding logs of addresses, that were new to this node and got a bucket of their own (counted by own), "+
			"and requests of new ones above max-addresses or new-addresses, by what counted them instead: prefix (a bucket that a /24 or /48 shares) or local (this process).",
		[]string{"store", "by"}, nil)
	reconciledTokens = prometheus.NewDesc(prefix+"reconciled_tokens_total",
		"Tokens admitted without the shared store, by what became of them when it was back.", []string{"store", "outcome"}, nil)
)

// collectors are the collectors of the sources that are there.
func (s *Sources) collectors() []prometheus.Collector {
	var all []prometheus.Collector
	if s.Process != nil {
		all = append(all, single[Process]{s.Process, processNumbers})
	}
	if s.Buckets != nil {
		all = append(all, single[Buckets]{s.Buckets, bucketNumbers})
	}
	if s.Policies != nil {
		all = append(all, single[Policies]{s.Policies, policyNumbers})
	}
	if s.Stores != nil {
		all = append(all, stores{s.stores})
	}
	if s.Limits != nil {
		all = append(all, limits{s.Limits})
	}
	if s.Overrides != nil {
		all = append(all, overrides{s.Overrides})
	}
	if s.LogLines != nil {
		all = append(all, logged{s.LogLines})
	}
	if s.Denial != nil {
		all = append(all, denials{s.Denial})
	}
	return all
}

// stores are the stores by name, each name once: two series of one name would spoil the scrape. It is how they are
// told apart everywhere in this package.
func (s *Sources) stores() []Store {
	if s.Stores == nil {
		return nil
	}
	byName := map[string]Store{}
	for _, one := range s.Stores() {
		one.Name = labelValue(one.Name)
		all, ok := byName[one.Name]
		if !ok {
			one.LiveNodes = maps.Clone(one.LiveNodes)
			byName[one.Name] = one
			continue
		}
		all.add(&one)
		byName[one.Name] = all
	}
	sorted := make([]Store, 0, len(byName))
	for _, name := range slices.Sorted(maps.Keys(byName)) {
		sorted = append(sorted, byName[name])
	}
	return sorted
}

// add makes s both stores: what is counted adds up, and of what both saw the larger counts.
func (s *Store) add(one *Store) {
	s.Degraded = s.Degraded || one.Degraded
	s.Second = s.Second && one.Second
	s.DegradedSeconds = max(s.DegradedSeconds, one.DegradedSeconds)
	s.Waiting += one.Waiting
	s.Charged += one.Charged
	s.WrittenOff += one.WrittenOff
	s.Foreign += one.Foreign
	s.Taken += one.Taken
	s.LostRefunds += one.LostRefunds
	s.RoundTrips += one.RoundTrips
	s.Leases.add(&one.Leases)
	s.Addresses.add(&one.Addresses)
	for namespace, nodes := range one.LiveNodes {
		if s.LiveNodes == nil {
			s.LiveNodes = map[string]int{}
		}
		s.LiveNodes[namespace] = max(s.LiveNodes[namespace], nodes)
	}
}

func (l *Leases) add(one *Leases) {
	l.Drawn += one.Drawn
	l.Remembered += one.Remembered
	l.Asked += one.Asked
	l.Renewals += one.Renewals
	l.Failed += one.Failed
	l.Refunds += one.Refunds
	l.Held += one.Held
	l.Out += one.Out
	l.Granted += one.Granted
	l.Spent += one.Spent
	l.Returned += one.Returned
	l.Expired += one.Expired
}

func (a *Addresses) add(one *Addresses) {
	a.Own += one.Own
	a.Prefix += one.Prefix
	a.Local += one.Local
	a.Kept += one.Kept
	a.Most += one.Most
	a.Rate += one.Rate
	a.LogBytes += one.LogBytes
	a.MostLogBytes += one.MostLogBytes
}

// single collects the numbers of one T.
type single[T any] struct {
	read    func() T
	numbers []number[T]
}

func (c single[T]) Describe(to chan<- *prometheus.Desc) {
	for _, n := range c.numbers {
		to <- n.desc
	}
}

func (c single[T]) Collect(to chan<- prometheus.Metric) {
	defer spare(c.numbers[0].desc, to)
	now := c.read()
	for _, n := range c.numbers {
		to <- prometheus.MustNewConstMetric(n.desc, n.kind, n.value(&now))
	}
}

// stores collects the numbers of every store.
type stores struct{ read func() []Store }

func (c stores) Describe(to chan<- *prometheus.Desc) {
	for _, n := range storeNumbers {
		to <- n.desc
	}
	to <- liveNodes
	to <- answeredBounds
	to <- leasedTokens
	to <- newAddresses
	to <- reconciledTokens
}

func (c stores) Collect(to chan<- prometheus.Metric) {
	defer spare(storeNumbers[0].desc, to)
	for _, s := range c.read() {
		for _, n := range storeNumbers {
			to <- prometheus.MustNewConstMetric(n.desc, n.kind, n.value(&s), s.Name)
		}
		for namespace, nodes := range s.LiveNodes {
			to <- prometheus.MustNewConstMetric(liveNodes, prometheus.GaugeValue, float64(nodes), s.Name, labelValue(namespace))
		}
		for _, c := range []struct {
			desc *prometheus.Desc
			kind string
			n    uint64
		}{
			{answeredBounds, "redis", s.Leases.Asked},
			{answeredBounds, "lease", s.Leases.Drawn},
			{answeredBounds, "memory", s.Leases.Remembered},
			{leasedTokens, "granted", s.Leases.Granted},
			{leasedTokens, "spent", s.Leases.Spent},
			{leasedTokens, "returned", s.Leases.Returned},
			{leasedTokens, "expired", s.Leases.Expired},
			{newAddresses, "own", s.Addresses.Own},
			{newAddresses, "prefix", s.Addresses.Prefix},
			{newAddresses, "local", s.Addresses.Local},
			{reconciledTokens, "charged", s.Charged},
			{reconciledTokens, "written_off", s.WrittenOff},
		} {
			to <- prometheus.MustNewConstMetric(c.desc, prometheus.CounterValue, float64(c.n), s.Name, c.kind)
		}
	}
}

// spare turns the panic of a source into an error of the scrape: it would end the process, because collectors run on
// goroutines of their own, and a number is not worth that.
func spare(desc *prometheus.Desc, to chan<- prometheus.Metric) {
	if reason := recover(); reason != nil {
		to <- prometheus.NewInvalidMetric(desc, fmt.Errorf("reading the numbers panicked: %v", reason))
	}
}
