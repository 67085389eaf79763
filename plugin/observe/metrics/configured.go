package metrics

import (
	"cmp"
	"slices"

	"github.com/prometheus/client_golang/prometheus"
)

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
