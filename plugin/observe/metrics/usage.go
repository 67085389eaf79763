package metrics

import "github.com/prometheus/client_golang/prometheus"

// Usage holds the numbers of the usage that this node reports to Postgres, all but Waiting, OldestSeconds and Rows
// since the process started.
type Usage struct {
	Stored        uint64            // batches
	Dropped       map[string]uint64 // batches by reason: one of a fixed list
	Failed        uint64            // calls of Postgres
	Waiting       int               // batches
	OldestSeconds float64           // since the oldest batch of this process that waits began; 0: none
	BacklogSecs   float64           // since Postgres got the oldest batch of all nodes that is not unpacked; 0: none
	Rows          int               // since the last batch
	DroppedCounts uint64            // for lack of rows
}

var usageNumbers = []number[Usage]{
	counter(
		"usage_batches_total",
		"Batches of usage that Postgres has stored.",
		func(u *Usage) float64 { return float64(u.Stored) },
	),
	counter(
		"usage_report_failures_total",
		"Calls of Postgres that did not store a batch of usage: it waits and is sent again.",
		func(u *Usage) float64 { return float64(u.Failed) },
	),
	gauge(
		"usage_batches_waiting",
		"Batches of usage that Postgres has not stored yet, those of ended processes in the folder included.",
		func(u *Usage) float64 { return float64(u.Waiting) },
	),
	gauge(
		"usage_lag_seconds",
		"Seconds since the oldest batch of usage of this process began that Postgres has not stored; 0: none waits.",
		func(u *Usage) float64 { return u.OldestSeconds },
	),
	gauge(
		"usage_backlog_seconds",
		"Seconds since Postgres got the oldest batch of usage, of any node, that no process has unpacked, as read once a "+
			"minute; 0: none waits, or it cannot be read.",
		func(u *Usage) float64 { return u.BacklogSecs },
	),
	gauge(
		"usage_rows",
		"Rows of usage that this process counts for its next batch.",
		func(u *Usage) float64 { return float64(u.Rows) },
	),
	counter(
		"usage_counts_dropped_total",
		"Counts of usage that were dropped because there were too many rows.",
		func(u *Usage) float64 { return float64(u.DroppedCounts) },
	),
}

var usageBatchesDropped = prometheus.NewDesc(prefix+"usage_batches_dropped_total",
	"Batches of usage that were dropped, by reason; room: too many waited, rejected: Postgres will never store them, "+
		"damaged: their files cannot be read, shutdown: Postgres was unavailable and there is no folder.",
	[]string{"reason"}, nil)

// usageCollector collects the numbers of usage.
type usageCollector struct{ sourceCollector[Usage] }

func (c usageCollector) Describe(to chan<- *prometheus.Desc) {
	c.sourceCollector.Describe(to)
	to <- usageBatchesDropped
}

func (c usageCollector) Collect(to chan<- prometheus.Metric) {
	defer recoverSource(usageBatchesDropped, to)
	now := c.read()
	for _, n := range c.numbers {
		to <- prometheus.MustNewConstMetric(n.desc, n.kind, n.value(&now))
	}
	for reason, n := range now.Dropped {
		to <- prometheus.MustNewConstMetric(usageBatchesDropped, prometheus.CounterValue, float64(n), reason)
	}
}
