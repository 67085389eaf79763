package metrics

import "github.com/prometheus/client_golang/prometheus"

// Denial holds the numbers of the record of denials, all but Queued since the process started.
type Denial struct {
	Written uint64            // events that a sink has accepted
	Dropped map[string]uint64 // denials without an event, by reason: one of a fixed list
	Queued  int               // events that wait for a sink now
}

var (
	denialEvents = prometheus.NewDesc(prefix+"denial_events_total",
		"Events about denials that were written; one covers all denials of a tenant by a policy in a second.", nil, nil)
	denialEventsDropped = prometheus.NewDesc(prefix+"denial_events_dropped_total",
		"Denials without an event, by reason; groups: an event without the tenant's name covers them.",
		[]string{"reason"}, nil)
	denialQueueDepth = prometheus.NewDesc(prefix+"denial_queue_depth",
		"Events about denials that wait to be written.", nil, nil)
)

// denialCollector collects the numbers of the record of denials.
type denialCollector struct{ read func() Denial }

func (c denialCollector) Describe(to chan<- *prometheus.Desc) {
	to <- denialEvents
	to <- denialEventsDropped
	to <- denialQueueDepth
}

func (c denialCollector) Collect(to chan<- prometheus.Metric) {
	defer recoverSource(denialEvents, to)
	now := c.read()
	to <- prometheus.MustNewConstMetric(denialEvents, prometheus.CounterValue, float64(now.Written))
	for reason, n := range now.Dropped {
		to <- prometheus.MustNewConstMetric(denialEventsDropped, prometheus.CounterValue, float64(n), reason)
	}
	to <- prometheus.MustNewConstMetric(denialQueueDepth, prometheus.GaugeValue, float64(now.Queued))
}
