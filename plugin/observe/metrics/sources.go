package metrics

import (
	"fmt"
	"maps"
	"slices"

	"github.com/prometheus/client_golang/prometheus"
)

// Sources reads numbers that other packages keep. Its functions are called at every scrape, by several goroutines at
// once, and must return quickly. The metrics of a nil function are absent.
type Sources struct {
	Process func() Process
	Buckets func() Buckets
	// Stores are the central stores in use now. Those of one name count as one.
	Stores func() []Store
	// Policies is set if policies come from Postgres.
	Policies func() Policies
	// Limits returns the limits of all configs and rows for tiers, not those of single tenants.
	Limits func() []Limit
	// Overrides is set if policies come from Postgres.
	Overrides func() Overrides
	// LogLines returns the number of lines that the process has logged, by level.
	LogLines func() map[string]uint64
	// Reservations is set in a process that settles them.
	Reservations func() Reservations
	// Denial is set if denials are recorded.
	Denial func() Denial
	// Shares is set if limits can be shared fairly.
	Shares func() Shares
	// Usage is set if usage is reported.
	Usage func() Usage
	// Candidate is set if policies come from Postgres.
	Candidate func() Candidate
}

// Process holds the numbers of the connection with Kong, all but Instances since the process started.
type Process struct {
	Instances        int    // plugin configs served now
	Events           uint64 // access events of instances that exist here
	Questions        uint64 // facts requested from Kong
	Writes           uint64 // writes to Kong's sockets
	Panics           uint64 // events, compilations of configs and other calls that panicked
	Undecided        uint64 // events without a decision, answered by on_internal_error
	UnknownInstances uint64 // events of instances that do not exist here, and requests for their status
	ConfigFaults     uint64 // configs that could not be used
	MetaDenied       uint64 // requests denied by meta_limit
}

// Reservations holds the numbers of the reservations in this process, all but Kept and Parked since it started.
type Reservations struct {
	Kept       int    // that wait for their log phase now
	Parked     int    // that wait for their central store now, after their log phase
	Unknown    uint64 // log phases with an id that is not kept: settled before, forgotten, or never made
	Unrecorded uint64 // that could not be recorded in the central store
	Elsewhere  uint64 // that another process has settled
	Abandoned  uint64 // that could not be claimed in the central store, after their log phase
	Unreserved uint64 // log phases of requests without a reservation
}

// Buckets holds the numbers of the buckets in this process.
type Buckets struct {
	Kept    int    // now
	Expired uint64 // dropped because they were full again
	Evicted uint64 // dropped for lack of room; their next requests start with full ones
}

// Store holds the numbers of one central store, all but Degraded, Waiting and LiveNodes since it was opened.
type Store struct {
	Name            string  // its address, without credentials
	Degraded        bool    // it, or a part of it, does not answer
	Second          bool    // it keeps the buckets of addresses only: a node is ready without it
	DegradedSeconds float64 // how long its servers have been unavailable in total, the present time included
	Waiting         int     // requests that wait for it now
	Charged         uint64  // tokens admitted without it, charged to it later
	WrittenOff      uint64  // tokens admitted without it that will never be charged
	Foreign         uint64  // values of a foreign format, read as empty buckets
	Taken           uint64  // keys of the plugin that hold another type; their bounds were left out
	LostRefunds     uint64  // failed calls to refund what a denied request had spent
	LostSettlements uint64  // bounds of which a settlement was not answered
	RoundTrips      uint64  // scripts sent to its servers for decisions

	LiveNodes map[string]int // by namespace: the nodes that share it, as last counted
	Leases    Leases
	Addresses Addresses
}

// Addresses holds the numbers of the addresses for which this node keeps buckets in a central store.
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

