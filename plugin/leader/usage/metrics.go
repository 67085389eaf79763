package usage

import (
	"github.com/prometheus/client_golang/prometheus"
)

const metricPrefix = "rate_limiter_usage_"

var (
	leaderDesc = prometheus.NewDesc(metricPrefix+"leader",
		"1 while this process leads: it unpacks the usage that nodes report, and tidies; else 0.", nil, nil)
	unpackedAtDesc = prometheus.NewDesc(metricPrefix+"unpacked_timestamp_seconds",
		"When this process had last unpacked all batches of usage that were ready, in seconds since 1970; 0: never.",
		nil, nil)
	batchesDesc = prometheus.NewDesc(metricPrefix+"unpacked_batches_total",
		"Batches of usage that this process handled as the leader, by result; repeated: added before, gap: it did not "+
			"come, too_late: older than the minutes that are kept, faulty: set aside.", []string{"result"}, nil)
)

// Describe implements prometheus.Collector.
func (l *Leader) Describe(to chan<- *prometheus.Desc) {
	to <- leaderDesc
	to <- unpackedAtDesc
	to <- batchesDesc
}

// Collect implements prometheus.Collector.
func (l *Leader) Collect(to chan<- prometheus.Metric) {
	now := l.Stats()
	leads, at := 0.0, 0.0
	if now.Leading {
		leads = 1
	}
	if !now.UnpackedAt.IsZero() {
		at = float64(now.UnpackedAt.Unix())
	}
	to <- prometheus.MustNewConstMetric(leaderDesc, prometheus.GaugeValue, leads)
	to <- prometheus.MustNewConstMetric(unpackedAtDesc, prometheus.GaugeValue, at)
	for result, n := range map[string]int64{
		"added": now.Batches, "repeated": now.Again, "gap": now.Gaps, "too_late": now.TooLate, "faulty": now.Faulty,
	} {
		to <- prometheus.MustNewConstMetric(batchesDesc, prometheus.CounterValue, float64(n), result)
	}
}
