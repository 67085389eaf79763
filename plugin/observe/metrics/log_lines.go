package metrics

import "github.com/prometheus/client_golang/prometheus"

var logLines = prometheus.NewDesc(prefix+"log_lines_total",
	"Lines that the process has logged, by level: debug, info, warn or error. Those below log-level are not counted.",
	[]string{"level"}, nil)

// logLineCollector collects the number of logged lines by level, which is one of a fixed list.
type logLineCollector struct{ read func() map[string]uint64 }

func (c logLineCollector) Describe(to chan<- *prometheus.Desc) { to <- logLines }

func (c logLineCollector) Collect(to chan<- prometheus.Metric) {
	defer recoverSource(logLines, to)
	for level, n := range c.read() {
		to <- prometheus.MustNewConstMetric(logLines, prometheus.CounterValue, float64(n), level)
	}
}