// Leases holds the numbers of a node's leases, all but Held and Out since the store was opened.
type Leases struct {
	FromLease  uint64 // answers to limits of requests, from a lease
	FromMemory uint64 // answers to limits of requests, by a remembered denial
	FromStore  uint64 // answers to limits of requests, by the central store
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

// Policies holds the numbers of the rows from Postgres.
type Policies struct {
	Connected          bool    // Postgres is being followed
	Standby            bool    // it is a standby, which may lag
	Version            int64   // in force; 0: none
	AgeSeconds         float64 // since the rows were last confirmed to be the newest
	PropagationSeconds float64 // of the last change, from its write until it was in force here
	Rows               int
	Faults             int    // rows that cannot be used
	Loads              uint64 // of all rows
	CatchUps           uint64 // of changes alone
	Saves              uint64 // of the rows on disk
}

// collectors returns a collector for each source that is set.
func (s *Sources) collectors() []prometheus.Collector {
	var all []prometheus.Collector
	if s.Process != nil {
		all = append(all, sourceCollector[Process]{s.Process, processNumbers})
	}
	if s.Buckets != nil {
		all = append(all, sourceCollector[Buckets]{s.Buckets, bucketNumbers})
	}
	if s.Reservations != nil {
		all = append(all, sourceCollector[Reservations]{s.Reservations, reservationNumbers})
	}
	if s.Policies != nil {
		all = append(all, sourceCollector[Policies]{s.Policies, policyNumbers})
	}
	if s.Stores != nil {
		all = append(all, storeCollector{s.stores})
	}
	if s.Limits != nil {
		all = append(all, limitCollector{s.Limits})
	}
	if s.Overrides != nil {
		all = append(all, overrideCollector{s.Overrides})
	}
	if s.LogLines != nil {
		all = append(all, logLineCollector{s.LogLines})
	}
	if s.Denial != nil {
		all = append(all, denialCollector{s.Denial})
	}
	if s.Shares != nil {
		all = append(all, sourceCollector[Shares]{s.Shares, sharesNumbers})
	}
	if s.Candidate != nil {
		all = append(all, candidateCollector{sourceCollector[Candidate]{s.Candidate, candidateNumbers}})
	}
	if s.Usage != nil {
		all = append(all, usageCollector{sourceCollector[Usage]{s.Usage, usageNumbers}})
	}
	return all
}

// stores returns the stores sorted by name, each name once: two series of one name would fail the scrape.
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

// add adds the numbers of another store of the same name. Counts add up; of times and nodes it keeps the larger.
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
	s.LostSettlements += one.LostSettlements
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
	l.FromLease += one.FromLease
	l.FromMemory += one.FromMemory
	l.FromStore += one.FromStore
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

// sourceCollector collects the numbers of one T.
type sourceCollector[T any] struct {
	read    func() T
	numbers []number[T]
}

func (c sourceCollector[T]) Describe(to chan<- *prometheus.Desc) {
	for _, n := range c.numbers {
		to <- n.desc
	}
}

func (c sourceCollector[T]) Collect(to chan<- prometheus.Metric) {
	defer recoverSource(c.numbers[0].desc, to)
	now := c.read()
	for _, n := range c.numbers {
		to <- prometheus.MustNewConstMetric(n.desc, n.kind, n.value(&now))
	}
}

// storeCollector collects the numbers of every store.
type storeCollector struct{ read func() []Store }

func (c storeCollector) Describe(to chan<- *prometheus.Desc) {
	for _, n := range storeNumbers {
		to <- n.desc
	}
	to <- liveNodes
	to <- answeredBounds
	to <- leasedTokens
	to <- newAddresses
	to <- reconciledTokens
}

func (c storeCollector) Collect(to chan<- prometheus.Metric) {
	defer recoverSource(storeNumbers[0].desc, to)
	for _, s := range c.read() {
		for _, n := range storeNumbers {
			to <- prometheus.MustNewConstMetric(n.desc, n.kind, n.value(&s), s.Name)
		}
		for namespace, nodes := range s.LiveNodes {
			to <- prometheus.MustNewConstMetric(liveNodes, prometheus.GaugeValue, float64(nodes),
				s.Name, labelValue(namespace))
		}
		for _, c := range []struct {
			desc *prometheus.Desc
			kind string
			n    uint64
		}{
			{answeredBounds, "redis", s.Leases.FromStore},
			{answeredBounds, "lease", s.Leases.FromLease},
			{answeredBounds, "memory", s.Leases.FromMemory},
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

// recoverSource turns the panic of a source into an error of the scrape. Collectors run on goroutines of their own,
// where a panic would end the process.
func recoverSource(desc *prometheus.Desc, to chan<- prometheus.Metric) {
	if reason := recover(); reason != nil {
		to <- prometheus.NewInvalidMetric(desc, fmt.Errorf("read the numbers: panic: %v", reason))
	}
}
