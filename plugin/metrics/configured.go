package metrics

import (
	"cmp"
	"slices"

	"github.com/prometheus/client_golang/prometheus"
)

// Limit is a limit as it is configured.
type Limit struct {
	Policy string
	Tier   string // "": of no tier, such as a global limit or those of strangers
	Tokens int64  // per window
}

// Overrides are how many overrides are in force, by what they do.
type Overrides struct {
	Bans       int
	Exemptions int
	Limits     int // commercial ones that change a limit
	Penalties  int // a detector's that lower one
}

// effect is what an override does, as the label override_type names it.
type effect uint8

const (
	ban        effect = iota
	exemption         // no limit applies
	otherLimit        // a commercial override changes a limit
	penalty           // a detector's lowers one
)

func (e effect) String() string { return [...]string{"ban", "exempt", "limit", "penalty"}[e] }

var (
	configuredLimit = prometheus.NewDesc(prefix+"limit",
		"Tokens per window that a policy allows in a tier, before overrides; the fewest if configs differ.", []string{"policy", "tier"}, nil)
	activeOverrides = prometheus.NewDesc(prefix+"active_overrides",
		"Overrides in force, by what they do: ban, exempt, limit (a commercial override changes a limit), penalty (a detector's lowers one).",
		[]string{"override_type"}, nil)
)

// limits collects the limits of configurations: the first maxSeries by name, because an alert needs a number that stays.
type limits struct{ read func() []Limit }

func (c limits) Describe(to chan<- *prometheus.Desc) { to <- configuredLimit }

func (c limits) Collect(to chan<- prometheus.Metric) {
	defer spare(configuredLimit, to)
	all := slices.Clone(c.read())
	for i := range all {
		all[i].Policy, all[i].Tier = labelValue(all[i].Policy), labelValue(orNone(all[i].Tier))
	}
	slices.SortFunc(all, func(a, b Limit) int {
		return cmp.Or(cmp.Compare(a.Policy, b.Policy), cmp.Compare(a.Tier, b.Tier), cmp.Compare(a.Tokens, b.Tokens))
	})
	all = slices.CompactFunc(all, func(a, b Limit) bool { return a.Policy == b.Policy && a.Tier == b.Tier })
	for _, l := range all[:min(len(all), maxSeries)] {
		to <- prometheus.MustNewConstMetric(configuredLimit, prometheus.GaugeValue, float64(l.Tokens), l.Policy, l.Tier)
	}
}

// overrides collects how many are in force.
type overrides struct{ read func() Overrides }

func (c overrides) Describe(to chan<- *prometheus.Desc) { to <- activeOverrides }

func (c overrides) Collect(to chan<- prometheus.Metric) {
	defer spare(activeOverrides, to)
	now := c.read()
	for e, n := range map[effect]int{ban: now.Bans, exemption: now.Exemptions, otherLimit: now.Limits, penalty: now.Penalties} {
		to <- prometheus.MustNewConstMetric(activeOverrides, prometheus.GaugeValue, float64(n), e.String())
	}
}
