package metrics

import "github.com/prometheus/client_golang/prometheus"

var logLines = prometheus.NewDesc(prefix+"log_lines_total",
	"Lines that the process has logged, by level: debug, info, warn or error. Those below log-level are not counted.", []string{"level"}, nil)

// logged collects how many lines were logged by level, which are words of a fixed list.
type logged struct{ read func() map[string]uint64 }

func (c logged) Describe(to chan<- *prometheus.Desc) { to <- logLines }

func (c logged) Collect(to chan<- prometheus.Metric) {
	defer spare(logLines, to)
	for level, n := range c.read() {
		to <- prometheus.MustNewConstMetric(logLines, prometheus.CounterValue, float64(n), level)
	}
}
