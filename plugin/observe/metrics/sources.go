package metrics

import (
	"cmp"
	"slices"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/bucket/reservation"
)

// Sources reads numbers that other packages keep. Its functions are called at every scrape, by several goroutines at
// once, and must return quickly. The metrics of a nil function are absent.
type Sources struct {
	Numbers []prometheus.Collector // made by Read
	// Stores are the central stores in use now. Several may have one name.
	Stores func() []Store
	// Limits returns the limits of all configs and rows for tiers, not those of single tenants.
	Limits func() []Limit
	// Settles is set in a process that settles reservations.
	Settles bool
}

// Add adds numbers of other packages.
func (s *Sources) Add(numbers ...prometheus.Collector) { s.Numbers = append(s.Numbers, numbers...) }

// Store says how a central store is.
type Store struct {
	Name     string // its address, without credentials
	Degraded bool   // it, or a part of it, does not answer
}

// Process holds numbers of the plugin server.
type Process struct {
	MetaDenied uint64            `metric:"meta_limit_denials_total"` // requests
	LogLines   map[string]uint64 `metric:"log_lines_total level"`    // by level: one of a fixed list
}

// Reservations holds the numbers of the reservations in this process.
type Reservations struct {
	reservation.Stats `metric:""`

	Unreserved uint64 `metric:"unreserved_requests_total"` // log phases of requests without a reservation
}

// Overrides counts the overrides in force, by what they do.
type Overrides struct {
	Bans       int `metric:"active_overrides override_type=ban"`
	Exemptions int `metric:"active_overrides override_type=exempt"`
	Limits     int `metric:"active_overrides override_type=limit"`   // commercial ones that change a limit
	Penalties  int `metric:"active_overrides override_type=penalty"` // a detector's that lower one
}

// Limit describes a configured limit.
type Limit struct {
	Policy string
	Tier   string // "" for a limit without a tier: global or anonymous
	Tokens int64  // per window
}

var configuredLimit = prometheus.NewDesc(prefix+"limit",
	"Tokens per window that a policy allows in a tier, before overrides; the fewest if configs differ.",
	[]string{"policy", "tier"}, nil)

// limitCollector collects configured limits: the first maxSeries by name, so that the same series stay.
type limitCollector struct{ read func() []Limit }

func (c limitCollector) Describe(to chan<- *prometheus.Desc) { to <- configuredLimit }

func (c limitCollector) Collect(to chan<- prometheus.Metric) {
	defer recoverSource(to)
	all := slices.Clone(c.read())
	for i := range all {
		all[i].Policy, all[i].Tier = labelValue(all[i].Policy), labelValue(cmp.Or(all[i].Tier, none))
	}
	slices.SortFunc(all, func(a, b Limit) int {
		return cmp.Or(cmp.Compare(a.Policy, b.Policy), cmp.Compare(a.Tier, b.Tier), cmp.Compare(a.Tokens, b.Tokens))
	})
	all = slices.CompactFunc(all, func(a, b Limit) bool { return a.Policy == b.Policy && a.Tier == b.Tier })
	for _, l := range all[:min(len(all), maxSeries)] {
		to <- prometheus.MustNewConstMetric(configuredLimit, prometheus.GaugeValue, float64(l.Tokens), l.Policy, l.Tier)
	}
}
