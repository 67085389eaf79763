package quota

import (
	"strconv"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

const metricPrefix = "rate_limiter_quota_"

var (
	noticesDesc = prometheus.NewDesc(metricPrefix+"notices_total",
		"Notices that a tenant has used a percentage of a quota, which this process wrote as the leader, by threshold in "+
			"percent.", []string{"threshold"}, nil)
	checkedAtDesc = prometheus.NewDesc(metricPrefix+"checked_timestamp_seconds",
		"When this process had last looked at all quotas that were in use, as the leader, in seconds since 1970; 0: never.",
		nil, nil)
)

// counters counts what a Watcher has done.
type counters struct {
	mu        sync.Mutex
	notices   [len(Thresholds)]int64
	checkedAt time.Time
}

// finish counts a check that was committed, and logs when buckets cannot be read, and when they can again.
func (w *Watcher) finish(c *check) {
	w.numbers.mu.Lock()
	for i := range c.notices {
		for t := range Thresholds {
			if Thresholds[t] == c.notices[i].Threshold {
				w.numbers.notices[t]++
			}
		}
	}
	if c.unread == nil {
		w.numbers.checkedAt = time.Now()
	}
	w.numbers.mu.Unlock()
	w.unread.Record(c.unread)
}

// Describe implements prometheus.Collector.
func (w *Watcher) Describe(to chan<- *prometheus.Desc) {
	to <- noticesDesc
	to <- checkedAtDesc
}

// Collect implements prometheus.Collector.
func (w *Watcher) Collect(to chan<- prometheus.Metric) {
	w.numbers.mu.Lock()
	defer w.numbers.mu.Unlock()
	at := 0.0
	if !w.numbers.checkedAt.IsZero() {
		at = float64(w.numbers.checkedAt.Unix())
	}
	to <- prometheus.MustNewConstMetric(checkedAtDesc, prometheus.GaugeValue, at)
	for i, n := range w.numbers.notices {
		to <- prometheus.MustNewConstMetric(noticesDesc, prometheus.CounterValue, float64(n),
			strconv.FormatInt(Thresholds[i], 10))
	}
}
