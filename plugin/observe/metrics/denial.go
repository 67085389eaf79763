package metrics

import "github.com/prometheus/client_golang/prometheus"

// Denial holds the numbers of the record of denials, all but Queued and Failing since the process started.
type Denial struct{ Sinks []DenialSink }

// DenialSink holds the numbers of one sink of the record.
type DenialSink struct {
	Name    string            // one of a fixed list
	Written uint64            // events that it has accepted
	Dropped map[string]uint64 // denials without an event, by reason: one of a fixed list
	Queued  int               // events that wait for it now
	Failing bool              // its last write failed
}

var (
	denialEvents = prometheus.NewDesc(prefix+"denial_events_total",
		"Events about denials that were written, by sink; one covers one denial, or all denials of a tenant by a policy "+
			"in a second.", []string{"sink"}, nil)
	denialEventsDropped = prometheus.NewDesc(prefix+"denial_events_dropped_total",
		"Denials without an event, by reason and sink; groups: an event without the tenant's name covers them.",
		[]string{"reason", "sink"}, nil)
	denialQueueDepth = prometheus.NewDesc(prefix+"denial_queue_depth",
		"Events about denials that wait to be written, by sink.", []string{"sink"}, nil)
	denialSinkFailing = prometheus.NewDesc(prefix+"denial_sink_failing",
		"1 if the last write of a sink of denials failed, else 0.", []string{"sink"}, nil)
)

// denialCollector collects the numbers of the record of denials.
type denialCollector struct{ read func() Denial }

func (c denialCollector) Describe(to chan<- *prometheus.Desc) {
	to <- denialEvents
	to <- denialEventsDropped
	to <- denialQueueDepth
	to <- denialSinkFailing
}

func (c denialCollector) Collect(to chan<- prometheus.Metric) {
	defer recoverSource(denialEvents, to)
	for _, sink := range c.read().Sinks {
		to <- prometheus.MustNewConstMetric(denialEvents, prometheus.CounterValue, float64(sink.Written), sink.Name)
		for reason, n := range sink.Dropped {
			to <- prometheus.MustNewConstMetric(
				denialEventsDropped, prometheus.CounterValue, float64(n), reason, sink.Name)
		}
		to <- prometheus.MustNewConstMetric(denialQueueDepth, prometheus.GaugeValue, float64(sink.Queued), sink.Name)
		to <- prometheus.MustNewConstMetric(
			denialSinkFailing, prometheus.GaugeValue, indicator(sink.Failing), sink.Name)
	}
}
